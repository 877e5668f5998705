"""The ledger of a simulation: what exists on which device; what no run could do is refused."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from digen_core.control.protocol import Fragment, Generate, Pack, Push, Score, Step, Train


class SimulationError(RuntimeError):
    """The controller ordered something impossible, or nothing at all although work is left."""


@dataclass(slots=True)
class Trajectory:
    """The part of a fragment that is denoised: steps before ``next_step``."""

    version: int
    next_step: int = 0
    devices: set[str] = field(default_factory=set)  # that hold parts of it


class Ledger:
    """Versions on devices, trajectories, advantages."""

    def __init__(self) -> None:
        self._versions: dict[str, set[int]] = {}
        self._trajectories: dict[Fragment, Trajectory] = {}
        self._trained_samples: dict[tuple[int, int], frozenset[int]] = {}  # (iteration, group)
        self._copies: dict[str, set[int]] = {}  # of the optimizer's state
        self._newest = 0
        self._maker = ""  # of the newest version; of the first one anyone

    # --- what happened --------------------------------------------------------------------

    def add_device(self, name: str) -> None:
        """A device is there; it holds no version."""
        self._versions[name], self._copies[name] = set(), set()

    def lose_device(self, name: str) -> set[Fragment]:
        """A device is gone; return the fragments that it held parts of."""
        del self._versions[name], self._copies[name]
        lost = {f for f, held in self._trajectories.items() if name in held.devices}
        for fragment in lost:
            del self._trajectories[fragment]
        return lost

    def loaded(self, name: str, version: int) -> None:
        """A device holds a version beside those it held."""
        self._versions[name].add(version)

    def copied(self, name: str, version: int) -> None:
        """A device has the optimizer's state of a version, and so the version."""
        self._copies[name].add(version)

    def denoised(self, do: Generate, next_step: int) -> None:
        """A device did the steps of a batch up to ``next_step``."""
        for fragment in do.batch.fragments:
            if do.first_step == 0:
                self._trajectories[fragment] = Trajectory(do.version)
            if fragment not in self._trajectories:
                continue  # its first steps were lost with their device meanwhile
            trajectory = self._trajectories[fragment]
            trajectory.next_step = next_step
            trajectory.devices.add(do.device)

    def add_advantages(self, iteration: int, groups: Iterable[tuple[int, Iterable[int]]]) -> None:
        """Groups have advantages; these samples of theirs are trained."""
        for group, samples in groups:
            self._trained_samples[iteration, group] = frozenset(samples)

    def stepped(self, version: int, device: str) -> None:
        """The optimizer made a version on a device."""
        self._newest, self._maker = version, device

    def finish(self, iteration: int) -> None:
        """Nothing of this iteration is needed any more."""
        self._trajectories = {
            f: held for f, held in self._trajectories.items() if f.iteration != iteration
        }
        self._trained_samples = {
            key: samples for key, samples in self._trained_samples.items() if key[0] != iteration
        }

    # --- what may be done -----------------------------------------------------------------

    def check_generate(self, do: Generate) -> None:
        """Refuse a version that is not there, and steps that do not follow those done."""
        self._check_version(do, do.device, do.version)
        if not 0 <= do.first_step < do.end_step <= do.batch.num_steps:
            raise SimulationError(f"no such steps: {do}")
        if do.first_step == 0:
            return
        for fragment in do.batch.fragments:
            found = self._trajectories.get(fragment)
            if found is None or (found.next_step, found.version) != (do.first_step, do.version):
                raise SimulationError(f"{do} does not follow what was denoised: {found}")

    def check_score(self, do: Score) -> None:
        """Refuse a fragment that is not generated."""
        found = self._trajectories.get(do.fragment)
        if found is None or found.next_step != do.fragment.num_steps:
            raise SimulationError(f"{do} of a fragment that is not generated: {found}")

    def check_train(self, do: Train) -> None:
        """Refuse pairs without advantage or trajectory, and a version that is not there."""
        self._check_version(do, do.device, do.version)
        for block in do.pack.blocks:
            fragment = block.fragment
            samples = self._trained_samples.get((fragment.iteration, fragment.group))
            if samples is None:
                raise SimulationError(f"group {fragment.group} has no advantages: {do}")
            first = fragment.first_sample + block.first_row
            if not samples.issuperset(range(first, first + block.num_rows)):
                raise SimulationError(f"{block} holds samples that are not to be trained: {do}")
            found = self._trajectories.get(fragment)
            if found is None or found.next_step != fragment.num_steps:
                raise SimulationError(f"{fragment} is not generated, or lost: {do}")

    def check_step(self, do: Step) -> None:
        """Refuse a step from anything but the newest version, or the one that its maker lost."""
        is_lost = self._maker not in self._versions and do.version == self._newest - 1
        if do.version != self._newest and not is_lost:
            raise SimulationError(f"the newest version is {self._newest}: {do}")

    def check_push(self, do: Push) -> None:
        """Refuse a version that was not made, or that its source does not hold."""
        self.check_device(do, do.device)
        if do.version > self._newest:
            raise SimulationError(f"the newest version is {self._newest}: {do}")
        has_made = do.version == self._newest and do.source == (self._maker or do.source)
        held = self._versions.get(do.source)
        if held is None or not (has_made or do.version in held | self._copies[do.source]):
            raise SimulationError(f"{do.source} does not hold the version: {do}")

    def check_device(self, do: object, name: str) -> None:
        """Refuse a device that is not there."""
        if name not in self._versions:
            raise SimulationError(f"there is no device {name}: {do}")

    def staleness(self, pack: Pack, version: int) -> list[tuple[int, int]]:
        """Return (versions since it was generated, pairs) of each block of a pack."""
        return [
            (version - self._trajectories[block.fragment].version, block.num_rows)
            for block in pack.blocks
        ]

    def _check_version(self, do: object, name: str, version: int) -> None:
        self.check_device(do, name)
        if version not in self._versions[name]:
            held = sorted(self._versions[name])
            raise SimulationError(f"{name} holds the versions {held} only: {do}")
