"""Every layout under every order of completion: nothing is lost, repeated, mixed or too stale."""

from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from digen_core.control import protocol as p
from digen_core.control.controller import Controller
from digen_core.control.layout import LAYOUTS
from digen_core.control.schedule import Schedule
from digen_core.control.state import ControllerError
from digen_core.eventlog.waiting import waiting
from support.batches import alone
from support.carried_out import done
from support.control_strategies import NUM_ITERATIONS, schedules, workloads
from support.random_cluster import (
    TRAINED,
    RandomCluster,
    make_controller,
    make_costs,
    make_devices,
    make_workload,
)

EXAMPLES = settings.default.max_examples
"""Of the profile: what is drawn below from seeds of its own is drawn in the same measure."""


def run(
    schedule,
    workload,
    num_rollout,
    num_trainers,
    switch,
    random,
    skipped=(),
    refill=0,
    not_updated=(),
    mixed=None,
    sizes=(1,),
    **options,
):
    kinds = ("default", "slow")[: 1 + num_rollout % 2]
    sites = ("a", "b")[: 1 + num_trainers % 2]
    devices = make_devices(schedule.layout.name, num_rollout, num_trainers, kinds, sites, sizes)
    it = Controller(devices, workload, schedule, make_costs(switch))
    cluster = RandomCluster(
        it,
        workload,
        schedule,
        devices,
        random=random,
        skipped=skipped,
        refill=refill,
        not_updated=not_updated,
        mixed=mixed,
    )
    cluster.run(NUM_ITERATIONS, late_odds=0.1, **options)
    cluster.settle()
    for index in range(NUM_ITERATIONS):
        trained = [pair for (of, _), own in cluster.trained.items() if of == index for pair in own]
        assert len(trained) == len(set(trained)), "a pair was trained twice"
        assert set(trained) == cluster.expected_pairs(index)
    assert cluster.version == sum(len(cluster.updates_of(i)) for i in range(NUM_ITERATIONS))
    cluster.check_versions()
    return cluster


@settings(max_examples=EXAMPLES * 3)
@given(
    schedules(),
    workloads(),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.3, 3.0]),
    st.randoms(use_true_random=False),
    st.sets(st.tuples(st.integers(0, 2), st.integers(0, 7)), max_size=6),
    st.integers(0, 2),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([1, 2, 100]),
    st.sets(st.integers(0, 2), max_size=2),
    st.one_of(st.none(), st.randoms(use_true_random=False)),
)
def test_every_layout_in_every_order(
    schedule,
    workload,
    num_rollout,
    num_trainers,
    switch,
    random,
    skipped,
    refill,
    pause_odds,
    fits,
    not_updated,
    mixed,
):
    run(
        schedule,
        workload,
        num_rollout,
        num_trainers,
        switch,
        random,
        skipped,
        refill,
        not_updated,
        mixed,
        pause_odds=pause_odds,
        fits=fits,
    )


@st.composite
def stories(draw, num_trainers, losses, several_updates=False):
    """Arguments of ``run`` in which devices go, and maybe come back."""
    return {
        "schedule": draw(schedules()),
        "workload": draw(workloads(several_updates)),
        "num_rollout": draw(st.integers(2, 4)),
        "num_trainers": draw(num_trainers),
        "switch": draw(st.sampled_from([0.0, 0.3])),
        "random": draw(st.randoms(use_true_random=False)),
        "skipped": draw(st.sets(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=4)),
        "not_updated": draw(st.sets(st.integers(0, 2), max_size=2)),
        "mixed": draw(st.one_of(st.none(), st.randoms(use_true_random=False))),
        "sizes": draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)),
        "losses": draw(losses),
        "fits": draw(st.sampled_from([1, 3, 10**9])),
        "joins": draw(st.booleans()),
        "pause_odds": 0.1,
        "refill": 1,
    }


@pytest.mark.ci
@settings(max_examples=EXAMPLES * 2)
@given(stories(num_trainers=st.integers(1, 3), losses=st.integers(1, 4)))
def test_lost_devices_lose_nothing(story):
    run(**story)


@pytest.mark.nightly
@settings(max_examples=300)
@given(stories(st.integers(1, 3), losses=st.integers(0, 4), several_updates=True))
def test_several_updates_lose_nothing_in_300_orders(story):
    """Of 2, 3 and 4 updates an epoch, one or two epochs, under every layout and staleness."""
    assert run(**story).workload.num_updates > 1


@pytest.mark.ci
@settings(max_examples=EXAMPLES * 2)
@given(stories(num_trainers=st.integers(2, 4), losses=st.integers(0, 2)))
def test_devices_leave_and_nothing_is_done_again(story):
    """Without losses the cluster refuses that a step is done twice, or a source is gone."""
    run(**story, leaves=5)


@pytest.mark.ci_but_one
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["first", "second", "rollout"])
def test_who_is_asked_to_leave_has_left_two_iterations_later(layout, name):
    share = 0.5 if LAYOUTS[layout].stale else 0.0
    schedule = Schedule(LAYOUTS[layout], max_stale_share=share)
    devices = make_devices(layout, 2, 2)
    trainers = [device.name for device in devices if "trainer" in device.roles]
    asked = {"first": trainers[0], "second": trainers[1], "rollout": devices[1].name}[name]
    workload = make_workload(num_groups=4)
    for seed in range(EXAMPLES // 5):
        it = Controller(devices, workload, schedule, make_costs())
        cluster = RandomCluster(it, workload, schedule, devices, random=Random(seed))
        cluster.run(1 + seed % 2)
        cluster.tell(p.DeviceLeaving(asked))
        assert it.leaving in ([asked], [])  # it may have gone at once
        cluster.run(3 + seed % 2)
        assert asked not in cluster.devices
        assert (cluster.num_left, it.leaving) == (1, [])
        assert it.holder == (trainers[1] if name == "first" else trainers[0])


def test_the_last_of_a_role_and_a_holder_that_nobody_can_follow_may_not_leave():
    schedule, workload = Schedule(LAYOUTS["tsp"]), make_workload()
    it = Controller(make_devices("tsp", 1, 2), workload, schedule, make_costs())
    assert not it.may_leave("rollout-0")
    assert it.may_leave("trainer-0")
    gangs = [p.Device(f"trainer-{i}", frozenset({"trainer"}), size=2) for i in range(2)]
    devices = [*make_devices("tsp", 1, 0), *gangs]
    it = Controller(devices, workload, schedule, make_costs())
    assert (it.may_leave("trainer-0"), it.may_leave("trainer-1")) == (False, True)
    with pytest.raises(ControllerError, match="trainer-0 cannot leave"):
        it.handle(p.DeviceLeaving("trainer-0"))


def test_a_holder_whose_state_is_copied_leaves_before_the_last_iteration_is_over():
    """Of all weights no copy is kept, and it takes longer than the pushes; then none is open."""
    devices = make_devices("tsp", 2, 3)
    schedule = Schedule(LAYOUTS["tsp"], copies_state=False)
    it = Controller(devices, make_workload(), schedule, make_costs())
    for push in it.start():
        it.handle(p.VersionLoaded(push.device, push.version))
    told = it.handle(p.IterationOffered(0, TRAINED))
    while not isinstance(told[0], p.Push):
        do, *told = told
        told += it.handle(done(do))
    (copy,) = it.handle(p.DeviceLeaving("trainer-0"))
    assert copy == p.CopyState(1, "trainer-1", "trainer-0")
    assert [it.handle(done(push)) for push in told] == [[]] * len(devices)
    it.validate()
    (left,) = waiting(it.snapshot(), []).iterations
    assert left.lacks == ("the copy of v1 on trainer-1",)
    assert it.handle(done(copy)) == [
        p.Release("trainer-0"),
        p.FinishIteration(0, updated=True),
    ]


def until_left(it: Controller, kind: type) -> list[p.Instruction]:
    """Run an iteration but for instructions of a kind; return these."""
    for push in it.start():
        it.handle(done(push))
    left, told = [], it.handle(p.IterationOffered(0, TRAINED))
    while told:
        do, *told = told
        if isinstance(do, kind):
            left.append(do)
        else:
            told += it.handle(done(do))
    return left


def test_a_standby_that_leaves_turns_before_the_last_iteration_is_over():
    """The next one is told to copy the state then."""
    it = make_controller("colocated", 1, 2, switch=0.3, copies_state=True)
    pushes = until_left(it, p.Push)
    assert it.handle(p.DeviceLeaving("worker-1")) == []
    turns = [turn for push in pushes for turn in it.handle(done(push))]
    assert turns == [p.Switch(f"worker-{i}", "rollout") for i in range(3)]
    assert it.handle(done(turns[0])) == []
    (left,) = waiting(it.snapshot(), []).iterations
    assert left.lacks == ("devices that leave or turn back: worker-1",)
    assert it.handle(done(turns[1])) == [
        p.Release("worker-1"),
        p.CopyState(1, "worker-2", "worker-0"),
        p.FinishIteration(0, updated=True),
    ]
    assert it.handle(done(turns[2])) == []


def test_who_turned_to_train_in_vain_turns_back_before_the_last_iteration_is_over():
    workload = make_workload(num_groups=1)
    it = make_controller("elastic", 2, 1, switch=0.05, workload=workload)
    turns = until_left(it, p.Switch)
    assert turns == [p.Switch(f"rollout-{i}", "trainer") for i in range(2)]
    assert [it.handle(done(turn)) for turn in turns] == [
        [p.Switch("rollout-0", "rollout")],
        [p.Switch("rollout-1", "rollout"), p.FinishIteration(0, updated=True)],
    ]


def test_who_is_to_leave_works_on_when_nobody_else_has_its_role_any_more():
    devices = make_devices("tsp", 2, 1)
    schedule, workload = Schedule(LAYOUTS["tsp"]), make_workload()
    it = Controller(devices, workload, schedule, make_costs())
    cluster = RandomCluster(it, workload, schedule, devices, random=Random(0))
    cluster.carry_out(it.start())
    cluster.tell(cluster._offer(0))
    while not cluster.queues["rollout-1"]:
        cluster.tell(cluster._event_of(cluster.others.pop(0), 0.0))
    cluster.tell(p.DeviceLeaving("rollout-1"))
    assert it.leaving == ["rollout-1"]
    assert cluster.pausing, "what it is at is paused"
    cluster.num_lost += 1
    cluster._forget("rollout-0")
    cluster.tell(p.DevicesLost(("rollout-0",)))
    assert it.leaving == []


@pytest.mark.ci_but_one
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_holder_of_the_state_is_lost(layout):
    """The standby follows it, at whatever moment, and the next one follows that."""
    seed = num_stories = num_redone = 0
    while num_stories < EXAMPLES * 4 // 5 or num_redone < 2:
        seed += 1
        assert seed < 300
        random = Random(seed)
        share = random.choice([0.0, 0.5]) if LAYOUTS[layout].stale else 0.0
        # with stale groups helpers generate for good, and without assistants nobody else trains
        counts = random.choice([{}, {"helpers": 2, "assistants": 0}])
        schedule = Schedule(LAYOUTS[layout], max_stale_share=share, copies_state=True, **counts)
        options = {"pause_odds": 0.1, "losses": 5, "joins": seed % 2 == 1, "holder_odds": 1.0}
        switch = random.choice([0.0, 0.3])
        cluster = run(schedule, make_workload(), 2, 3, switch, random, **options)
        num_stories += cluster.num_successors > 0
        num_redone += cluster.num_steps > cluster.version  # lost between its step and the copy


@pytest.mark.parametrize("layout", LAYOUTS)
def test_batches_of_several_groups_are_lost_and_paused(layout):
    share = 0.5 if LAYOUTS[layout].stale else 0.0
    schedule = Schedule(LAYOUTS[layout], max_stale_share=share, queue_depth=2)
    workload = make_workload(num_groups=6, group_size=2, trained_per_group=2, batch_size=6)
    for seed in range(max(2, EXAMPLES // 20)):
        options = {"pause_odds": 0.3, "losses": 3, "joins": True, "mixed": Random(seed)}
        cluster = run(schedule, workload, 3, 2, 0.0, Random(seed), **options)
        assert cluster.num_batches > 0
        assert cluster.num_pauses > 0


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "tcss"])
def test_on_policy_layouts_are_never_stale(layout):
    schedule = Schedule(LAYOUTS[layout])
    cluster = run(schedule, make_workload(num_groups=3), 2, 2, 0.0, Random(0))
    # One update an iteration, each trained at the version that generated it.
    assert {index: version for (index, _), version in cluster.version_of.items()} == {
        0: 0,
        1: 1,
        2: 2,
    }


def test_stale_groups_are_at_most_the_share():
    seen = 0
    for seed in range(20):
        schedule = Schedule(LAYOUTS["tcss"], max_stale_share=0.5)
        cluster = run(schedule, make_workload(num_groups=4), 3, 1, 0.0, Random(seed))
        for index in (1, 2):
            versions = [cluster.version_of[index, group] for group in range(4)]
            assert sum(version < index for version in versions) <= 2
            seen += sum(version < index for version in versions)
    assert seen > 0, "nothing was ever stale: the layout does not overlap"


@pytest.mark.parametrize("layout", ["elastic", "tcss"])
def test_a_device_of_both_roles_trains_though_nobody_may_assist(layout):
    """As one that a run starts alone, with ``assistants = 0`` as plans have it."""
    share = 0.5 if LAYOUTS[layout].stale else 0.0
    schedule = Schedule(LAYOUTS[layout], max_stale_share=share, helpers=0, assistants=0)
    devices, workload = [p.Device("worker-0", frozenset({"rollout", "trainer"}))], make_workload()
    it = Controller(devices, workload, schedule, make_costs(0.3))
    cluster = RandomCluster(it, workload, schedule, devices, random=Random(0))
    cluster.run(NUM_ITERATIONS)
    assert cluster.version == NUM_ITERATIONS


def test_a_score_that_is_lost_while_its_fragment_is_generated_again():
    """The trajectory went with one device, and then the score with the other."""
    workload = make_workload(num_groups=2, group_size=2, fragment_size=2)
    schedule = Schedule(LAYOUTS["disaggregated"], queue_depth=1)
    it = Controller(make_devices("disaggregated", 2, 1), workload, schedule, make_costs())
    it.start()
    for device in ("rollout-0", "rollout-1", "trainer-0"):
        it.handle(p.VersionLoaded(device, 0))
    told = it.handle(p.IterationOffered(0, (0, 2)))
    first, second = (do.batch.fragments[0] for do in told if isinstance(do, p.Generate))
    it.handle(p.BatchGenerated(alone(first)))
    (do,) = it.handle(p.BatchPaused(alone(second), 2))
    assert do == p.Generate(alone(second), 2, 4, 0, "rollout-0")
    assert it.handle(p.BatchGenerated(alone(second))) == [p.Score(second, "rollout-0")]
    (do,) = it.handle(p.DevicesLost(("rollout-1",)))
    assert do == p.Generate(alone(second), 0, 4, 0, "rollout-0")
    it.handle(p.DeviceJoined(p.Device("rollout-1", frozenset({"rollout"}))))
    it.handle(p.VersionLoaded("rollout-1", 0))
    told = it.handle(p.DevicesLost(("rollout-0",)))
    assert (
        p.Generate(alone(second), 0, 4, 0, "rollout-1") in told
        or p.Generate(alone(first), 0, 4, 0, "rollout-1") in told
    )
    scored = set()
    for _ in range(2):
        (do,) = [do for do in told if isinstance(do, p.Generate)]
        told = it.handle(p.BatchGenerated(do.batch))
        scored |= {do.fragment for do in told if isinstance(do, p.Score)}
    assert scored == {first, second}
