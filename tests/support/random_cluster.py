"""A cluster that carries out instructions in random order, and checks what must always hold."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from random import Random
from statistics import fmean
from typing import Any, get_args

from digen_core.control import protocol as p
from digen_core.control.controller import Controller
from digen_core.control.costs import Costs, DeviceCosts, Linear
from digen_core.control.layout import LAYOUTS, LayoutName
from digen_core.control.schedule import UNMIXED, GroupOrder, Mixing, Schedule, Workload

Pair = tuple[int, int, int, int]  # update, group, step, sample

ROLLOUT: frozenset[p.Role] = frozenset({"rollout"})
TRAINER: frozenset[p.Role] = frozenset({"trainer"})
NUM_STEPS = 4
TRAINED = (0, 2)
OWN_TRAINED = {2: (1,), 3: (0, 1, 2), NUM_STEPS: TRAINED}
"""By their number of steps, which of them trajectories train."""


def make_devices(
    layout: LayoutName,
    num_rollout: int,
    num_trainers: int,
    kinds: Sequence[str] = ("default",),
    sites: Sequence[str] = ("",),
    sizes: Sequence[int] = (1,),
) -> list[p.Device]:
    """Return devices whose kinds, sites, and numbers of members, take turns."""

    def devices(name: str, roles: frozenset[p.Role], number: int) -> list[p.Device]:
        return [
            p.Device(
                f"{name}-{i}",
                roles,
                kinds[i % len(kinds)],
                size=sizes[i % len(sizes)],
                site=sites[i % len(sites)],
            )
            for i in range(number)
        ]

    if LAYOUTS[layout].colocated:
        return devices("worker", ROLLOUT | TRAINER, num_rollout + num_trainers)
    return devices("rollout", ROLLOUT, num_rollout) + devices("trainer", TRAINER, num_trainers)


def make_costs(switch: float = 0.0) -> Costs:
    kinds = {
        kind: DeviceCosts(
            step=Linear(fixed=s, per_item=s), pack=Linear(fixed=5 * s, per_item=5 * s)
        )
        for kind, s in {"default": 0.1, "slow": 0.2}.items()
    }
    return Costs(kinds=kinds, switch_to_rollout=switch, switch_to_trainer=switch)


def make_workload(**changes: Any) -> Workload:
    shape = {
        "num_groups": 2,
        "group_size": 4,
        "fragment_size": 2,
        "num_steps": NUM_STEPS,
        "pack_size": 4,
        "trained_per_group": 4,
    }
    return Workload(**{**shape, **changes})


def make_controller(
    layout: LayoutName = "disaggregated",
    num_rollout: int = 1,
    num_trainers: int = 1,
    *,
    switch: float = 0.0,
    workload: Workload | None = None,
    **schedule: Any,
) -> Controller:
    devices = make_devices(layout, num_rollout, num_trainers)
    made = Schedule(LAYOUTS[layout], **schedule)
    return Controller(devices, workload or make_workload(), made, make_costs(switch))


class RandomCluster:
    """Runs a controller to the end of ``num_iterations``; every check is an assertion."""

    def __init__(
        self,
        controller: Any,
        workload: Workload,
        schedule: Schedule,
        devices: Sequence[p.Device],
        *,
        random: Random,
        skipped: Iterable[tuple[int, int]] = (),
        refill: int = 0,
        not_updated: Iterable[int] = (),
        mixed: Random | None = None,  # draws costs and steps of groups; None: all are alike
    ) -> None:
        self.mixed = mixed
        self.offers: dict[int, p.IterationOffered] = {}
        self.it, self.workload, self.schedule, self.random = controller, workload, schedule, random
        self.devices = {device.name for device in devices}
        self.gone: list[p.Device] = []  # lost; they may come back
        self.known = {device.name: device for device in devices}
        #: In the order in which they came: the first holds the state, the second copies it.
        self.trainers = [d.name for d in devices if "trainer" in d.roles]
        #: Versions of the optimizer's state.
        self.states: dict[str, set[int]] = {name: set() for name in self.devices}
        self.states[self.trainers[0]] = {0}
        self.skipped = set(skipped)  # (iteration, group)
        self.not_updated = set(not_updated)  # iterations of which an update's gradient is NaN
        self.refill = refill  # times that each of them may be replaced
        self.replaced: set[tuple[int, int]] = set()
        self.successors: dict[tuple[int, int], int] = {}
        self.screened: set[p.Fragment] = set()  # candidates with rewards
        #: In order, as a worker runs them.
        self.queues: dict[str, list[p.Instruction]] = {name: [] for name in self.devices}
        self.others: list[p.Instruction] = []  # scores, pushes: in any order
        self.held: dict[str, set[int]] = {name: set() for name in self.devices}
        self.version = 0
        self.next_step: dict[p.Fragment, int] = {}
        self.version_of: dict[tuple[int, int], int] = {}
        self.steps_done: dict[tuple[p.Fragment, int], int] = defaultdict(int)
        self.on: dict[p.Fragment, set[str]] = defaultdict(set)
        self.with_advantages: dict[tuple[int, int], tuple[int, ...]] = {}
        self.sums: dict[str, list[p.Pack]] = defaultdict(list)
        self.trained: dict[tuple[int, int], list[Pair]] = {}  # by iteration and update
        self.reduced = 0  # the update whose gradient is whole
        self.made_in: dict[int, int] = {}  # version -> iteration
        self.pausing: set[p.Batch] = set()
        self.finished: list[p.FinishIteration] = []
        self.num_pauses = self.num_lost = self.num_joined = self.num_left = 0
        self.num_successors = self.num_steps = self.num_batches = 0
        self.fits, self.holder_odds = 10**9, 0.0

    def run(
        self,
        num_iterations: int,
        *,
        pause_odds: float = 0.0,
        losses: int = 0,
        holder_odds: float = 0.2,
        joins: bool = False,
        leaves: int = 0,
        fits: int = 10**9,
        late_odds: float = 0.0,
    ) -> None:
        """Run to the end.

        Args:
            num_iterations: to run.
            pause_odds: that a fragment is paused.
            losses: devices to lose, some of them together.
            holder_odds: that one of those is the holder of the state, if another has that, too.
            joins: whether they come back; then all that generate may be lost.
            leaves: devices that are asked to leave.
            fits: pairs in the memory of a device.
            late_odds: that a fragment under way is late, before anything else happens.
        """
        self.fits, self.holder_odds = fits, holder_odds
        offered = len(self.finished)
        if not offered:  # else it goes on
            self.carry_out(self.it.start())
        while len(self.finished) < num_iterations:
            while offered < min(
                num_iterations, len(self.finished) + 1 + self.schedule.max_staleness
            ):
                self.tell(self._offer(offered))
                offered += 1
            if losses and self.random.random() < self._loss_odds():
                losses = max(0, losses - self._lose_some(spare=not joins))
                continue
            if leaves and self.random.random() < 0.05:
                leaves -= 1
                self._ask_to_leave()
                continue
            choices = [name for name in sorted(self.queues) if self.queues[name]]
            is_stuck = not (choices or self.others)
            if joins and self.gone and (is_stuck or self.random.random() < 0.05):
                self._join_one()
                continue
            assert not is_stuck, f"deadlock: {self.it!r}"
            self._be_late(late_odds)
            place = self.random.randrange(len(choices) + len(self.others))
            if place >= len(choices):
                do = self.others.pop(self._first_push(place - len(choices)))
            else:
                do = self.queues[choices[place]].pop(0)
            self.tell(self._event_of(do, pause_odds))

    def settle(self) -> None:
        """Do what is still under way when all iterations are over: nothing is told any more.

        There is no flow run in which it would show.
        """
        while under_way := [own for own in (self.others, *self.queues.values()) if own]:
            event = self._event_of(self.random.choice(under_way).pop(0), 0.0)
            told = self.it.handle(event)
            assert not told, f"no iteration is open: {told}"

    def _be_late(self, odds: float) -> None:
        """Tell, maybe, that a fragment is late that is under way."""
        first = (own[0] for _, own in sorted(self.queues.items()) if own)
        told = [do for do in first if isinstance(do, p.Generate)]
        if odds and told and self.random.random() < odds:
            do = self.random.choice(told)
            self.tell(p.BatchLate(do.batch, self.random.choice([1.5, 4.0])))

    def _offer(self, index: int) -> p.IterationOffered:
        costs: tuple[float, ...] = ()
        steps: tuple[int, ...] = ()
        mixing, draw = UNMIXED, self.mixed
        if draw is not None:
            groups = range(self.num_drawn)
            if draw.random() < 0.7:
                costs = tuple(draw.choice([0.1, 1 / 3, 1.0, 2.5, 8.0]) for _ in groups)
            if draw.random() < 0.7:
                steps = tuple(draw.choice([*OWN_TRAINED]) for _ in groups)
            mixing = Mixing(draw.choice(get_args(GroupOrder)), draw.random() < 0.5)
        own = tuple((OWN_TRAINED[number],) * self.workload.group_size for number in steps)
        trained = tuple(sorted({step for group in own for step in group[0]})) or TRAINED
        units = range(self.workload.dealt_units)
        orders = [self.random.sample(units, len(units)) for _ in range(self.workload.epochs)]
        deal = self.workload.deal(orders)
        self.offers[index] = p.IterationOffered(
            index, trained, costs, mixing, deal, own, group_steps=steps
        )
        return self.offers[index]

    @property
    def num_drawn(self) -> int:
        """Groups of an iteration, those that may take the place of others included."""
        return self.workload.num_groups * (1 + self.refill) * len(self.workload.kinds_of_groups)

    def _loss_odds(self) -> float:
        """An update is a few events of hundreds: the holder is lost then as often as before."""
        is_updating = any(isinstance(do, p.Reduce | p.CopyState) for do in self.others)
        return 0.05 + 0.2 * self.holder_odds * is_updating

    def _lose_some(self, *, spare: bool) -> int:
        """Lose some devices at once, not all that have the state; return how many.

        Args:
            spare: one that generates.
        """
        holder = self.trainers[0]
        names = [name for name in sorted(self.devices) if name != holder]
        lost = self.random.sample(names, min(len(names), self.random.randint(1, 3)))
        if self.random.random() < self.holder_odds:
            with_holder = ([holder, *lost[1:]], [holder], lost)
            lost = next(own for own in with_holder if self._survive(own))
        generating = {name for name in self.devices if "rollout" in self.known[name].roles}
        if not lost or (spare and generating <= set(lost)):
            return 0
        self._void_reductions(set(lost))
        for name in lost:
            self._forget(name)
        if holder in lost:
            self.num_successors += 1
            gone = (p.CopyState, p.Push)
            self.others = [do for do in self.others if not isinstance(do, gone)]
        self.num_lost += len(lost)
        self.tell(p.DevicesLost(tuple(lost)))
        return len(lost)

    def _void_reductions(self, lost: set[str]) -> None:
        """Drop reductions of lost devices, of which nothing is heard; one may fail just before.

        Then the controller does not know of the loss yet: what it gives lost devices is lost, too.
        """
        reductions = [do for do in self.others if isinstance(do, p.Reduce)]
        for do in (do for do in reductions if lost.intersection((*do.devices, do.device))):
            self.others.remove(do)
            if do.device not in lost and self.random.random() < 0.5:
                self.tell(p.ReduceFailed(do.iteration))

    def _first_push(self, place: int) -> int:
        """Return the place of the first push to a device, in place of another one to it."""
        do = self.others[place]
        if not isinstance(do, p.Push):
            return place
        return next(
            at
            for at, own in enumerate(self.others)
            if isinstance(own, p.Push) and own.device == do.device
        )

    @property
    def num_behind(self) -> int:
        """Versions between the newest and the oldest that work may name."""
        return (self.schedule.num_ahead + 1) * self.workload.num_updates - 1

    def is_skipped(self, index: int, update: int) -> bool:
        """Say whether the gradient of an update is NaN."""
        return index in self.not_updated and update == index % self.workload.num_updates

    def updates_of(self, index: int) -> list[int]:
        """Return the updates of an iteration that made a version."""
        own = [update for (of, update), pairs in sorted(self.trained.items()) if of == index]
        return [update for update in own if not self.is_skipped(index, update)]

    def _survive(self, lost: list[str]) -> bool:
        """Say whether the state is left; a run that is not stale has it wherever a copy is."""
        left = [name for name in self.trainers if name not in lost]
        has = bool(left) and self.version in self.states[left[0]]
        survives = bool(self.it.survives(lost))
        assert survives <= has
        assert has == survives or self.num_behind
        return survives

    def _forget(self, name: str) -> None:
        self.gone.append(self.known[name])
        self.devices.remove(name)
        del self.queues[name], self.held[name], self.states[name]
        self.trainers = [own for own in self.trainers if own != name]
        self.sums.pop(name, None)
        gone = (p.Score, p.Push, p.CopyState)
        self.others = [d for d in self.others if not (isinstance(d, gone) and d.device == name)]
        for fragment in [f for f, held in self.on.items() if name in held]:
            self.next_step[fragment] = 0
            del self.on[fragment]
            for step in range(NUM_STEPS):
                self.steps_done.pop((fragment, step), None)

    def _join_one(self) -> None:
        """Let a lost device come back without what it held."""
        device = self.gone.pop(self.random.randrange(len(self.gone)))
        self.devices.add(device.name)
        self.queues[device.name], self.held[device.name] = [], set()
        self.states[device.name] = set()
        if "trainer" in device.roles:
            self.trainers.append(device.name)
        self.num_joined += 1
        self.tell(p.DeviceJoined(device))

    def _ask_to_leave(self) -> None:
        """Ask one of the devices that may leave, if there is one."""
        staying = sorted(self.devices - set(self.it.leaving))
        may = [name for name in staying if self.it.may_leave(name)]
        if may:
            self.tell(p.DeviceLeaving(self.random.choice(may)))

    def _release(self, name: str) -> None:
        """Let a device go, which has nothing to do."""
        assert not self.queues[name], "it has something to do"
        for do in self.others:
            assert name not in (getattr(do, "device", ""), getattr(do, "source", ""))
        assert self._survive([name]), "it had the only state"
        self._forget(name)
        self.num_left += 1

    def tell(self, event: p.Event) -> None:
        self.carry_out(self.it.handle(event))
        self.it.validate()

    def carry_out(self, instructions: list[p.Instruction]) -> None:
        for do in instructions:
            match do:
                case p.FinishIteration(index, updated):
                    assert index == len(self.finished), "iterations finish in order"
                    assert updated == bool(self.updates_of(index))
                    self.finished.append(do)
                case p.Pause(batch):
                    self.pausing.add(batch)
                case p.Release(device):
                    self._release(device)
                case p.Generate() | p.Train() | p.Switch() | p.Step():
                    self._check(do)
                    self.queues[do.device].append(do)
                case p.Score() | p.Reduce() | p.CopyState() | p.Push():
                    self._check(do)
                    self.others.append(do)
                case _:
                    self.others.append(do)

    def _check(self, do: p.Instruction) -> None:
        assert not isinstance(do, p.ComputeAdvantages | p.FinishIteration)
        assert do.device in self.devices, "work for a device that is not there"
        self._check_state(do)
        match do:
            case p.Generate(batch):
                self.num_batches += len({own.group for own in batch.fragments}) > 1
                assert len(batch.fragments) <= self.workload.fragments_per_batch
                for fragment in batch.fragments:
                    self._check_fragment(fragment, do)
            case p.Train():
                self._check_pack(do)
            case p.Score(fragment, device):
                self._check_whole(fragment)
                assert device in self.on[fragment], "it has nothing of the trajectory"
            case p.Push():
                self._check_crossing(do)
            case p.Reduce(_, devices):
                assert set(devices) == {name for name, packs in self.sums.items() if packs}

    def _check_pack(self, do: p.Train) -> None:
        """Chosen samples of whole trajectories are trained, on versions that are not too old."""
        assert do.version == self.version
        assert do.version in self.held[do.device]
        for block in do.pack.blocks:
            self._check_whole(block.fragment)
            group = (block.fragment.iteration, block.fragment.group)
            stale = do.version - self.version_of[group]
            most = (self.schedule.max_staleness + 1) * self.workload.num_updates - 1
            assert 0 <= stale <= most
            assert set(block.samples) <= set(self.with_advantages[group])

    def _check_whole(self, fragment: p.Fragment) -> None:
        """All steps of a trajectory are on devices that are there."""
        assert self.next_step.get(fragment) == fragment.num_steps, "some steps are missing"
        assert self.on[fragment] <= self.devices

    def _check_fragment(self, fragment: p.Fragment, do: p.Generate) -> None:
        """A fragment goes on where it was, on the version of its group, which is not too old."""
        offer, version = self.offers[fragment.iteration], do.version
        assert do.end_step == fragment.num_steps == self._steps_of(offer, fragment.group)
        if offer.mixing.cuts and fragment.num_samples > 1:
            dear = max(1.0, self._dearness_of(offer, fragment))
            assert dear * fragment.num_samples <= self.workload.fragment_size * 1.01
        assert do.first_step == self.next_step.get(fragment, 0) or self.num_lost
        assert version in self.held[do.device], "a version that the device does not hold"
        assert fragment not in self.screened, "a candidate is generated for nothing"
        group = (fragment.iteration, fragment.group)
        assert self.version_of.setdefault(group, version) == version, "versions mixed"
        ahead = (fragment.iteration - len(self.finished)) * self.workload.num_updates
        most = (self.schedule.max_staleness + 2) * self.workload.num_updates - 1
        assert self.version + ahead - version <= most

    def _steps_of(self, offer: p.IterationOffered, group: int) -> int:
        steps = offer.group_steps[group] if offer.group_steps else self.workload.num_steps
        return self.workload.steps_of(group, steps)

    def _dearness_of(self, offer: p.IterationOffered, fragment: p.Fragment) -> float:
        """Return what a sample takes to generate; with steps of their own, in the mean."""
        if not offer.group_steps:
            return fragment.cost
        costs = offer.group_costs or (1.0,) * len(offer.group_steps)
        work = [cost * steps for cost, steps in zip(costs, offer.group_steps, strict=True)]
        return work[fragment.group] / fmean(work)

    def _check_state(self, do: p.Instruction) -> None:
        match do:
            case p.Reduce(_, _, device):
                assert device == self.trainers[0]
            case p.Step(_, version, device):
                assert device == self.trainers[0]
                assert version == self.version
                assert version in self.states[device], "a state that the device does not have"
            case p.CopyState(version, device, source):
                assert [source, device] == self.trainers[:2]
                assert self.known[source].size == self.known[device].size == 1
                assert version == max(self.states[source]), "a state that the source has no more"
                assert not any(isinstance(own, p.Step) for own in self.queues[source])
            case p.Push(version) if version > self.version:
                self._check_safe(version)
                self.version = version
                self.sums.clear()

    def _check_crossing(self, do: p.Push) -> None:
        """A version crosses to a site once, unless devices are lost, and their versions with them.

        Devices that it was made on, or that hold it, are at the site of their own.
        """
        site = self.known[do.device].site
        if self.num_lost or self.known[do.source].site == site:
            return
        there = [name for name in self.devices if self.known[name].site == site]
        assert not any(do.version in self.held[name] for name in there), "it is there already"
        crossing = [own for own in self.others if isinstance(own, p.Push) and own.device in there]
        assert all(own.version != do.version for own in crossing), "it crosses twice"

    def _check_safe(self, version: int) -> None:
        """Before a version is used, a second device has its state, if there is one for it."""
        two = self.trainers[:2]
        are_alone = all(self.known[name].size == 1 for name in two)  # a gang deals its state
        safe = two if self.schedule.copies_state and are_alone else two[:1]
        assert all(version in self.states[name] for name in safe), "a version that may be lost"

    def _event_of(self, do: p.Instruction, pause_odds: float) -> p.Event:  # noqa: C901 - a table
        match do:
            case p.Generate(batch, first, end, _, device):
                asked = batch in self.pausing or self.random.random() < pause_odds
                self.pausing.discard(batch)
                last = self.random.randint(first + 1, end) if asked else end
                for fragment in batch.fragments:
                    if first == 0:
                        self.on[fragment] = set()  # what there was is not used any more
                    for step in range(first, last):
                        self.steps_done[fragment, step] += 1
                        assert self.steps_done[fragment, step] == 1 or self.num_lost, "step twice"
                    self.on[fragment].add(device)
                    self.next_step[fragment] = last
                if last < end:
                    self.num_pauses += 1
                    return p.BatchPaused(batch, last)
                return p.BatchGenerated(batch)
            case p.Score(fragment):
                if self.workload.screens(fragment.group):
                    self.screened.add(fragment)
                return p.FragmentScored(fragment)
            case p.ComputeAdvantages(index, groups) if new := self._replace(index, groups):
                return p.GroupsReplaced(index, new)
            case p.ComputeAdvantages(index, groups):
                chosen = tuple(self._choose() for _ in groups)
                for group, samples in zip(groups, chosen, strict=True):
                    self.with_advantages[index, group] = samples
                skipped = tuple(g for g in groups if (index, g) in self.skipped)
                return p.AdvantagesComputed(index, groups, skipped, chosen)
            case p.Train(pack) if pack.num_pairs > 1 and self.fits < max(pack.num_pairs, pack.load):
                return p.PackTooLarge(pack)
            case p.Train(pack, _, device):
                self.sums[device].append(pack)
                return p.PackTrained(pack)
            case p.Reduce(index):
                pairs = self._summed()
                (self.reduced,) = {update for update, *_ in pairs}
                self.trained[index, self.reduced] = pairs
                return p.GradientReduced(index)
            case p.Step(index, version) if self.is_skipped(index, self.reduced):
                self.sums.clear()
                return p.UpdateSkipped(index, version + 1)
            case p.Step(index, version, device):
                self.states[device].add(version + 1)
                self.made_in[version + 1] = index
                self.num_steps += 1
                return p.Stepped(version + 1)
            case p.CopyState(version, device):
                self.states[device].add(version)
                return p.StateCopied(device, version)
            case p.Push():
                return self._pushed(do)
            case p.Switch(device, role):
                return p.Switched(device, role)
        raise AssertionError(do)

    def _pushed(self, do: p.Push) -> p.Event:
        """Load a version, if its source has it, and drop those that are too old, as a worker."""
        version, held = do.version, self.held.get(do.source, set())
        if do.source not in self.devices or version not in held | self.states.get(do.source, set()):
            dropped = max(held, default=0) > version
            assert self.num_lost or dropped, "a source that never held the version"
            return p.PushFailed(do.device, version, do.source)
        near = (own for own in self.held[do.device] if abs(own - version) <= self.num_behind)
        self.held[do.device] = {version, *(own for own in near if not self._is_between(own))}
        return p.VersionLoaded(do.device, version)

    def _is_between(self, version: int) -> bool:
        """Say whether its iteration has made a newer version."""
        made_in = self.made_in.get(version)
        newer = (own for own in self.made_in if own > version)
        return made_in is not None and any(self.made_in[own] == made_in for own in newer)

    def _replace(self, index: int, groups: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
        """Return what takes the place of groups: of candidates, and of those without signal.

        That is g + N, refill times; in place of candidates that lack a number, the next ones.
        """
        number = self.workload.num_groups
        assert not self.replaced & {(index, group) for group in groups}, "asked about a gone group"
        found = []
        for group in groups:
            is_skipped, screens = (index, group) in self.skipped, self.workload.screens(group)
            assert not screens or len(groups) == 1, "candidates are compared with their own kind"
            new = group + number * (1 + (screens and is_skipped))
            if (screens or is_skipped) and new < self.num_drawn:
                found.append((group, new))
        self.replaced.update((index, group) for group, _ in found)
        self.successors.update({(index, group): new for group, new in found})
        return tuple(found)

    def _summed(self) -> list[Pair]:
        return [
            (block.update, block.fragment.group, block.step, sample)
            for packs in self.sums.values()
            for pack in packs
            for block in pack.blocks
            for sample in block.samples
        ]

    def _choose(self) -> tuple[int, ...]:
        everyone = range(self.workload.group_size)
        return tuple(sorted(self.random.sample(everyone, self.workload.trained_per_group)))

    def expected_pairs(self, index: int) -> set[Pair]:
        pairs: set[Pair] = set()
        for slot in range(self.workload.num_groups):
            group = slot
            while (index, group) in self.replaced:
                group = self.successors[index, group]
            if (index, group) in self.skipped:
                continue
            for place, sample in enumerate(self.with_advantages[index, group]):
                for update in self.offers[index].deal.updates_of(group, place):
                    steps = OWN_TRAINED[self._steps_of(self.offers[index], group)]
                    pairs |= {(update, group, step, sample) for step in steps}
        return pairs

    def check_versions(self) -> None:
        """Groups begin on what iterations end with, and not on too old ones."""
        ends = {index: version for version, index in sorted(self.made_in.items())}
        for (index, group), version in self.version_of.items():
            new = self.successors.get((index, group))
            if self.workload.screens(group) and new is not None and not self.workload.screens(new):
                assert self.version_of[index, new] == version, "another version than screened"
            assert version in (0, *ends.values()), "a version that is only trained on generated"
            between = [own for own in ends if own < index and ends[own] > version]
            assert len(between) <= (self.schedule.max_staleness if self.schedule.num_ahead else 0)
