"""The model that a worker process holds, by run: what every task body works with."""

import gc
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
from distributed import Worker

from digen_core.config.run import RunConfig
from digen_core.config.size import Size
from digen_core.gang.members import ALONE, Gang
from digen_core.gang.rows import whole_weights
from digen_core.models.compiled import compile_meter
from digen_core.models.loading import load_trainable
from digen_core.models.policy import ALL_PARTS, TRAINER_PARTS, Policy
from digen_core.models.versions import AdapterVersions, WholeVersions, versions_of
from digen_core.rewards import reward_functions
from digen_core.rewards.scoring import RewardFn
from digen_core.training.train_state import (
    OLD,
    START,
    PolicyVersion,
    TrainState,
    beside,
    own_name,
    without_others,
)
from digen_core.transport.arrays import Weights
from tasks.worker.fitting import Activity, Fitting, needing_memory
from tasks.worker.pulling import serve_from, serve_nothing, serve_on
from tasks.worker.room import require_room
from tasks.worker.shelf import Shelf
from tasks.worker.span import span_on_receipt


def dask_setup(worker: Worker) -> None:
    """Prepare a worker that preloads this module: others may pull versions from it."""
    gc.freeze()  # what was imported stays: to look through it took each collection 0.2 s
    serve_on(worker)


class VersionError(RuntimeError):
    """A worker does not hold the policy version that its instruction names, or no model at all."""


@dataclass
class Engine:
    """A policy and the versions of it that one device holds."""

    config: RunConfig
    device_name: str
    policy: Policy
    rewards: dict[str, RewardFn]
    versions: AdapterVersions | WholeVersions
    gang: Gang = ALONE
    others: dict[int, dict[str, Weights]] = field(default_factory=dict)
    """Of each version the policies beside it, by the prefix of their names."""
    unsaved: dict[int, TrainState] = field(default_factory=dict)  # made or copied here
    shelf: Shelf = field(default_factory=Shelf)
    published: tuple[str, PolicyVersion] | None = None  # the last one, with its state's hash
    average: tuple[str, Weights] | None = None  # that is evaluated, with its hash
    views: dict[Size, Policy] = field(default_factory=dict)  # the policy, by the size of samples
    fitting: Fitting = field(init=False)

    def __post_init__(self) -> None:
        whole: set[Activity] = {"evaluate"} if self.gang.size > 1 else set()
        if self.gang.computes_together:
            whole.add("denoise")
        self.fitting = Fitting(self.device_name, whole)
        if "evaluate" in whole:  # as many as memory is counted for
            together = max(self.config.batch_size, self.gang.num_shares)
            self.fitting.at_most("evaluate", self.config.model.size, together)

    def policy_of(self, iteration: int, group: int) -> Policy:
        """Return the policy for the size of a group's samples."""
        return self.policy_at(self.config.size_of(iteration, group))

    def policy_at(self, size: Size) -> Policy:
        """Return the policy for samples of a size."""
        if size not in self.views:
            self.views[size] = self.policy.at_size(size)
        return self.views[size]

    def activate(self, version: int) -> None:
        """Give the policy the weights of a version.

        Raises:
            VersionError: it is not held here.
        """
        held = self.versions.held
        if version not in held:
            raise VersionError(
                f"{self.device_name} holds versions {held}, but version {version} is needed"
            )
        self.versions.activate(version)

    @property
    def version(self) -> int | None:
        """The version whose weights the policy has now, if they are a version's."""
        return self.versions.active

    def load(
        self,
        pushed: PolicyVersion,
        rows: Weights,
        *,
        needed: Collection[int] = (),
        base: int = -1,
    ) -> None:
        """Hold a version whose rows have arrived, and drop those that are not needed (collective).

        Args:
            pushed: the version.
            rows: of it, this member's, whose fingerprints were found to be the version's.
            needed: other versions that work may name.
            base: version that others may hold still, to be served on: deltas are of it.
        """
        others = set(self.versions.held) - {pushed.version}
        unneeded = others.difference(needed)
        for other in unneeded:
            self.others.pop(other, None)
            self.versions.drop(other)
        unneeded.discard(base)
        for label in self.shelf:
            if isinstance(label, str) or label in unneeded:  # the average, and sums
                self.shelf.drop(label)
        self.average = None
        held = self.held(rows)
        self.versions.hold(pushed.version, without_others(held))
        self.others[pushed.version] = {prefix: beside(held, prefix) for prefix in (OLD, START)}
        self.shelf.put(pushed.version, pushed.hash, rows)

    def drop_bases(self, coming: int) -> None:
        """Let go of what only deltas are of, as a version comes whose deltas will be of others.

        That one may be older than those that are held: a run that goes back to a checkpoint.
        """
        oldest = min(self.versions.held, default=0)
        for version in self.shelf.versions:
            if version < oldest and version != coming:
                self.shelf.drop(version)

    def keep_unsaved(self, state: TrainState, trained_from: int) -> None:
        """Keep a state that may have to be written to disk from here.

        Only those with which iterations end and that are due, and the last one; and not for longer
        than a checkpoint may lag behind. One that is on disk is let go of where it was written.

        Args:
            state: that was made.
            trained_from: version from which the iteration that made it stepped first.
        """
        config = self.config
        lag = max(config.schedule.num_older, 1) * config.train.updates_per_iteration
        needed = range(state.version - lag, trained_from + 1)
        held = list(self.unsaved.items())  # at once: a checkpoint may take its own out meanwhile
        kept = {v: own for v, own in held if v in needed and config.is_kept(v)}
        self.unsaved = {**kept, state.version: state}

    def held(self, rows: Weights) -> Weights:
        """Return what this member's model holds of weights that are dealt by rows (collective).

        Where it is sharded that is its rows, but for what a family keeps in float32.
        """
        own, sharded = self.versions.names, self.versions.sharded
        others = {name: value for name, value in rows.items() if own_name(name) not in sharded}
        whole = whole_weights(others, self.gang, {n for n in others if own_name(n) in own})
        return rows | whole if sharded else whole

    def needing_memory(self, activity: Activity) -> AbstractContextManager[None]:
        """Run the body; a UserError says what to change if it does not fit into memory."""
        return needing_memory(self.device_name, activity, self.config.model.size)

    def old_policy(self) -> AbstractContextManager[object]:
        """Run the body with what generates in place of the active version, if that is not it."""
        old = self._policy_beside(OLD)
        return self.temporary_weights(old) if old else nullcontext()

    def start_policy(self, trained_from: int) -> AbstractContextManager[object]:
        """Run the body with what generated when the iteration began.

        Args:
            trained_from: version with which it began: where that is the active one, what generates.

        Raises:
            VersionError: it is another, and the active one came without what generated then.
        """
        if trained_from == self.version:
            return self.old_policy()
        start = self._policy_beside(START)
        if not start:
            raise VersionError(
                f"{self.device_name} has version {self.version} without what generated when its "
                f"iteration began, with version {trained_from}"
            )
        return self.temporary_weights(start)

    def _policy_beside(self, prefix: str) -> Weights:
        return {} if self.version is None else self.others.get(self.version, {}).get(prefix, {})

    def temporary_weights(self, weights: Mapping[str, np.ndarray]) -> AbstractContextManager[None]:
        """Run the body with other weights (the moving average), then restore the version."""
        return self.versions.temporary(weights)


_engines: dict[str, Engine] = {}


def build_engine(run_id: str, config: RunConfig, device_name: str, roles: frozenset[str]) -> Engine:
    """Load the parts that the roles need, and keep the engine for the tasks to come.

    In a gang the leader alone embeds prompts, decodes and scores.
    """
    _release_engines()  # one run at a time on a worker, and no room for two models
    gang = Gang.of(config.parallel)
    require_room(config, device_name, roles, gang)
    is_scoring = "rollout" in roles and gang.is_leader
    policy = load_trainable(config, ALL_PARTS if is_scoring else TRAINER_PARTS, gang)
    rewards = reward_functions(config.rewards_of(None), policy.device) if is_scoring else {}
    if config.model.compile:
        compile_meter().read()  # from now on
    versions = versions_of(policy)
    engine = _engines[run_id] = Engine(config, device_name, policy, rewards, versions, gang)
    serve_from(run_id, engine.shelf)
    return engine


def _release_engines() -> None:
    _engines.clear()
    serve_nothing()
    gc.collect()  # modules, their hooks and adapters refer to each other
    torch.cuda.empty_cache()


def engine_of(run_id: str) -> Engine:
    """Return this worker's engine of a run.

    Raises:
        VersionError: it holds no model of the run.
    """
    engine = _engines.get(run_id)
    if engine is None:
        raise VersionError(f"this worker holds no model of run {run_id}; was it restarted?")
    return engine


@contextmanager
def working(run_id: str, *, version: int | None = None) -> Iterator[Engine]:
    """Give a task body its engine, with the version it needs, and put the span on the receipt.

    Raises:
        VersionError: this worker holds no model of the run, or not the version ``version``.
    """
    engine = engine_of(run_id)
    with span_on_receipt(engine.device_name, compiling=bool(engine.config.model.compile)):
        if version is not None:
            engine.activate(version)
        yield engine
