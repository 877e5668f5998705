"""Snapshots: a controller as plain data, from which one is built that decides as it would have."""

from dataclasses import dataclass

from digen_core.control.costs import Costs
from digen_core.control.devices.fleet import FleetSnapshot
from digen_core.control.generation import GenerationQueue
from digen_core.control.iteration import Iteration
from digen_core.control.protocol import (
    FinishIteration,
    Fragment,
    IterationOffered,
    Pack,
    PairBlock,
    Score,
)
from digen_core.control.pushes import CopiesSnapshot, PushesSnapshot
from digen_core.control.schedule import Deal, OwnSteps, Schedule, StaleGroups, Workload


@dataclass(frozen=True, slots=True)
class IterationSnapshot:
    """An open iteration; the fields are those of :class:`Iteration`, sets are sorted."""

    index: int
    trained_steps: tuple[int, ...]
    groups: tuple[int, ...]  # in the order in which they were let in
    succeeded: dict[int, int]  # those that others were put in the place of, by these
    versions: dict[int, int]  # of groups that have begun
    stale: tuple[int, ...]
    waiting: tuple[tuple[Fragment, int], ...]  # for a device; and the first step that is not done
    unscored: dict[int, tuple[Fragment, ...]]
    generating: tuple[tuple[Fragment, str], ...]
    held_on: tuple[tuple[Fragment, tuple[str, ...]], ...]
    to_restart: tuple[Fragment, ...]
    scored_on: tuple[tuple[Fragment, str], ...]
    regenerating: tuple[Fragment, ...]
    parked: tuple[tuple[Fragment, tuple[PairBlock, ...]], ...]
    to_score: tuple[Score, ...]
    costs: tuple[float, ...]
    cuts: bool
    without_advantages: tuple[int, ...]
    deal: Deal
    own_steps: OwnSteps
    stale_limit: StaleGroups | None
    group_steps: tuple[int, ...]
    update: int
    updated: bool
    pool: tuple[PairBlock, ...]
    later: tuple[PairBlock, ...]  # of all updates to come
    training: tuple[tuple[Pack, str], ...]
    trained: dict[str, tuple[Pack, ...]]
    in_gradient: tuple[Pack, ...]
    num_packs: int
    reducing: bool
    stepping: bool

    @classmethod
    def of(cls, it: Iteration) -> "IterationSnapshot":
        """Return how far an iteration is."""
        return cls(
            index=it.index,
            trained_steps=it.trained_steps,
            groups=it.queue.groups,
            succeeded=dict(it.queue.succeeded),
            versions=dict(it.queue.versions),
            stale=tuple(sorted(it.queue.stale)),
            waiting=it.queue.waiting,
            unscored={group: tuple(sorted(parts)) for group, parts in it.unscored.items()},
            generating=tuple(it.generating.items()),
            held_on=tuple((part, tuple(sorted(on))) for part, on in it.held_on.items()),
            to_restart=tuple(sorted(it.to_restart)),
            scored_on=tuple(it.scored_on.items()),
            regenerating=tuple(sorted(it.regenerating)),
            parked=tuple((part, tuple(blocks)) for part, blocks in it.parked.items()),
            to_score=tuple(it.to_score),
            costs=it.costs,
            cuts=it.cuts,
            without_advantages=tuple(sorted(it.without_advantages)),
            deal=it.deal,
            own_steps=it.own_steps,
            stale_limit=it.stale_limit,
            group_steps=it.group_steps,
            update=it.update,
            updated=it.updated,
            pool=it.pool.blocks,
            later=tuple(block for pool in it.later.values() for block in pool.blocks),
            training=tuple(it.training.values()),
            trained={device: tuple(packs) for device, packs in it.trained.items()},
            in_gradient=tuple(it.in_gradient),
            num_packs=it.num_packs,
            reducing=it.reducing,
            stepping=it.stepping,
        )

    def restored(self) -> Iteration:
        """Return an iteration that is as far."""
        queue = GenerationQueue(
            self.groups, dict(self.succeeded), dict(self.versions), set(self.stale)
        )
        for fragment, next_step in self.waiting:
            queue.add(fragment, next_step)
        iteration = Iteration(
            self.index,
            self.trained_steps,
            queue,
            {group: set(parts) for group, parts in self.unscored.items()},
            sum(map(len, self.unscored.values())),
            generating=dict(self.generating),
            held_on={part: set(on) for part, on in self.held_on},
            to_restart=set(self.to_restart),
            scored_on=dict(self.scored_on),
            regenerating=set(self.regenerating),
            parked={part: list(blocks) for part, blocks in self.parked},
            to_score=list(self.to_score),
            costs=self.costs,
            cuts=self.cuts,
            deal=self.deal,
            own_steps=self.own_steps,
            stale_limit=self.stale_limit,
            group_steps=self.group_steps,
            update=self.update,
            updated=self.updated,
            training={pack.index: (pack, device) for pack, device in self.training},
            trained={device: list(packs) for device, packs in self.trained.items()},
            in_gradient=list(self.in_gradient),
            num_packs=self.num_packs,
            num_to_generate=len(self.waiting) + len(self.generating),
            reducing=self.reducing,
            stepping=self.stepping,
        )
        iteration.put((*self.pool, *self.later))
        for group in self.without_advantages:
            iteration.await_advantages(group)
        return iteration


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A controller between two events; the fields are those of :class:`Controller`."""

    workload: Workload
    schedule: Schedule
    costs: Costs
    version: int
    generating: tuple[int, ...]  # versions
    next_iteration: int
    fleet: FleetSnapshot
    offered: tuple[IterationOffered, ...]
    iterations: tuple[IterationSnapshot, ...]
    finishing: tuple[tuple[FinishIteration, int], ...]
    pushes: PushesSnapshot
    copies: CopiesSnapshot

    def awaited(self) -> list[str]:
        """Return the devices that the last iteration waits for though they hold its version.

        What they do when they have done what is under way shows in it: they leave, or turn back.
        """
        pulling = {name for do in self.pushes.under_way for name in (do.device, do.source)}
        busy = pulling | {name for do in self.copies.under_way for name in (do.device, do.source)}
        return [
            state.name
            for state in self.fleet.devices
            if (state.leaving and (state.queue or state.name in busy))
            or (state.queue and state.home == "rollout" and state.mode == "trainer")
        ]
