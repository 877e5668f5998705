"""The progress of a run: versions, iterations, evaluations, and what its work was found to cost."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Final

from prefect.futures import PrefectFuture

from digen_core.checkpoints.manifest import Manifest, Position
from digen_core.control.costs import Costs
from digen_core.control.schedule import UNMIXED, Mixing, StaleGroups
from digen_core.maths.ddpo import RewardHistory
from digen_core.planning.profile import Profile
from digen_core.records import FIRST, EvaluationReport
from digen_core.trace.utilization import Arithmetic

STALE_LIMIT: Final = ("staleness/most_groups", "staleness/most_iterations")
"""Metrics of how much of an iteration could begin on older versions, if that is adapted."""


@dataclass
class Progress:
    """How far a run is. Only its methods change it, and each says what happened."""

    started: float = field(default_factory=monotonic)
    charged_until: float = field(default_factory=monotonic)
    """When the devices were last charged for, or the run began."""
    checkpoint: Path | None = None
    """To begin with, in place of version 0."""
    damaged: set[Path] = field(default_factory=set)
    """Checkpoints whose content is not whole."""
    reward_history: RewardHistory = field(default_factory=dict)
    """Of each prompt, to begin with; for algorithms that keep it."""
    evaluations: dict[str, EvaluationReport] = field(default_factory=dict)
    """By tag: the first, and those of the newest version that was evaluated. Each has the scores of
    all samples, and a long run makes hundreds."""
    version: int = 0
    state: PrefectFuture[Any] | None = None
    """The TrainState of the newest version, on the holder; None before there is one."""
    holder: str = ""
    """The device that has it, which is the first trainer."""
    copies: dict[tuple[str, int], PrefectFuture[Any]] = field(default_factory=dict)
    """Copies of it on other devices, by device and version: those with which a run may go on."""
    published: dict[int, PrefectFuture[Any]] = field(default_factory=dict)
    """The PolicyVersion of each version on which groups may have begun, and of the newest."""
    published_hashes: dict[int, str] = field(default_factory=dict)
    """Content hash of each PolicyVersion that was published: what loads it acknowledges that."""
    hashes: dict[int, str] = field(default_factory=dict)
    """Content hash of each version's master weights, which names it."""
    step_seconds: float = 0.0
    """One denoising step of a batch, as last measured."""
    profile: Profile | None = None
    """What work costs; None before the workers are ready."""
    mixing: Mixing = UNMIXED
    """How groups that cost differently are generated."""
    stale_limit: StaleGroups | None = None
    """How much of the next iteration may begin on older versions; None: it is not known."""
    arithmetic: Arithmetic | None = None
    """FLOPs of the model's work; None: not counted, or not yet."""
    spent: float = 0.0
    """What the devices have cost, if they have prices."""
    num_iterations: int = 0
    """Finished ones."""
    made: tuple[int, Position] | None = None
    """The newest version that a published iteration made, and where the run stood then."""
    num_barren: int = 0
    """Published iterations, the last ones in a row, that lost their update to NaN or Inf."""
    num_kept: int = 0
    """Iterations that the last checkpoint has; never more than are finished."""
    num_resumed: int = 0
    """Times that the run went back to its last checkpoint by itself."""
    said: set[str] = field(default_factory=set)
    """Kinds of warnings that are given once."""

    @property
    def seconds(self) -> float:
        """Seconds since the run began, without those for which it was paused."""
        return monotonic() - self.started

    @property
    def known_costs(self) -> Costs:
        """What work costs, as far as it is known."""
        return self.profile.costs if self.profile else Costs(kinds={})

    # --- versions -------------------------------------------------------------------------

    def begin_with(self, checkpoint: Path | None) -> None:
        """Note the checkpoint that the workers are to restore."""
        self.checkpoint = checkpoint

    def first_state(self, state: PrefectFuture[Any], holder: str) -> None:
        """Note the state to begin with, which a trainer makes or restores."""
        self.state, self.holder, self.copies = state, holder, {}

    def first_version(self, version: int, content_hash: str) -> None:
        """Note the version to begin with, now that it exists; of later ones nothing is known."""
        self.version = version
        self.hashes = {own: known for own, known in self.hashes.items() if own < version}
        self.hashes[version] = content_hash

    def stepping(self, state: PrefectFuture[Any]) -> None:
        """Note that the optimizer makes the next state."""
        self.state = state

    def copied(self, device: str, version: int, state: PrefectFuture[Any]) -> None:
        """Note that a device has a copy of a state."""
        self.copies[device, version] = state

    def takes_over(self, device: str) -> bool:
        """Go on from a device's copy of the current version's state; say whether it has one."""
        copy = self.copies.get((device, self.version))
        if copy is None:
            return False
        self.state, self.holder = copy, device
        return True

    def lost(self, devices: Collection[str]) -> None:
        """Note that what devices had is gone."""
        self.copies = {own: copy for own, copy in self.copies.items() if own[0] not in devices}

    def publishing(self, version: int, policy_version: PrefectFuture[Any]) -> None:
        """Note that a trainer takes out of its state what a push moves."""
        self.published[version] = policy_version

    def unpublished(self) -> None:
        """Note that what was published is gone with the state: who has that now publishes anew."""
        self.published = {}

    def has_published(self, version: int, content_hash: str) -> None:
        """Note what is pushed of a version."""
        self.published_hashes[version] = content_hash

    def stepped(self, version: int, content_hash: str, oldest: int, trained_from: int) -> None:
        """Note that the optimizer made a version.

        Args:
            version: that was made.
            content_hash: of its master weights.
            oldest: version on which groups may begin.
            trained_from: version from which its iteration stepped first; no work names those
                between the two any more.
        """
        self.version = version
        self.hashes[version] = content_hash

        def may_be_named(older: int) -> bool:
            return older >= version or oldest <= older <= trained_from

        self.published = {v: own for v, own in self.published.items() if may_be_named(v)}
        self.copies = {at: copy for at, copy in self.copies.items() if may_be_named(at[1])}

    def not_stepped(self, version: int) -> None:
        """Note that the optimizer did not make a version: the state is that of the one before."""
        del self.published[version]

    # --- iterations -----------------------------------------------------------------------

    def finished(self, step_seconds: float | None) -> None:
        """Note that an iteration is over; None if it measured no step."""
        self.step_seconds = step_seconds or self.step_seconds
        self.num_iterations += 1

    def charged(self, per_second: float, now: float) -> None:
        """Note that devices of some price were there until now, since the run began."""
        self.spent += per_second * (now - self.charged_until)
        self.charged_until = now

    def counted(self, arithmetic: Arithmetic) -> None:
        """Note how many FLOPs the model's work takes."""
        self.arithmetic = arithmetic

    def has_made(self, version: int, position: Position) -> None:
        """Note that the iteration which made a version is published."""
        self.made = version, position

    def published_one(self, *, is_barren: bool) -> None:
        """Note that an iteration is published, and whether it lost its update to NaN or Inf."""
        self.num_barren = self.num_barren + 1 if is_barren else 0

    def kept(self, checkpoint: Path, num_iterations: int) -> None:
        """Note that a checkpoint was written, in place of one that was damaged if there was one.

        It holds all up to there.
        """
        self.damaged.discard(checkpoint)
        self.num_kept = num_iterations

    def evaluated(self, tag: str, report: EvaluationReport) -> None:
        """Note what a version was found to be worth."""
        self._know({**self.evaluations, tag: report}, report.version)

    def _know(self, evaluations: Mapping[str, EvaluationReport], version: int) -> None:
        """Keep of some evaluations the first, and those of a version."""
        self.evaluations = {
            tag: own for tag, own in evaluations.items() if tag == FIRST or own.version == version
        }

    def mixes(self, mixing: Mixing) -> None:
        """Note how groups that cost differently are generated from now on."""
        self.mixing = mixing

    def may_be_stale(self, limit: StaleGroups) -> None:
        """Note how much of an iteration may begin on older versions from now on."""
        self.stale_limit = limit

    def measured(self, profile: Profile, step_seconds: float) -> None:
        """Note what work costs, before the first iteration."""
        self.profile, self.step_seconds = profile, step_seconds

    def paused(self, seconds: float) -> None:
        """Note that the devices did not use some of the run's time."""
        self.started += seconds

    # --- going back -----------------------------------------------------------------------

    def is_damaged(self, checkpoint: Path) -> None:
        """Note that a checkpoint cannot be used."""
        self.damaged.add(checkpoint)

    def went_back(self) -> None:
        """Note that the run goes back to its last checkpoint by itself."""
        self.num_resumed += 1

    def stand_at(
        self,
        checkpoint: Path | None,
        manifest: Manifest | None,
        num_iterations: int,
        evaluations: Mapping[str, EvaluationReport],
    ) -> None:
        """Forget what came after a checkpoint; None: all that was trained.

        Args:
            checkpoint: folder of it.
            manifest: of it.
            num_iterations: that it holds.
            evaluations: of versions up to its own, by tag.
        """
        self.checkpoint = checkpoint
        self.num_iterations = self.num_kept = num_iterations
        self.num_barren = 0
        self.version = manifest.version if manifest else 0
        self.reward_history = manifest.reward_history if manifest else {}
        known = [manifest.metrics.get(name) for name in STALE_LIMIT] if manifest else []
        numbers = [round(number) for number in known if number is not None]
        self.stale_limit = StaleGroups(*numbers) if len(numbers) == len(STALE_LIMIT) else None
        self.state, self.copies, self.published, self.made = None, {}, {}, None
        self._know(evaluations, self.version)

    # --- warnings -------------------------------------------------------------------------

    def once(self, kind: str) -> bool:
        """Say whether a warning was not given yet, and note that it is given now."""
        first = kind not in self.said
        self.said.add(kind)
        return first
