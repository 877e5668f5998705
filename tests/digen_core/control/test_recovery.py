"""What lost devices held is done again: scenes by hand."""

import pytest

from digen_core.control import protocol as p
from digen_core.control.controller import Controller
from digen_core.control.fragments import fragments_of
from digen_core.control.layout import LAYOUTS
from digen_core.control.schedule import Schedule
from support.batches import alone
from support.random_cluster import TRAINED, make_costs, make_devices, make_workload

WORKLOAD = make_workload(num_groups=1, fragment_size=4, trained_per_group=4, pack_size=4)
(FRAGMENT,) = fragments_of(WORKLOAD, 0, 0)
PAIRS = [(step, sample) for step in TRAINED for sample in FRAGMENT.samples]


def trained(layout: str, *leaving: str) -> tuple[Controller, list[p.Train]]:
    """Return a controller whose devices train packs of a fragment that was on another one."""
    kinds = ("slow", "default", "slow", "slow", "slow")  # the second one generates
    devices = make_devices(layout, 2, 3, kinds)
    it = Controller(devices, WORKLOAD, Schedule(LAYOUTS[layout]), make_costs())
    for push in it.start():
        it.handle(p.VersionLoaded(push.device, push.version))
    (do,) = it.handle(p.IterationOffered(0, TRAINED))
    for name in leaving:  # so it trains nothing
        it.handle(p.DeviceLeaving(name))
    it.handle(p.BatchGenerated(alone(FRAGMENT)))
    it.handle(p.FragmentScored(FRAGMENT))
    trains = it.handle(p.AdvantagesComputed(0, (0,)))
    assert it.handle(p.DevicesLost((do.device,))) == [], "nobody needs it any more"
    return it, sorted(trains, key=lambda do: do.device)


def pairs_trained(it: Controller, trains: list[p.Instruction]) -> list[tuple[int, int]]:
    """Return the pairs that are trained until there is a gradient."""
    pairs = []
    while isinstance(trains[0], p.Train):
        blocks = trains[0].pack.blocks
        pairs += [(block.step, sample) for block in blocks for sample in block.samples]
        trains = trains[1:] + it.handle(p.PackTrained(trains[0].pack))
    assert isinstance(trains[0], p.Reduce)
    return sorted(pairs)


@pytest.mark.parametrize("last", ["lost", "too large"])
def test_pairs_wait_for_transitions_that_are_generated_again(last):
    """For a trainer that was lost; then another one is, or its pack is too large."""
    it, (first, second, third) = trained("tsp")
    (again,) = it.handle(p.DevicesLost((second.device,)))
    assert again == p.Generate(alone(FRAGMENT), 0, 4, 0, again.device)
    event = p.DevicesLost((third.device,)) if last == "lost" else p.PackTooLarge(third.pack)
    assert it.handle(event) == []
    it.validate()
    trains = it.handle(p.BatchGenerated(alone(FRAGMENT)))
    assert pairs_trained(it, [first, *trains]) == PAIRS


@pytest.mark.parametrize(
    ("layout", "leaving"), [("tsp", ()), ("colocated-strong", ("worker-1",))], ids=str
)
def test_a_pack_that_is_too_large_waits_for_transitions_that_are_gone(layout, leaving):
    it, (first, *others) = trained(layout, *leaving)
    (again,) = it.handle(p.PackTooLarge(first.pack))
    assert again == p.Generate(alone(FRAGMENT), 0, 4, 0, again.device)
    it.validate()
    trains = it.handle(p.BatchGenerated(alone(FRAGMENT)))
    assert pairs_trained(it, [*others, *trains]) == PAIRS
