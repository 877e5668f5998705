"""What holds of a controller between two events, beside its indices: for tests, and replays.

Every function raises AssertionError where it does not.
"""

from collections import Counter
from itertools import pairwise

from digen_core.control.protocol import Batch, Fragment, Generate, Pack, Switch, Train
from digen_core.control.schedule import Workload
from digen_core.control.snapshot import IterationSnapshot, Snapshot


def check(now: Snapshot) -> None:
    """Check what its parts say of each other, and each part by itself."""
    _check_order(now)
    _check_devices(now)
    for place, iteration in enumerate(now.iterations):
        _check_groups(iteration, now)
        _check_fragments(iteration, now)
        _check_packs(iteration, now, is_oldest=place == 0)


def _check_order(now: Snapshot) -> None:
    """Iterations follow each other: finishing, open, offered, and the next one."""
    indices = [finish.iteration for finish, _ in now.finishing]
    indices += [iteration.index for iteration in now.iterations]
    indices += [offer.iteration for offer in now.offered]
    assert [*indices, now.next_iteration] == list(
        range(now.next_iteration - len(indices), now.next_iteration + 1)
    ), "iterations are not in order"
    room = now.schedule.num_ahead + 1
    assert len(now.iterations) == room if now.offered else len(now.iterations) <= room
    assert now.version >= now.generating[-1]
    assert list(now.generating) == sorted(set(now.generating))
    assert len(now.generating) <= room, "versions that nobody needs"
    versions = [version for _, version in now.finishing]
    assert all(before <= after for before, after in pairwise([*versions, now.version]))
    if now.finishing:
        newest = [max(state.loaded, default=-1) for state in now.fleet.devices]
        is_late = bool(now.awaited()) or min(newest) < versions[0]
        assert is_late, "an iteration is over and nobody was told"


def _check_devices(now: Snapshot) -> None:
    """Devices do what their iterations say, each thing once, with versions that were made."""
    states = now.fleet.devices
    assert [state.number for state in states] == sorted({state.number for state in states})
    assert all(state.number < now.fleet.num_added for state in states)
    assert now.fleet.holder in {state.name for state in states}, "the holder is gone"
    trainers = [state for state in states if "trainer" in state.device.roles]
    assert trainers[0].name == now.fleet.holder, "the first trainer is the holder"
    for do in now.copies.under_way:
        assert [do.source, do.device] == [s.name for s in trainers[:2]], "who copies is no standby"
        assert do.version <= now.version or now.iterations[0].stepping, "no such state"
    for state in states:
        assert all(now.version >= version >= 0 for version in state.loaded | state.copied)
        assert not state.copied or state in trainers[:2], "a copy that nobody follows with"
        assert all(do.device == state.name for do in state.queue)
        turns = sum(isinstance(do, Switch) for do in state.queue)
        assert len(state.queue) - turns <= now.schedule.queue_depth
        assert not state.pausing or state.generating, "it pauses what it does not do"
        assert state.largest_pack is None or state.largest_pack > 0
        assert all(d.version in state.loaded for d in state.queue if isinstance(d, Generate))
    queues = [do for state in states for do in state.queue]
    generating = [own for own in queues if isinstance(own, Generate)]
    versions = {it.index: it.versions for it in now.iterations}
    for own in generating:
        _check_batch(own.batch, now.workload)
        begun = {versions[part.iteration][part.group] for part in own.batch.fragments}
        assert begun == {own.version}, "a batch of several versions"
    told = Counter((part, own.device) for own in generating for part in own.batch.fragments)
    assert told == Counter(on for it in now.iterations for on in it.generating)
    packs = Counter((do.pack, do.device) for do in queues if isinstance(do, Train))
    packs.update((pack, state.name) for state in states for pack in state.packs)
    assert packs == Counter(on for it in now.iterations for on in it.training)


def _check_batch(batch: Batch, workload: Workload) -> None:
    """What is denoised together is alike, and not too much."""
    assert len(batch.fragments) <= workload.fragments_per_batch, "too many fragments in a batch"
    alike = {
        (own.iteration, own.cost, own.num_steps, workload.screens(own.group))
        for own in batch.fragments
    }
    assert len(alike) == 1, "fragments in a batch that are not alike"


def _check_groups(it: IterationSnapshot, now: Snapshot) -> None:
    """Groups are generated in order, on versions that were made, and some of them are replaced."""
    groups = set(it.groups)
    assert len(groups) == len(it.groups)
    assert len(it.unscored) == now.workload.num_groups
    assert groups >= it.unscored.keys() >= set(it.without_advantages)
    assert groups >= it.versions.keys() >= set(it.stale)
    limit = it.stale_limit or now.schedule.stale_limit(now.workload.num_groups)
    assert len(it.stale) <= limit.number
    assert set(it.versions.values()) <= set(now.generating), "a group of a version between two"
    assert set(it.without_advantages) >= {group for group, left in it.unscored.items() if left}


def _check_fragments(it: IterationSnapshot, now: Snapshot) -> None:
    """Each fragment that has no rewards is at one place, on a device that is there."""
    names = {state.name for state in now.fleet.devices}
    waiting, generating = dict(it.waiting), dict(it.generating)
    to_score = {do.fragment for do in it.to_score}
    scored_on, held_on = dict(it.scored_on), dict(it.held_on)
    assert not waiting.keys() & generating.keys()
    assert names.issuperset(name for held in held_on.values() for name in held)
    assert set(it.to_restart) <= generating.keys(), "what is to begin anew is not under way"
    under_way = waiting.keys() | generating.keys()
    assert set(it.regenerating) | dict(it.parked).keys() <= under_way, "lost, and nobody makes it"
    fragments: set[Fragment] = {part for left in it.unscored.values() for part in left}
    for part in fragments:
        is_told = scored_on.get(part) in names
        assert (part in under_way) + (part in to_score) + is_told >= 1, f"{part} is forgotten"
    for part in under_way:
        assert part.iteration == it.index
        assert part in fragments or part in it.regenerating, f"{part} is generated for nobody"
    for part, next_step in waiting.items():
        assert 0 <= next_step < part.num_steps <= now.workload.num_steps
        assert next_step == 0 or part in held_on, f"the steps of {part} are nowhere"


def _check_packs(it: IterationSnapshot, now: Snapshot, *, is_oldest: bool) -> None:
    """Only the oldest iteration is trained, each pair once, and it is reduced and stepped then."""
    packs: list[Pack] = [pack for pack, _ in it.training]
    packs += [pack for done in it.trained.values() for pack in done]
    packs += it.in_gradient
    numbers = [pack.index for pack in packs]
    assert len(set(numbers)) == len(numbers), "a pack was given twice"
    assert all(number < it.num_packs for number in numbers)
    assert is_oldest or not (it.num_packs or it.reducing or it.stepping)
    assert {state.name for state in now.fleet.devices} >= set(dict(it.training).values())
    assert {state.name for state in now.fleet.devices} >= it.trained.keys()
    if it.stepping:
        assert it.reducing, "a step without its gradient"
    else:
        assert not it.in_gradient, "there is no gradient"
    taken = [block for pack in packs for block in pack.blocks]
    assert all(block.update == it.update for block in (*it.pool, *taken)), "another update's pair"
    whole = dict(it.held_on).keys() - set(it.regenerating)
    ready = {block.fragment for block in (*it.pool, *it.later)}
    assert whole >= ready, "a pair waits for a device whose transitions are gone"
    parked = [block for _, own in it.parked for block in own]
    assert all(block.update >= it.update for block in (*it.later, *parked))
    pairs = [
        (block.update, block.fragment.group, block.step, sample)
        for block in (*it.pool, *it.later, *taken, *parked)
        for sample in block.samples
    ]
    assert len(set(pairs)) == len(pairs), "a pair is there twice"
    if it.reducing:
        left: list[object] = [*it.pool, *it.training]
        left += [block for block in parked if block.update == it.update]
        left += [own for own in it.without_advantages if it.deal.trains(it.update, own)]
        assert it.trained or it.in_gradient
        assert not left, "it is reduced, and something is left to train"
