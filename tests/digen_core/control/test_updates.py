"""Several updates of an iteration: scenes by hand."""

from dataclasses import replace

import pytest

from digen_core.control import protocol as p
from digen_core.control.controller import Controller
from digen_core.control.fragments import fragments_of
from digen_core.control.generation import group_order
from digen_core.control.iteration import Iteration
from digen_core.control.layout import LAYOUTS
from digen_core.control.schedule import Schedule, Workload
from support.batches import alone
from support.carried_out import done
from support.random_cluster import (
    TRAINED,
    make_controller,
    make_costs,
    make_devices,
    make_workload,
)

ORDER = [[1, 0]]  # group 1 is dealt to the first update
WORKLOAD = make_workload(num_updates=2, pack_size=16)


def begun(layout):
    """Return a controller whose devices hold version 0, and what it says to a first iteration."""
    it = make_controller(layout, workload=WORKLOAD)
    for push in it.start():
        it.handle(p.VersionLoaded(push.device, push.version))
    return it, it.handle(p.IterationOffered(0, TRAINED, deal=WORKLOAD.deal(ORDER)))


def generated(it, group):
    """Return what is said when the last fragment of a group has its rewards."""
    said = []
    for fragment in fragments_of(WORKLOAD, 0, group):
        said = it.handle(p.BatchGenerated(alone(fragment)))
        said += it.handle(p.FragmentScored(fragment))
    return said


def trained(it, trains):
    """Return what is said when packs are trained, and those that follow."""
    while isinstance(trains[0], p.Train):
        trains = trains[1:] + it.handle(p.PackTrained(trains[0].pack))
    return trains


def test_the_first_update_is_made_while_the_second_ones_groups_are_generated():
    it, told = begun("tsp")
    assert [do.batch.fragments[0].group for do in told] == [1]  # of the first update
    assert p.ComputeAdvantages(0, (1,)) in generated(it, 1)
    trains = it.handle(p.AdvantagesComputed(0, (1,)))
    assert {block.update for do in trains for block in do.pack.blocks} == {0}
    assert trained(it, trains) == [p.Reduce(0, ("trainer-0",), "trainer-0")]
    assert it.handle(p.GradientReduced(0)) == [p.Step(0, 0, "trainer-0")]
    assert it.handle(p.Stepped(1)) == [p.Push(1, "trainer-0", "trainer-0")]  # who trains alone
    assert it.handle(p.VersionLoaded("trainer-0", 1)) == []
    first, second = fragments_of(WORKLOAD, 0, 0)
    told = it.handle(p.BatchGenerated(alone(first)))
    assert p.Generate(alone(second), 0, 4, 0, "rollout-0") in told  # with the version of the start
    it.handle(p.FragmentScored(first))
    it.handle(p.BatchGenerated(alone(second)))
    it.handle(p.FragmentScored(second))
    (train,) = it.handle(p.AdvantagesComputed(0, (0,)))
    assert (train.version, train.pack.num_pairs) == (1, 8)
    assert trained(it, [train]) == [p.Reduce(0, ("trainer-0",), "trainer-0")]
    assert it.handle(p.GradientReduced(0)) == [p.Step(0, 1, "trainer-0")]
    assert it.handle(p.Stepped(2)) == [
        p.Push(2, "rollout-0", "trainer-0"),
        p.Push(2, "trainer-0", "trainer-0"),
    ]
    assert it.handle(p.VersionLoaded("trainer-0", 2)) == []
    assert it.handle(p.VersionLoaded("rollout-0", 2)) == [p.FinishIteration(0, updated=True)]


@pytest.mark.parametrize("layout", ["tsp", "gap"])
def test_samples_train_the_steps_of_the_epoch_by_hand(layout):
    work = Workload(1, 2, 2, 4, 8, 2, num_updates=4, epochs=2, dealt_by="samples")
    drawn = (0, 1), (2, 3), (1, 3), (0, 2)  # of two samples in the first epoch, and in the second
    offer = p.IterationOffered(0, (0, 1, 2, 3), deal=work.deal([[0, 1], [1, 0]]))
    for own_steps, last in (((drawn,), (drawn[3], drawn[2])), ((drawn[:2],), (drawn[1], drawn[0]))):
        it = Iteration.begin(replace(offer, own_steps=own_steps), (0,), work)
        it.add_pairs(0, (0, 1), work, LAYOUTS[layout])
        pools = [it.pool, *(it.later[update] for update in (1, 2, 3))]
        found = [
            [(sample, block.step) for block in pool.blocks for sample in block.samples]
            for pool in pools
        ]
        samples = zip((0, 1, 1, 0), (drawn[0], drawn[1], *last), strict=True)
        assert found == [[(sample, step) for step in steps] for sample, steps in samples]


def between():
    """Return a controller whose first update is made."""
    it, _ = begun("tsp")
    generated(it, 1)
    trained(it, it.handle(p.AdvantagesComputed(0, (1,))))
    it.handle(p.GradientReduced(0))
    it.handle(p.Stepped(1))
    it.handle(p.VersionLoaded("trainer-0", 1))
    return it


def at_second(skipped=()):
    """Return a controller whose second update is trained but for its step."""
    it = between()
    generated(it, 0)
    told = it.handle(p.AdvantagesComputed(0, (0,), skipped))
    return it, trained(it, told) if isinstance(told[0], p.Train) else told


def test_a_last_update_without_signal_leaves_the_version_before():
    """Which the devices that generate get then."""
    it, told = at_second(skipped=(0,))
    assert told == [p.Push(1, "rollout-0", "trainer-0")]
    assert it.handle(p.VersionLoaded("rollout-0", 1)) == [p.FinishIteration(0, updated=True)]
    told = it.handle(p.IterationOffered(1, TRAINED, deal=WORKLOAD.deal(ORDER)))
    assert [do.version for do in told] == [1]


def test_a_last_update_that_is_skipped_leaves_the_version_before():
    it, _ = at_second()
    it.handle(p.GradientReduced(0))
    assert it.handle(p.UpdateSkipped(0, 2)) == [p.Push(1, "rollout-0", "trainer-0")]
    assert it.handle(p.VersionLoaded("rollout-0", 1)) == [p.FinishIteration(0, updated=True)]


def test_a_first_update_without_signal_goes_on_with_the_second():
    it, _ = begun("tsp")
    generated(it, 1)
    assert it.handle(p.AdvantagesComputed(0, (1,), (1,))) == []
    generated(it, 0)
    (train,) = it.handle(p.AdvantagesComputed(0, (0,)))
    assert train.version == 0
    assert {block.update for block in train.pack.blocks} == {1}


def test_an_iteration_without_any_signal_makes_no_version():
    it, _ = begun("tsp")
    generated(it, 1)
    it.handle(p.AdvantagesComputed(0, (1,), (1,)))
    generated(it, 0)
    assert it.handle(p.AdvantagesComputed(0, (0,), (0,))) == [p.FinishIteration(0, updated=False)]


def test_who_joins_between_two_updates_gets_both_versions():
    it = between()
    told = it.handle(p.DeviceJoined(p.Device("trainer-1", frozenset({"trainer"}))))
    assert [do.version for do in told if isinstance(do, p.Push)] == [0, 1]


def test_who_joins_may_get_the_newest_version_first():
    """Who gave away the other one failed: it is held beside the newest, though it comes later."""
    it = between()
    it.handle(p.DeviceJoined(p.Device("trainer-1", frozenset({"trainer"}))))
    again = p.Push(0, "trainer-1", "trainer-0")
    assert it.handle(p.PushFailed("trainer-1", 0, "rollout-0")) == [again]
    it.handle(p.VersionLoaded("trainer-1", 1))
    it.handle(p.VersionLoaded("trainer-1", 0))
    (state,) = (own for own in it.snapshot().fleet.devices if own.name == "trainer-1")
    assert state.loaded == {0, 1}


@pytest.mark.parametrize(
    ("costs", "order", "expected"),
    [
        ((), "listed", (1, 3, 0, 2)),
        ((1.0, 1.0, 2.0, 0.5), "cheap-first", (3, 1, 0, 2)),
        ((1.0, 1.0, 2.0, 0.5), "dear-first", (1, 3, 2, 0)),
    ],
)
def test_groups_of_the_first_update_are_generated_first(costs, order, expected):
    deal = make_workload(num_groups=4, num_updates=2).deal([[3, 1, 0, 2]])
    assert group_order(4, costs, order, deal) == expected


@pytest.mark.parametrize("layout", ["colocated", "colocated-strong"])
def test_devices_train_again_what_was_lost_as_another_updates_sums_were_added_up(layout):
    """The state's holder is lost, which had trained nothing, and the update comes to nothing."""
    work = {"num_groups": 4, "group_size": 2, "fragment_size": 2, "trained_per_group": 1}
    workload = make_workload(**work, num_updates=2, epochs=2, pack_size=64, samples_per_pack=64)
    schedule = Schedule(LAYOUTS[layout], queue_depth=2, copies_state=True)
    devices = make_devices(layout, 2, 2, ("slow", "default", "default", "default"))
    it = Controller(devices, workload, schedule, make_costs())
    asked = it.start()
    asked += it.handle(p.IterationOffered(0, (0,), (), deal=workload.deal([[0, 1, 2, 3]] * 2)))
    lost, is_skipped = "", False
    while not isinstance(do := asked.pop(0), p.FinishIteration):  # IndexError: it stands still
        if isinstance(do, p.Reduce) and not lost:
            lost = it.holder
            asked = [other for other in asked if getattr(other, "device", "") != lost]
            asked += it.handle(p.DevicesLost((lost,)))
        elif isinstance(do, p.Step) and not is_skipped:
            is_skipped = True
            asked += it.handle(p.UpdateSkipped(do.iteration, do.version + 1))
        elif isinstance(do, p.ComputeAdvantages):
            trained = tuple((0,) for _ in do.groups)
            asked += it.handle(p.AdvantagesComputed(do.iteration, do.groups, (2, 3), trained))
        else:
            asked += it.handle(done(do))
    assert lost
    assert is_skipped
