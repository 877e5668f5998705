"""One round of prompts as the controller sees it: which groups are how far."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby

from digen_core.control.fragments import fragments_of, rounded_cost
from digen_core.control.generation import GenerationQueue
from digen_core.control.layout import Layout
from digen_core.control.packing import PairPool, by_step, pairs_by_sample, pairs_by_step
from digen_core.control.protocol import Batch, Fragment, IterationOffered, Pack, PairBlock, Score
from digen_core.control.schedule import (
    WHOLE,
    Deal,
    OwnSteps,
    StaleGroups,
    Workload,
    generation_costs,
    num_trained_steps,
    own_steps_in,
)


@dataclass
class Iteration:
    """An iteration from its first fragment to its last update."""

    index: int
    trained_steps: tuple[int, ...]
    #: The fragments that wait for a device: none that is under way.
    queue: GenerationQueue
    #: By group, the fragments without rewards; each waits, is under way, is held back or is scored
    #: on a device that is there. As many groups as the workload has: one that is replaced leaves.
    unscored: dict[int, set[Fragment]]
    #: In all groups.
    num_unscored: int
    #: Of a sample of each group, as they were offered; none: all cost 1.
    costs: tuple[float, ...] = ()
    #: Whether groups are cut into fragments by them.
    cuts: bool = False
    #: The fragments under way, and on which device: first or later in its queue.
    generating: dict[Fragment, str] = field(default_factory=dict)
    #: Who has stretches of a fragment: devices that are there.
    held_on: dict[Fragment, set[str]] = field(default_factory=dict)
    #: Under way, but a stretch is lost: they begin anew when their device stops.
    to_restart: set[Fragment] = field(default_factory=set)
    #: Who scores a fragment, or did.
    scored_on: dict[Fragment, str] = field(default_factory=dict)
    #: Lost after they were scored: they wait for a device or are under way.
    regenerating: set[Fragment] = field(default_factory=set)
    #: Pairs of those, until their transitions exist again.
    parked: dict[Fragment, list[PairBlock]] = field(default_factory=dict)
    #: Held back until all fragments are generated, in layouts that do not stream.
    to_score: list[Score] = field(default_factory=list)
    #: Every group with a fragment that has no rewards is among them.
    without_advantages: set[int] = field(default_factory=set)
    #: The load of their pairs, if one sample of each is trained.
    load_to_come: float = 0.0
    #: Which update trains which samples.
    deal: Deal = WHOLE
    #: By group and sample, and epoch, which of the trained steps are its own; none: all of them.
    own_steps: OwnSteps = ()
    #: How much may begin on older versions; None: what the schedule lets.
    stale_limit: StaleGroups | None = None
    #: Of the trajectories of each group, as they were offered; none: as the workload says.
    group_steps: tuple[int, ...] = ()
    #: The update that is trained; those before it are over.
    update: int = 0
    #: Whether an update has made a version.
    updated: bool = False
    #: A pair of a trained group is in a pool, parked, in a pack under way or in a sum: in one; or
    #: its update is over. This is the pool of the current update.
    pool: PairPool = field(default_factory=PairPool)
    #: Those of the updates that come after it.
    later: dict[int, PairPool] = field(default_factory=dict)
    #: The packs that a device was told to train, or has next, by index.
    training: dict[int, tuple[Pack, str]] = field(default_factory=dict)
    #: Those in the sum of each device, which is there.
    trained: dict[str, list[Pack]] = field(default_factory=dict)
    #: Those whose sums were lost while the optimizer steps: they are in the gradient alone.
    in_gradient: list[Pack] = field(default_factory=list)
    #: Made so far; above every index. Only the oldest iteration has any.
    num_packs: int = 0
    #: Fragments that wait or are under way.
    num_to_generate: int = 0
    #: All of the update is in a sum, and the sums are, or soon will be, one gradient.
    reducing: bool = False
    #: The gradient is whole, and the optimizer steps; it is reducing, too.
    stepping: bool = False

    @classmethod
    def begin(
        cls, offer: IterationOffered, order: tuple[int, ...], workload: Workload
    ) -> "Iteration":
        """Return an iteration of which nothing is generated."""
        costs = tuple(map(rounded_cost, offer.group_costs))
        queue, cuts = GenerationQueue(order), offer.mixing.cuts
        it = cls(offer.iteration, offer.trained_steps, queue, {}, 0, costs, cuts)
        it.deal, it.own_steps = offer.deal, offer.own_steps
        it.stale_limit, it.group_steps = offer.stale_limit, offer.group_steps
        for group in order:
            it._add_group(group, workload)
        return it

    def _add_group(self, group: int, workload: Workload) -> None:
        parts = self._fragments_of(group, workload)
        self.unscored[group] = set(parts)
        self.num_unscored += len(parts)
        self.num_to_generate += len(parts)
        self.await_advantages(group)
        for fragment in parts:
            self.queue.add(fragment)

    def _cost_of(self, group: int) -> float:
        return self.costs[group] if self.costs else 1.0

    def num_trained_of(self, group: int) -> int:
        """Return the trained steps of a group's samples."""
        return len(self.own_steps[group][0] if self.own_steps else self.trained_steps)

    def _load_of(self, group: int) -> float:
        """Return the load of the pairs of a group's sample."""
        return self._cost_of(group) * self.num_trained_of(group)

    @cached_property
    def _dearness(self) -> tuple[float, ...]:
        """What it takes to generate a sample of each group, in the mean of them; none: the same."""
        return generation_costs(self.costs, self.group_steps)

    def _steps_of(self, group: int, workload: Workload) -> int:
        """Return the steps of a group's samples."""
        return self.group_steps[group] if self.group_steps else workload.num_steps

    def _fragments_of(self, group: int, workload: Workload) -> tuple[Fragment, ...]:
        num_steps = self._steps_of(group, workload)
        dear = self._dearness[group] if self.cuts and self._dearness else 1.0
        cost = self._cost_of(group)
        return fragments_of(workload, self.index, group, cost, num_steps=num_steps, dear=dear)

    def await_advantages(self, group: int) -> None:
        """Note that a group has no advantages yet."""
        self.without_advantages.add(group)
        self.load_to_come += self._load_of(group)

    def give_advantages(self, group: int) -> None:
        """Note that a group, which had none, has advantages, or is given up."""
        self.without_advantages.remove(group)
        self.load_to_come -= self._load_of(group)

    def add_pairs(
        self, group: int, samples: tuple[int, ...], workload: Workload, layout: Layout
    ) -> None:
        """Make the pairs of a group's samples ready to train."""
        drawn = self.own_steps[group] if self.own_steps else ()
        dealt: dict[int, set[int]] = {}
        for place, sample in enumerate(sorted(samples)):
            for update in self.deal.updates_of(group, place):
                dealt.setdefault(update, set()).add(sample)
        for fragment in self._fragments_of(group, workload):
            pairs: list[PairBlock] = []
            for update, chosen in sorted(dealt.items()):
                there = [sample for sample in fragment.samples if sample in chosen]
                own_steps = own_steps_in(drawn, workload.group_size, self.deal.epoch_of(update))
                own = by_step(there, self.trained_steps, own_steps)
                if layout.packed:
                    pairs += pairs_by_step(fragment, own, update)
                else:
                    together = min(workload.samples_per_pack, workload.pack_size)
                    pairs += pairs_by_sample(fragment, own, together, update)
            if fragment in self.regenerating:
                self.parked[fragment] = pairs
            else:
                self.put(pairs)

    @cached_property
    def num_trained_steps(self) -> float:
        """Trained steps of a sample, in the mean of the groups."""
        return num_trained_steps(self.trained_steps, self.own_steps)

    def put(self, blocks: Iterable[PairBlock]) -> None:
        """Let pairs wait for their update, or for a device if it is the current one."""
        for update, own in groupby(blocks, lambda block: block.update):
            later = update != self.update
            pool = self.later.setdefault(update, PairPool()) if later else self.pool
            pool.add(own)

    def remove(self, is_gone: Callable[[Fragment], bool]) -> list[PairBlock]:
        """Take the pairs of fragments that are gone out of all pools."""
        pools = (self.pool, *self.later.values())
        return [block for pool in pools for block in pool.remove(is_gone)]

    def begin_next_update(self) -> bool:
        """Let the next update be trained; say whether there is one."""
        if self.update + 1 >= self.deal.num_updates:
            return False
        self.update += 1
        self.pool = self.later.pop(self.update, PairPool())
        self.trained, self.in_gradient = {}, []
        self.reducing = self.stepping = False
        return True

    def replace(self, groups: Mapping[int, int], workload: Workload) -> None:
        """Generate new groups in place of others, whose fragments nobody needs any more.

        Samples follow their candidates at once, and on the same version.
        """
        for old, new in groups.items():
            self.give_advantages(old)
            for fragment in self._fragments_of(old, workload):
                if fragment not in self.regenerating:  # else it still waits or is under way
                    self.held_on.pop(fragment, None)
            self.num_unscored -= len(self.unscored.pop(old))
            if workload.screens(old) and not workload.screens(new):
                self.queue.succeed(old, new)
            else:
                self.queue.admit(new)
            self._add_group(new, workload)

    def score(self, fragment: Fragment) -> bool:
        """Note the rewards of a fragment; return whether they were waited for."""
        waiting = self.unscored.get(fragment.group, set())
        if fragment not in waiting:
            return False
        waiting.remove(fragment)
        self.num_unscored -= 1
        return True

    def make_pack(self, blocks: tuple[PairBlock, ...], device: str) -> Pack:
        """Give pairs to a device."""
        pack = Pack(self.index, self.num_packs, blocks)
        self.num_packs += 1
        self.training[pack.index] = (pack, device)
        return pack

    def generate(self, batch: Batch, device: str) -> None:
        """Note that a device generates a batch."""
        for fragment in batch.fragments:
            self.generating[fragment] = device
            self.held_on.setdefault(fragment, set()).add(device)

    @cached_property
    def largest_cost(self) -> float:
        """Of a sample."""
        return max(self.costs, default=1.0)

    def load_left(self, workload: Workload) -> float:
        """Return the load of the pairs that no device was told to train, those to come included."""
        to_come = self.load_to_come * workload.trained_per_group
        later = sum(pool.load for pool in self.later.values())
        return self.pool.load + later + self.deal.epochs * to_come

    def samples_to_come(self, workload: Workload) -> float:
        """Return the load of the samples that candidates are chosen for: steps of the mean size."""
        if workload.screening is None:
            return 0.0
        groups = filter(workload.screens, self.without_advantages)
        loads = (self._cost_of(group) * self._steps_of(group, workload) for group in groups)
        return workload.group_size * sum(loads)

    def needs(self, device: str) -> bool:
        """Say whether a device has something of it: a stretch, a sum, or what it scores."""
        if device in self.trained or any(device in names for names in self.held_on.values()):
            return True
        told = (part for part, name in self.scored_on.items() if name == device)
        return any(part in self.unscored.get(part.group, ()) for part in told)

    @property
    def all_taken(self) -> bool:
        """Whether every pair exists and has a device, those of later updates included."""
        waiting = self.without_advantages or self.parked or self.regenerating or self.later
        return not (waiting or self.pool.num_pairs)

    @property
    def is_trained(self) -> bool:
        """Whether every pair is in some device's sum, or was."""
        return self.all_taken and not self.training

    @property
    def awaits_pairs(self) -> bool:
        """Whether groups of the current update have no advantages yet."""
        return any(self.deal.trains(self.update, group) for group in self.without_advantages)

    @property
    def update_is_trained(self) -> bool:
        """Whether every pair of the current update is in some device's sum."""
        waiting = self.parked or self.regenerating or self.training or self.pool.num_pairs
        return not (waiting or self.awaits_pairs)

    def validate(self) -> None:
        """Raise AssertionError if what is kept up to date is not what it should be."""
        self.queue.validate()
        for pool in (self.pool, *self.later.values()):
            pool.validate()
        assert all(block.update == self.update for block in self.pool.blocks)
        assert self.update < min(self.later, default=self.deal.num_updates)
        assert self.num_unscored == sum(map(len, self.unscored.values()))
        assert self.num_to_generate == len(self.queue) + len(self.generating)
        assert self.load_to_come == sum(map(self._load_of, self.without_advantages))
