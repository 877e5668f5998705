"""The ledger: what counts as asked for and as lost, beside controllers in random orders, too."""

from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from deployments.chaos.ledger import Ledger, Work
from digen_core.control import protocol as p
from digen_core.control.controller import Controller
from digen_core.control.layout import LAYOUTS
from digen_core.control.schedule import Schedule
from support.batches import alone
from support.control_strategies import NUM_ITERATIONS, schedules, workloads
from support.random_cluster import NUM_STEPS, RandomCluster, make_costs, make_devices, make_workload

FRAGMENT = p.Fragment(iteration=0, group=0, index=1, first_sample=0, num_samples=3)
PACK = p.Pack(0, 0, (p.PairBlock(FRAGMENT, 1, 0, 3), p.PairBlock(FRAGMENT, 2, 0, 2)))
GENERATED = p.Generate(alone(FRAGMENT), 0, 4, 0, "rollout-0")
TRAINED = p.Train(PACK, 0, "trainer-0")


def told(*heard: p.Event | p.Instruction) -> Ledger:
    ledger = Ledger()
    for what in heard:
        ledger.add(what)
    return ledger


def test_work_that_was_cut_short_or_too_large_does_not_count():
    paused, anew = (
        p.BatchPaused(alone(FRAGMENT), 1),
        p.Generate(alone(FRAGMENT), 1, 4, 0, "rollout-1"),
    )
    (life,) = told(GENERATED, paused, anew, TRAINED, p.PackTooLarge(PACK), TRAINED).lives
    assert life.asked == {0: Work(sample_steps=12, pairs=5)}


@pytest.mark.parametrize(
    ("heard", "steps", "pairs"),
    [
        ([p.DevicesLost(("rollout-0",))], 12, 0),
        ([p.DevicesLost(("trainer-0",))], 0, 5),
        ([p.DevicesLost(("rollout-0", "trainer-0"))], 12, 5),
        ([p.DevicesLost(("rollout-0",)), p.DevicesLost(("rollout-0",))], 12, 0),
        ([p.DevicesLost(("rollout-1", "trainer-1"))], 0, 0),
        ([p.Score(FRAGMENT, "rollout-1"), p.DevicesLost(("rollout-1",))], 12, 0),
        ([p.PackTooLarge(PACK), p.DevicesLost(("trainer-0",))], 0, 0),
        ([p.FinishIteration(0, updated=True), p.DevicesLost(("rollout-0", "trainer-0"))], 0, 0),
    ],
)
def test_only_what_a_lost_device_had_is_lost(heard, steps, pairs):
    (life,) = told(GENERATED, TRAINED, *heard).lives
    assert life.lost.get(0, Work()) == Work(sample_steps=steps, pairs=pairs)


def test_a_run_that_goes_back_begins_another_life():
    offered = [p.IterationOffered(index, (0,)) for index in range(3)]
    ledger = told(*offered[:2], GENERATED)
    ledger.kept = (0, 1, 2)
    ledger.add(offered[2])
    ledger.add(offered[1])
    before, now = ledger.lives
    assert (before.kept, before.asked) == ((0, 1, 2), {0: Work(sample_steps=12)})
    assert (now.kept, now.asked, now.lost) == ((0, 1), {}, {})


class Counted(RandomCluster):
    """A cluster whose controller a ledger hears."""

    ledger: Ledger

    def tell(self, event):
        self.ledger.add(event)
        super().tell(event)

    def carry_out(self, instructions):
        for instruction in instructions:
            self.ledger.add(instruction)
        super().carry_out(instructions)


@example(  # a device gets work between its loss, which a reduction meets first, and the news of it
    schedule=Schedule(LAYOUTS["elastic"], max_stale_share=1.0, max_staleness=2, queue_depth=1),
    workload=make_workload(
        num_groups=3, group_size=2, fragment_size=1, pack_size=3, trained_per_group=1
    ),
    num_rollout=2,
    num_trainers=3,
    pause_odds=0.3,
    seed=24330,
    losses=3,
    joins=True,
    fits=2,
)
@given(
    schedules(),
    workloads(),
    st.integers(2, 4),
    st.integers(1, 3),
    st.sampled_from([0.0, 0.3]),
    st.integers(0, 10**6),
    st.integers(0, 4),
    st.booleans(),
    st.sampled_from([2, 100]),
)
def test_no_more_is_done_again_than_was_lost(
    schedule, workload, num_rollout, num_trainers, pause_odds, seed, losses, joins, fits
):
    devices = make_devices(schedule.layout.name, num_rollout, num_trainers)
    it = Controller(devices, workload, schedule, make_costs())
    cluster = Counted(it, workload, schedule, devices, random=Random(seed))
    cluster.ledger = Ledger()
    cluster.run(NUM_ITERATIONS, pause_odds=pause_odds, losses=losses, joins=joins, fits=fits)
    (life,) = cluster.ledger.lives
    kinds = workload.kinds_of_groups
    in_group = sum(workload.size_of(own) * workload.steps_of(own, NUM_STEPS) for own in kinds)
    for index in range(NUM_ITERATIONS):
        asked, lost = life.asked[index], life.lost.get(index, Work())
        steps = workload.num_groups * in_group
        pairs = len(cluster.expected_pairs(index))
        assert steps <= asked.sample_steps <= steps + lost.sample_steps
        assert pairs <= asked.pairs <= pairs + lost.pairs
