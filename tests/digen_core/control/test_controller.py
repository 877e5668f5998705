"""The controller: scenes by hand, one for each mechanism."""

import pytest

from digen_core.control import protocol as p
from digen_core.control.controller import Controller
from digen_core.control.costs import Costs, DeviceCosts, Linear
from digen_core.control.fragments import fragments_of
from digen_core.control.layout import LAYOUTS
from digen_core.control.schedule import Mixing, Schedule, Screening
from digen_core.control.state import ControllerError
from support.batches import alone
from support.carried_out import done
from support.random_cluster import (
    ROLLOUT,
    TRAINED,
    TRAINER,
    make_controller,
    make_costs,
    make_devices,
    make_workload,
)


def started(*arguments, **options) -> Controller:
    it = make_controller(*arguments, **options)
    for push in it.start():
        it.handle(p.VersionLoaded(push.device, push.version))
    return it


def scored(it, *fragments):
    for fragment in fragments:
        it.handle(p.BatchGenerated(alone(fragment)))
        instructions = it.handle(p.FragmentScored(fragment))
    return instructions


def test_an_iteration_with_a_barrier():
    it, workload = started(queue_depth=2), make_workload()
    (first, second), (third, fourth) = (fragments_of(workload, 0, group) for group in (0, 1))
    assert it.handle(p.IterationOffered(0, TRAINED)) == [
        p.Generate(alone(first), 0, 4, 0, "rollout-0"),
        p.Generate(alone(second), 0, 4, 0, "rollout-0"),
    ]
    assert it.handle(p.BatchGenerated(alone(first))) == [
        p.Score(first, "rollout-0"),
        p.Generate(alone(third), 0, 4, 0, "rollout-0"),
    ]
    assert it.handle(p.FragmentScored(first)) == []
    assert it.handle(p.BatchGenerated(alone(second)))[0] == p.Score(second, "rollout-0")
    assert it.handle(p.FragmentScored(second)) == []  # the barrier
    assert scored(it, third, fourth) == [p.ComputeAdvantages(0, (0, 1))]
    trains = it.handle(p.AdvantagesComputed(0, (0, 1), (1,)))  # group 1 carries no signal
    # Without TSP the two trained steps of a sample are two packs on one device.
    assert [(t.pack.num_pairs, t.pack.blocks[0].step) for t in trains] == [(1, 0), (1, 2)]
    done = 0
    while not isinstance(trains[0], p.Reduce):
        trains = trains[1:] + it.handle(p.PackTrained(trains[0].pack))
        done += 1
    assert done == 8  # 4 samples at 2 steps, of group 0 only
    assert trains == [p.Reduce(0, ("trainer-0",), "trainer-0")]
    assert it.handle(p.GradientReduced(0)) == [p.Step(0, 0, "trainer-0")]
    assert it.handle(p.Stepped(1)) == [
        p.Push(1, "rollout-0", "trainer-0"),
        p.Push(1, "trainer-0", "trainer-0"),
    ]
    assert it.handle(p.VersionLoaded("trainer-0", 1)) == []
    assert it.handle(p.VersionLoaded("rollout-0", 1)) == [p.FinishIteration(0, updated=True)]


def test_work_ahead_waits_for_devices_that_have_none():
    # Else rollout-0 would generate all of group 0, and its pairs would come twice as late.
    it = make_controller("disaggregated", 2, 1, queue_depth=2)
    it.start()
    (first, second), (third, _) = (fragments_of(make_workload(), 0, group) for group in (0, 1))
    assert it.handle(p.IterationOffered(0, TRAINED)) == []
    assert it.handle(p.VersionLoaded("rollout-0", 0)) == [
        p.Generate(alone(first), 0, 4, 0, "rollout-0"),
    ]
    assert it.handle(p.VersionLoaded("rollout-1", 0)) == [
        p.Generate(alone(second), 0, 4, 0, "rollout-1"),
        p.Generate(alone(third), 0, 4, 0, "rollout-0"),
    ]


def test_gap_trains_a_group_while_the_next_is_generated():
    it, workload = started("tsp"), make_workload()
    it.handle(p.IterationOffered(0, TRAINED))
    assert scored(it, *fragments_of(workload, 0, 0)) == [p.ComputeAdvantages(0, (0,))]
    (train,) = it.handle(p.AdvantagesComputed(0, (0,)))
    assert isinstance(train, p.Train)
    assert train.pack.num_pairs == 4  # pairs of two steps may share a pack: TSP


def test_the_last_pairs_are_shared_by_all_trainers():
    # 8 pairs, packs of up to 8, 2 trainers: 4 each, not 8 and none.
    it = started("tsp", 1, 2, workload=make_workload(num_groups=1, pack_size=8))
    it.handle(p.IterationOffered(0, TRAINED))
    scored(it, *fragments_of(make_workload(), 0, 0))
    trains = it.handle(p.AdvantagesComputed(0, (0,)))
    assert [(t.device, t.pack.num_pairs) for t in trains] == [("trainer-0", 4), ("trainer-1", 4)]


def test_a_pack_that_does_not_fit_is_split_and_remembered():
    it = started("tsp", workload=make_workload(num_groups=1, pack_size=8))
    it.handle(p.IterationOffered(0, TRAINED))
    scored(it, *fragments_of(make_workload(), 0, 0))
    (train,) = it.handle(p.AdvantagesComputed(0, (0,)))
    assert train.pack.num_pairs == 8
    (half,) = it.handle(p.PackTooLarge(train.pack))
    assert half.pack.num_pairs == 4
    (rest,) = it.handle(p.PackTrained(half.pack))
    assert rest.pack.num_pairs == 4  # remembered


def test_halves_of_unequal_cost_are_no_larger_than_what_was_remembered():
    # 2 pairs of cost 1/8 and 2 of cost 1 do not fit; half of that load is 2 of the mean cost.
    workload = make_workload(group_size=2, trained_per_group=2, samples_per_pack=4)
    it = started("disaggregated", 1, 2, workload=workload)
    it.handle(p.IterationOffered(0, (0,), (0.125, 1.0)))
    scored(it, *fragments_of(workload, 0, 0, 0.125), *fragments_of(workload, 0, 1, 1.0))
    (train,) = it.handle(p.AdvantagesComputed(0, (0, 1)))
    assert train.pack.num_pairs == 4
    halves = it.handle(p.PackTooLarge(train.pack))
    assert [half.pack.num_pairs for half in halves] == [2, 2]


@pytest.mark.parametrize("layout", ["disaggregated", "gap", "tsp", "elastic"])
def test_dear_pairs_that_wait_before_cheap_ones_are_not_told_to_be_trained_again_and_again(layout):
    """One of two dear pairs fits: their number is not that of pairs of the mean cost."""
    costs = (0.304, 0.304, 0.304, 2.739, 0.304, 2.739, 0.304)
    sizes = {"group_size": 4, "fragment_size": 4, "trained_per_group": 4}
    workload = make_workload(num_groups=7, **sizes, pack_size=6, samples_per_pack=6)
    it = started(layout, 1, 1, workload=workload, queue_depth=2)
    asked, refused = it.handle(p.IterationOffered(0, (0, 2), costs)), 0
    while not isinstance(do := asked.pop(0), p.FinishIteration):
        if isinstance(do, p.Train) and do.pack.load > 4.109 and do.pack.num_pairs > 1:
            refused += 1
            assert refused < 8
            asked += it.handle(p.PackTooLarge(do.pack))
        else:
            asked += it.handle(done(do))


def test_tag_helps_pauses_and_resumes_elsewhere():
    it = started("tag", 1, 1, helpers=1, workload=make_workload(num_groups=3))
    workload = make_workload(num_groups=3)
    offered = it.handle(p.IterationOffered(0, TRAINED))
    first, second = fragments_of(workload, 0, 0)
    assert p.Generate(alone(first), 0, 4, 0, "rollout-0") in offered
    assert p.Generate(alone(second), 0, 4, 0, "trainer-0") in offered  # it has no pairs yet
    it.handle(p.BatchGenerated(alone(second)))  # and takes the next one
    third, fourth = fragments_of(workload, 0, 1)
    it.handle(p.FragmentScored(second))
    it.handle(p.BatchGenerated(alone(first)))
    it.handle(p.FragmentScored(first))
    paused = it.handle(p.AdvantagesComputed(0, (0,)))
    # 3 fragments are left for the rollout device, 12 pairs and 12 to come for the trainer.
    assert paused == [p.Pause(alone(third), "trainer-0")]
    (train,) = it.handle(p.BatchPaused(alone(third), 3))
    assert train.device == "trainer-0"
    assert isinstance(train, p.Train)
    resumed = it.handle(p.BatchGenerated(alone(fourth)))
    assert p.Generate(alone(third), 3, 4, 0, "rollout-0") in resumed  # no step is done twice


def late_at_rollout_0(layout="disaggregated", **changes):
    """Return a controller with three fragments under way, their fragments, and what follows."""
    workload = make_workload(num_groups=2, **changes)
    it = started(layout, 3, 1, workload=workload)
    it.handle(p.IterationOffered(0, TRAINED))
    return it, [*fragments_of(workload, 0, 0), *fragments_of(workload, 0, 1)]


def test_what_is_late_goes_on_where_nothing_is_left_to_do():
    it, (first, second, third, fourth) = late_at_rollout_0()
    assert it.handle(p.BatchLate(alone(first), 3.0)) == [], "a fragment waits for who is free"
    assert p.Generate(alone(fourth), 0, 4, 0, "rollout-1") in it.handle(
        p.BatchGenerated(alone(second))
    )
    assert p.Pause(alone(first), "rollout-0") in it.handle(p.BatchGenerated(alone(third)))
    assert not any(isinstance(do, p.Pause) for do in it.handle(p.BatchGenerated(alone(fourth))))
    assert it.handle(p.BatchPaused(alone(first), 2)) == [
        p.Generate(alone(first), 2, 4, 0, "rollout-1")
    ]


def test_it_stays_where_nobody_is_faster():
    it, (first, second, third, fourth) = late_at_rollout_0()
    for fragment in (first, second, third):
        assert it.handle(p.BatchLate(alone(fragment), 2.0)) == []
    it.handle(p.BatchGenerated(alone(second)))  # which was late there: so is what comes next
    it.handle(p.BatchLate(alone(fourth), 2.0))
    assert not any(isinstance(do, p.Pause) for do in it.handle(p.BatchGenerated(alone(third))))
    assert it.handle(p.BatchLate(alone(first), 2.5)) == [p.Pause(alone(first), "rollout-0")], (
        "now it is"
    )


def test_who_was_late_is_as_fast_as_before_when_another_fragment_is_not():
    workload = make_workload(num_groups=3)
    it = started("disaggregated", 2, 1, workload=workload)
    it.handle(p.IterationOffered(0, TRAINED))
    first, second, third, fourth, *_ = (f for g in range(3) for f in fragments_of(workload, 0, g))
    paces = []
    for event in (
        p.BatchLate(alone(first), 3.0),
        p.BatchGenerated(alone(first)),
        p.BatchGenerated(alone(second)),
        p.BatchGenerated(alone(third)),
    ):
        it.handle(event)
        paces.append([own.pace for own in it.snapshot().fleet.devices])
    assert it.snapshot().fleet.devices[0].queue[0].batch != alone(fourth), "the faster one is first"
    assert paces == [[3.0, 1.0, 1.0]] * 3 + [[1.0, 1.0, 1.0]]


def test_only_what_is_under_way_can_be_late():
    it, (first, *_) = late_at_rollout_0()
    it.handle(p.BatchGenerated(alone(first)))
    with pytest.raises(ControllerError, match="is not being generated"):
        it.handle(p.BatchLate(alone(first), 2.0))


def test_helpers_do_not_all_leave_a_long_generation_to_the_rollout_device():
    # 8 fragments of 12 s: it alone would need over a minute for those that are left, while three
    # trainers would train the 32 pairs, in packs of 2.5 s, in 7 s.
    workload = make_workload(num_groups=4, num_steps=40)
    it = started("tag", 1, 3, helpers=3, workload=workload)
    it.handle(p.IterationOffered(0, TRAINED))
    scored(it, *fragments_of(workload, 0, 0))
    assert it.handle(p.AdvantagesComputed(0, (0,))) == []


def test_a_helper_is_told_to_pause_once():
    workload = make_workload(num_groups=3)
    it = started("tag", 1, 1, helpers=1, workload=workload)
    it.handle(p.IterationOffered(0, TRAINED))
    groups = [fragments_of(workload, 0, group) for group in range(3)]
    scored(it, *groups[0])
    ((third, fourth), (fifth, _)) = groups[1:]
    assert it.handle(p.AdvantagesComputed(0, (0,))) == [p.Pause(alone(fourth), "trainer-0")]
    going_on = it.handle(p.BatchGenerated(alone(third)))
    assert going_on == [p.Score(third, "rollout-0"), p.Generate(alone(fifth), 0, 4, 0, "rollout-0")]
    assert isinstance(it.handle(p.BatchPaused(alone(fourth), 1))[0], p.Train)


@pytest.mark.parametrize(("switch", "helps"), [(0.0, True), (100.0, False)])
def test_elastic_trainers_generate_while_they_would_wait_if_turning_is_cheap(switch, helps):
    # Training is most of the work, so that in TAG, where rollout devices do not train, none helps.
    workload = make_workload(fragment_size=4, num_steps=1)
    for layout, expected in (("elastic", helps), ("tag", False)):
        it = started(layout, 1, 1, workload=workload, switch=switch)
        begun = it.handle(p.IterationOffered(0, TRAINED))
        assert {do.device for do in begun} == {"rollout-0", *(["trainer-0"] if expected else [])}


def test_elastic_rollout_devices_train_when_nothing_is_left_to_generate():
    it = started("elastic", 1, 1, workload=make_workload(num_groups=1, pack_size=2))
    it.handle(p.IterationOffered(0, TRAINED))
    scored(it, *fragments_of(make_workload(), 0, 0))
    trains = it.handle(p.AdvantagesComputed(0, (0,)))
    assert {train.device for train in trains} == {"rollout-0", "trainer-0"}


def test_turning_costs_a_switch_before_the_work():
    it = started("elastic", 1, 1, switch=0.3, workload=make_workload(num_groups=1, pack_size=2))
    it.handle(p.IterationOffered(0, TRAINED))
    first, second = fragments_of(make_workload(), 0, 0)
    it.handle(p.BatchGenerated(alone(first)))
    turned = it.handle(p.BatchGenerated(alone(second)))
    assert p.Switch("rollout-0", "trainer") in turned


def test_tcss_begins_the_next_iteration_on_the_version_before():
    workload = make_workload()
    it = started("tcss", 1, 1, max_stale_share=0.5, helpers=0, assistants=0)
    it.handle(p.IterationOffered(0, TRAINED))
    it.handle(p.IterationOffered(1, TRAINED))
    done = [fragment for group in (0, 1) for fragment in fragments_of(workload, 0, group)]
    scored(it, *done[:3])
    early = it.handle(p.BatchGenerated(alone(done[3])))[-1]
    assert early.batch.iteration == 1
    assert early.version == 0  # generated on version 0, trained at version 1
    one, two = fragments_of(workload, 1, 0)
    assert p.Generate(alone(two), 0, 4, 0, "rollout-0") in it.handle(p.BatchGenerated(alone(one)))
    # Half of the two groups may be stale: the second one waits for version 1.
    assert it.handle(p.BatchGenerated(alone(two))) == [p.Score(two, "rollout-0")]


def test_a_slow_device_leaves_the_last_due_fragment_to_a_faster_one():
    workload = make_workload()
    devices = make_devices("tcss", 2, 1, ("default", "slow"))
    schedule = Schedule(LAYOUTS["tcss"], max_stale_share=0.5, helpers=0, assistants=0)
    it = Controller(devices, workload, schedule, make_costs())
    for push in it.start():
        it.handle(p.VersionLoaded(push.device, push.version))
    it.handle(p.IterationOffered(0, TRAINED))
    it.handle(p.IterationOffered(1, TRAINED))
    (one, two), (three, four) = (fragments_of(workload, 0, group) for group in (0, 1))
    assert it.handle(p.BatchGenerated(alone(one)))[-1] == p.Generate(
        alone(three), 0, 4, 0, "rollout-0"
    )
    # rollout-1 would end `four` after rollout-0 has ended half of `three`, and `four`.
    assert it.handle(p.BatchGenerated(alone(two)))[-1].batch == alone(
        fragments_of(workload, 1, 0)[0]
    )
    assert it.handle(p.BatchGenerated(alone(three)))[-1] == p.Generate(
        alone(four), 0, 4, 0, "rollout-0"
    )


def test_without_any_signal_the_iteration_ends_without_an_update():
    it = started(workload=make_workload(num_groups=1, fragment_size=4))
    it.handle(p.IterationOffered(0, TRAINED))
    (fragment,) = fragments_of(make_workload(fragment_size=4), 0, 0)
    scored(it, fragment)
    assert it.handle(p.AdvantagesComputed(0, (0,), (0,))) == [p.FinishIteration(0, updated=False)]
    assert it.handle(p.IterationOffered(1, TRAINED))  # with the same version


def test_a_batch_wide_scale_waits_for_all_groups():
    workload = make_workload(fragment_size=4, advantages_need_all_groups=True)
    it = started(workload=workload, queue_depth=2)
    it.handle(p.IterationOffered(0, TRAINED))
    ((one,), (two,)) = (fragments_of(workload, 0, group) for group in (0, 1))
    it.handle(p.BatchGenerated(alone(one)))
    it.handle(p.BatchGenerated(alone(two)))
    assert it.handle(p.FragmentScored(two)) == []
    assert it.handle(p.FragmentScored(one)) == [p.ComputeAdvantages(0, (0, 1))]


@pytest.mark.parametrize(
    ("costs", "order", "expected"),
    [
        ((1.0, 3.0, 0.5), "listed", [0, 1, 2]),
        ((1.0, 3.0, 0.5), "cheap-first", [2, 0, 1]),
        ((1.0, 3.0, 0.5), "dear-first", [1, 0, 2]),
        ((), "dear-first", [0, 1, 2]),
    ],
)
def test_groups_are_generated_in_the_order_that_is_offered(costs, order, expected):
    it = started(workload=make_workload(num_groups=3, fragment_size=4))
    do = it.handle(p.IterationOffered(0, (0,), costs, Mixing(order)))
    found = []
    while do and isinstance(do[-1], p.Generate):
        found.append(do[-1].batch.fragments[0].group)
        do = it.handle(p.BatchGenerated(do[-1].batch))
    assert found == expected


@pytest.mark.parametrize(
    ("cost", "sizes"), [(0.5, [4, 4]), (1.0, [4, 4]), (1.5, [2, 2, 2, 2]), (9.0, [1] * 8)]
)
def test_the_dearer_a_sample_the_fewer_are_in_a_fragment(cost, sizes):
    """At 1.5 two samples fit into the load of four, as 4 / 1.5 = 2.7."""
    workload = make_workload(group_size=8, fragment_size=4)
    parts = fragments_of(workload, 0, 0, cost, dear=cost)
    assert [part.num_samples for part in parts] == sizes
    assert {part.load / part.num_samples for part in parts} == {cost}
    assert [s for part in parts for s in part.samples] == list(range(8))
    assert [part.num_samples for part in fragments_of(workload, 0, 0, cost)] == [4, 4]


def offered_with_steps(it, steps, trained, costs=(), **mixing):
    own = tuple((own,) * 4 for own in trained)
    union = tuple(sorted({step for group in trained for step in group}))
    mixed = Mixing(**mixing)
    offer = p.IterationOffered(0, union, costs, mixed, own_steps=own, group_steps=steps)
    return it.handle(offer)


@pytest.mark.parametrize(
    ("order", "costs", "expected"),
    [
        ("listed", (), [0, 1, 2]),
        ("cheap-first", (), [1, 2, 0]),
        ("dear-first", (), [0, 2, 1]),
        ("dear-first", (0.5, 3.0, 1.0), [1, 2, 0]),  # 2, 6 and 3
    ],
)
def test_groups_are_ordered_by_cost_times_steps(order, costs, expected):
    it = started(workload=make_workload(num_groups=3, fragment_size=4))
    do, found = offered_with_steps(it, (4, 2, 3), [(0, 1), (0,), (2,)], costs, order=order), []
    while do and isinstance(do[-1], p.Generate):
        found.append(do[-1].batch.fragments[0].group)
        assert do[-1].end_step == (4, 2, 3)[found[-1]]
        do = it.handle(p.BatchGenerated(do[-1].batch))
    assert found == expected


def test_a_group_of_many_steps_is_cut_and_trained_by_its_own():
    """Of 6 and 2 steps, 4 in the mean: the first group takes 1.5, so 4 samples are cut in twos."""
    workload = make_workload(fragment_size=4, num_steps=6)
    it = started("colocated-strong", 1, 0, workload=workload)
    (do,) = offered_with_steps(it, (6, 2), [(0, 1, 5), (1,)], cuts=True)
    iteration = it._state.iterations[0]
    assert iteration.load_left(workload) == 4 * 3 + 4 * 1
    assert iteration.queue.load == 2 * 6 + 4 * 2  # and as much is under way
    assert iteration.num_trained_steps == 2
    done = []
    while isinstance(do, p.Generate):
        (fragment,) = do.batch.fragments
        done.append(fragment)
        told = it.handle(p.BatchGenerated(do.batch))
        told += it.handle(p.FragmentScored(fragment))
        do = next((do for do in told if isinstance(do, p.Generate)), None)
    assert [(part.num_samples, part.num_steps) for part in done] == [(2, 6), (2, 6), (4, 2)]
    told = it.handle(p.AdvantagesComputed(0, (0, 1)))
    pairs = []
    while train := next((do for do in told if isinstance(do, p.Train)), None):
        pairs += [(b.fragment.group, b.step, s) for b in train.pack.blocks for s in b.samples]
        told = it.handle(p.PackTrained(train.pack))
    expected = [(0, step, s) for step in (0, 1, 5) for s in range(4)]
    assert sorted(pairs) == sorted(expected + [(1, 1, s) for s in range(4)])


def test_without_packs_samples_of_several_numbers_of_steps_are_trained_one_after_the_other():
    """A pack of each trained step of a sample: two of the first group's, one of the second's."""
    workload = make_workload(group_size=4, fragment_size=4, samples_per_pack=1)
    it = started("colocated", 1, 0, workload=workload)
    (do,) = offered_with_steps(it, (4, 2), [(0, 2), (1,)])
    told = it.handle(p.BatchGenerated(do.batch))
    last = next(do for do in told if isinstance(do, p.Generate))
    for do in it.handle(p.BatchGenerated(last.batch)):
        told = it.handle(p.FragmentScored(do.fragment)) if isinstance(do, p.Score) else told
    told, packs = it.handle(p.AdvantagesComputed(0, (0, 1))), []
    while train := next((do for do in told if isinstance(do, p.Train)), None):
        packs.append([(b.fragment.group, b.step, b.num_rows) for b in train.pack.blocks])
        told = it.handle(p.PackTrained(train.pack))
    assert packs == [[(0, 0, 1)], [(0, 2, 1)]] * 4 + [[(1, 1, 1)]] * 4


def test_a_pack_is_as_large_as_it_is_fair_whatever_its_pairs_cost():
    """Ready are 4 pairs of cost 0.5 and 4 of 1.5, of which each of two trainers gets a load of 4.

    That is 4 cheap ones and one dear one: as many pairs as a pack has at most, then the dear ones.
    """
    workload = make_workload(num_groups=2, fragment_size=4, pack_size=8)
    it = started("tsp", num_trainers=2, workload=workload)
    do = it.handle(p.IterationOffered(0, (0,), (0.5, 1.5)))
    for _ in range(2):
        (fragment,) = do[-1].batch.fragments
        score, *do = it.handle(p.BatchGenerated(alone(fragment)))
        advantages = it.handle(p.FragmentScored(score.fragment))
    packs = it.handle(p.AdvantagesComputed(0, (0, 1)))
    assert isinstance(advantages[0], p.ComputeAdvantages)
    assert [(do.pack.num_pairs, do.pack.load) for do in packs] == [(5, 3.5), (3, 4.5)]


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (p.VersionLoaded("rollout-0", 3), "rollout-0 loaded version 3 unasked"),
        (p.BatchGenerated(alone(p.Fragment(0, 0, 0, 0, 2))), "is not being generated"),
        (p.BatchGenerated(alone(p.Fragment(7, 0, 0, 0, 2))), "iteration 7 is not open"),
        (p.FragmentScored(p.Fragment(0, 0, 0, 0, 2)), "scored but not waited for"),
        (p.AdvantagesComputed(0, (5,)), "already have advantages"),
        (p.PackTrained(p.Pack(0, 0, ())), "pack 0 was not being trained"),
        (p.GradientReduced(0), "iteration 0 was not being reduced"),
        (p.Stepped(2), "version 2 does not follow"),
        (p.UpdateSkipped(0, 1), "version 1 was not to be made"),
        (p.StateCopied("trainer-0", 0), "trainer-0 copied the state of version 0 unasked"),
        (p.Switched("rollout-0", "trainer"), "was not under way"),
        (p.IterationOffered(3, TRAINED), "iteration 1 comes next"),
        (p.DevicesLost(("trainer-0",)), "trainer-0 is lost, and with it the state of the optim"),
        (p.DevicesLost(("rollout-0", "nobody")), "nobody lost, but was not there"),
        (p.DeviceJoined(p.Device("rollout-0", ROLLOUT)), "rollout-0 joined, but is there already"),
    ],
)
def test_an_event_that_cannot_be_is_an_error_that_shows_the_state(event, message):
    it = started()
    it.handle(p.IterationOffered(0, TRAINED))
    fragment = fragments_of(make_workload(), 0, 0)[0]
    it.handle(p.BatchGenerated(alone(fragment)))
    it.handle(p.FragmentScored(fragment))
    with pytest.raises(ControllerError, match=message):
        it.handle(event)


def test_a_device_that_joins_gets_the_version_and_then_work():
    it = started(workload=make_workload(num_groups=4))
    it.handle(p.IterationOffered(0, TRAINED))
    joined = p.DeviceJoined(p.Device("rollout-9", ROLLOUT))
    assert it.handle(joined) == [p.Push(0, "rollout-9", "rollout-0")]
    (generate,) = it.handle(p.VersionLoaded("rollout-9", 0))
    assert generate.device == "rollout-9"


def until_stepped(**schedule) -> tuple[Controller, list]:
    """A controller of two trainers whose optimizer steps, and what it was told then."""
    it = Controller(
        make_devices("disaggregated", 1, 3),
        make_workload(num_groups=1),
        Schedule(LAYOUTS["disaggregated"], copies_state=True, **schedule),
        make_costs(),
    )
    assert it.start()[0] == p.CopyState(0, "trainer-1", "trainer-0")
    it.handle(p.StateCopied("trainer-1", 0))
    for device in ("rollout-0", "trainer-0", "trainer-1", "trainer-2"):
        it.handle(p.VersionLoaded(device, 0))
    it.handle(p.IterationOffered(0, TRAINED))
    told = scored(it, *fragments_of(make_workload(), 0, 0))
    told = it.handle(p.AdvantagesComputed(0, (0,)))
    while not isinstance(told[-1], p.Step):
        told = [do for done in events_of(told) for do in it.handle(done)]
    return it, told


def pairs_of(packs) -> set:
    return {
        (block.fragment, block.step, block.first_row + row)
        for pack in packs
        for block in pack.blocks
        for row in range(block.num_rows)
    }


def test_a_version_is_pushed_when_its_state_is_copied():
    it, told = until_stepped()
    assert told == [p.Step(0, 0, "trainer-0")]
    assert it.handle(p.Stepped(1)) == [p.CopyState(1, "trainer-1", "trainer-0")]
    pushes = it.handle(p.StateCopied("trainer-1", 1))
    assert pushes[0] == p.Push(1, "rollout-0", "trainer-0")
    assert len(pushes) == 4


def test_where_the_standby_is_lost_the_next_one_copies():
    it, _ = until_stepped()
    it.handle(p.Stepped(1))
    told = it.handle(p.DevicesLost(("trainer-1",)))
    assert told == [p.CopyState(1, "trainer-2", "trainer-0")]
    told = it.handle(p.DevicesLost(("trainer-2",)))
    assert [type(do) for do in told] == [p.Push, p.Push], "nobody is left who could"


def test_a_holder_that_is_lost_before_its_state_is_copied_steps_in_vain():
    """What others had summed is there, so only its own packs are trained again."""
    it, _ = until_stepped()
    it.handle(p.Stepped(1))
    own = it.snapshot().iterations[0].trained["trainer-0"]
    assert it.survives(["trainer-0"])
    told = it.handle(p.DevicesLost(("trainer-0",)))
    assert told[0] == p.CopyState(0, "trainer-2", "trainer-1")
    again = []
    while not isinstance(told[-1], p.Reduce):
        again += [do.pack for do in told if isinstance(do, p.Train)]
        told = [do for done in events_of(told) for do in it.handle(done)]
    assert pairs_of(again) == pairs_of(own)
    assert told == [p.Reduce(0, ("trainer-1", "trainer-2"), "trainer-1")]
    assert it.handle(p.GradientReduced(0)) == [p.Step(0, 0, "trainer-1")]


@pytest.mark.parametrize("comes_back", [False, True])
def test_sums_that_were_lost_before_the_holder_are_trained_again(comes_back):
    it, _ = until_stepped()
    own = it.snapshot().iterations[0].trained
    assert it.handle(p.DevicesLost(("trainer-2",))) == [], "the gradient is whole"
    if comes_back:
        it.handle(p.DeviceJoined(p.Device("trainer-2", TRAINER)))
    told, again = it.handle(p.DevicesLost(("trainer-0",))), []
    it.validate()
    while not isinstance(told[-1], p.Reduce):
        again += [do.pack for do in told if isinstance(do, p.Train)]
        told = [do for done in events_of(told) for do in it.handle(done)]
    assert pairs_of(again) == pairs_of([*own["trainer-0"], *own["trainer-2"]])
    assert told == [p.Reduce(0, ("trainer-1",), "trainer-1")]


def test_what_is_generated_again_does_not_begin_anew_when_others_are_lost():
    it = started("disaggregated", 2, 3, workload=make_workload(num_groups=1, fragment_size=4))
    (fragment,) = fragments_of(make_workload(fragment_size=4), 0, 0)
    (generate,) = it.handle(p.IterationOffered(0, TRAINED))
    scored(it, fragment)
    it.handle(p.AdvantagesComputed(0, (0,)))
    (again,) = it.handle(p.DevicesLost((generate.device,)))
    assert isinstance(again, p.Generate), "some pairs wait for a trainer"
    it.handle(p.DevicesLost(("trainer-1",)))
    told = it.handle(p.BatchGenerated(alone(fragment)))
    assert [type(do) for do in told] == [p.Train] * len(told), "it is whole"


def test_without_its_state_a_controller_does_not_go_on():
    it, _ = until_stepped()
    assert not it.survives(["trainer-0", "trainer-1"])
    it, _ = until_stepped()
    it.handle(p.DevicesLost(("trainer-1",)))
    assert not it.survives(["trainer-0"]), "the next standby copies no state while it is stepped"
    gang = [p.Device("worker-0", ROLLOUT | TRAINER, size=2), p.Device("worker-1", TRAINER, size=2)]
    schedule = Schedule(LAYOUTS["disaggregated"], copies_state=True)
    it = Controller(gang, make_workload(), schedule, make_costs())
    assert not any(isinstance(do, p.CopyState) for do in it.start())


def test_a_missing_role_is_refused():
    with pytest.raises(ValueError, match="no worker has the role 'trainer'"):
        Controller(
            [p.Device("rollout-0", ROLLOUT)],
            make_workload(),
            Schedule(LAYOUTS["disaggregated"]),
            make_costs(),
        )


def test_the_first_to_get_a_version_leaves_a_fragment_to_those_that_wait_for_it():
    workload = make_workload(fragment_size=4)  # a fragment for each device
    it = started("colocated-strong", 1, 1, workload=workload, queue_depth=2)
    it.handle(p.IterationOffered(0, TRAINED))
    told = list(scored(it, *fragments_of(workload, 0, 0), *fragments_of(workload, 0, 1)))
    told += it.handle(p.AdvantagesComputed(0, (0, 1)))
    while not any(isinstance(do, p.Push) for do in told):
        told = [do for done in events_of(told) for do in it.handle(done)]
    first, second = (do.device for do in told if isinstance(do, p.Push))
    it.handle(p.IterationOffered(1, TRAINED))
    given = it.handle(p.VersionLoaded(first, 1)) + it.handle(p.VersionLoaded(second, 1))
    assert [do.device for do in given if isinstance(do, p.Generate)] == [first, second]


def events_of(told) -> list:
    """What follows when devices have done what they were told."""
    events = []
    for do in told:
        match do:
            case p.Train(pack):
                events.append(p.PackTrained(pack))
            case p.Reduce(iteration):
                events.append(p.GradientReduced(iteration))
            case p.Step(_, version):
                events.append(p.Stepped(version + 1))
    return events


# --- batches of several fragments -------------------------------------------------------------


def batches_of(told) -> list[list[str]]:
    """The fragments of each batch that devices are told to generate."""
    return [
        [f"g{own.group}f{own.index}" for own in do.batch.fragments]
        for do in told
        if isinstance(do, p.Generate)
    ]


def batched(num_rollout, batch_size, **changes) -> Controller:
    shape = {"num_groups": 5, "group_size": 2, "fragment_size": 2, "trained_per_group": 2}
    workload = make_workload(**{**shape, "batch_size": batch_size, **changes})
    return started("tsp", num_rollout, 1, workload=workload)


def test_a_device_takes_a_full_batch_then_what_is_left():
    it = batched(1, 5)  # two fragments of two samples; a fifth does not fit
    told = it.handle(p.IterationOffered(0, TRAINED))
    for expected in (["g0f0", "g1f0"], ["g2f0", "g3f0"], ["g4f0"]):
        assert batches_of(told) == [expected]
        (do,) = [do for do in told if isinstance(do, p.Generate)]
        told = it.handle(p.BatchGenerated(do.batch))
        scores = [do.fragment for do in told if isinstance(do, p.Score)]
        assert scores == [*do.batch.fragments]
    assert batches_of(told) == []


def test_devices_share_what_waits():
    """Each takes its share of the rest; of a step half is fixed, so two samples are worth it."""
    told = batched(2, 12, num_groups=8).handle(p.IterationOffered(0, TRAINED))
    assert [len(batch) for batch in batches_of(told)] == [4, 2]
    told = batched(4, 12).handle(p.IterationOffered(0, TRAINED))
    assert batches_of(told) == [["g0f0", "g1f0"], ["g2f0", "g3f0"], ["g4f0"]]


def test_a_batch_is_worth_what_is_fixed_of_a_step():
    shape = {"num_groups": 8, "group_size": 2, "fragment_size": 2, "batch_size": 12}
    workload = make_workload(trained_per_group=2, **shape)
    schedule, devices = Schedule(LAYOUTS["tsp"]), make_devices("tsp", 4, 1)
    for fixed, expected in ((0.0, [2, 2, 1, 1]), (100.0, [5, 3])):
        line = Linear(fixed=fixed, per_item=0.1)
        costs = Costs(kinds={"default": DeviceCosts(step=line, pack=line)})
        it = Controller(devices, workload, schedule, costs)
        for push in it.start():
            it.handle(p.VersionLoaded(push.device, push.version))
        told = it.handle(p.IterationOffered(0, TRAINED))
        assert [len(batch) for batch in batches_of(told)] == expected


def test_a_faster_device_takes_more():
    shape = {"num_groups": 6, "group_size": 2, "fragment_size": 2, "batch_size": 12}
    workload = make_workload(trained_per_group=2, **shape)
    devices = make_devices("tsp", 2, 1, kinds=("slow", "default"))
    it = Controller(devices, workload, Schedule(LAYOUTS["tsp"]), make_costs())
    for push in it.start():
        it.handle(p.VersionLoaded(push.device, push.version))
    told = it.handle(p.IterationOffered(0, TRAINED))
    assert [(do.device, len(do.batch.fragments)) for do in told] == [
        ("rollout-1", 4),
        ("rollout-0", 2),
    ]


def test_only_what_is_alike_is_denoised_together():
    """Not samples of several sizes, and not trajectories of several numbers of steps."""
    it = batched(1, 12, num_steps=4)
    costs, steps = (1.0, 1.0, 2.0, 1.0, 1.0), (4, 4, 4, 4, 2)
    own = tuple(((0, 1),) * 2 for _ in steps)
    offer = p.IterationOffered(0, (0, 1), costs, own_steps=own, group_steps=steps)
    told, found = it.handle(offer), []
    while do := next((do for do in told if isinstance(do, p.Generate)), None):
        found += batches_of([do])
        told = it.handle(p.BatchGenerated(do.batch))
    assert found == [["g0f0", "g1f0"], ["g2f0"], ["g3f0"], ["g4f0"]]


def test_a_batch_that_is_paused_goes_on_with_whatever_is_as_far():
    it = batched(1, 4, num_groups=3)
    (do,) = it.handle(p.IterationOffered(0, TRAINED))
    first, second = do.batch.fragments
    (do,) = it.handle(p.BatchPaused(do.batch, 2))
    assert do == p.Generate(p.Batch((first, second)), 2, 4, 0, "rollout-0")
    it.handle(p.DeviceJoined(p.Device("rollout-1", ROLLOUT)))
    it.handle(p.VersionLoaded("rollout-1", 0))  # it takes the third group
    (third,) = it.snapshot().fleet.devices[-1].queue[0].batch.fragments
    told = it.handle(p.DevicesLost(("rollout-1",)))
    assert batches_of(told) == []
    told = it.handle(p.BatchGenerated(do.batch))
    assert batches_of(told) == [[f"g{third.group}f0"]]


def test_of_a_lost_batch_each_fragment_begins_anew():
    it = batched(2, 12, num_groups=4)
    told = it.handle(p.IterationOffered(0, TRAINED))
    ours, theirs = (do.batch for do in told)
    told = it.handle(p.DevicesLost(("rollout-1",)))
    assert batches_of(told) == []
    told = it.handle(p.BatchGenerated(ours))
    (do,) = [do for do in told if isinstance(do, p.Generate)]
    assert do == p.Generate(theirs, 0, 4, 0, "rollout-0")


def test_of_a_batch_that_went_on_elsewhere_those_begin_anew_of_which_a_stretch_is_lost():
    it = batched(2, 4, num_groups=2)
    told = it.handle(p.IterationOffered(0, TRAINED))
    first, second = (do.batch for do in told)
    it.handle(p.BatchGenerated(first))
    (do,) = it.handle(p.BatchPaused(second, 2))  # by rollout-1; the other one has less to do
    assert (do.device, do.first_step) == ("rollout-0", 2)
    told = it.handle(p.DevicesLost(("rollout-1",)))
    assert batches_of(told) == [], "it stops first"
    told = it.handle(p.BatchGenerated(do.batch))
    assert [do.first_step for do in told if isinstance(do, p.Generate)] == [0]
    assert not any(isinstance(do, p.Score) for do in told)


def test_candidates_and_samples_are_in_batches_of_their_own():
    screening = Screening(3, 2)
    it = batched(1, 12, num_groups=2, fragment_size=2, screening=screening)
    (do,) = it.handle(p.IterationOffered(0, TRAINED))
    assert batches_of([do]) == [["g0f0", "g0f1", "g1f0", "g1f1"]]
    assert do.batch.num_samples == 6
    it.handle(p.BatchGenerated(do.batch))
    for fragment in do.batch.fragments[:2]:
        it.handle(p.FragmentScored(fragment))
    told = it.handle(p.GroupsReplaced(0, ((0, 2),)))
    assert batches_of(told) == [["g2f0"]]
