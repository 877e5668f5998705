"""Candidates in simulated iterations: what they take, and that samples follow them at once."""

from dataclasses import replace

import pytest

from digen_core.control.iteration import Iteration
from digen_core.control.layout import LAYOUTS
from digen_core.control.protocol import IterationOffered
from digen_core.control.schedule import Schedule, Screening
from digen_core.sim.simulator import simulate
from support.random_cluster import make_costs, make_devices, make_workload

STEP = 0.1  # of no sample, and of each: of make_costs
WORK = make_workload(
    num_groups=6,
    group_size=4,
    trained_per_group=4,
    fragment_size=4,
    num_steps=8,
    screening=Screening(num_candidates=16, num_steps=4),
)
NUM_ITERATIONS = 4


def simulated(workload, layout="tsp", **schedule):
    devices = make_devices(layout, 2, 2)
    made = Schedule(LAYOUTS[layout], **schedule)
    return simulate(
        devices,
        workload,
        made,
        make_costs(),
        trained_steps=(0, 1),
        num_iterations=NUM_ITERATIONS,
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_candidates_are_generated_in_every_layout(layout):
    """Four fragments of 4 steps, then one of 8, all of 4 samples: 5 times 0.1 s a step."""
    report = simulated(WORK, layout)
    denoised = [span for span in report.spans if span.kind == "denoise"]
    seconds = {True: 0.0, False: 0.0}
    for span in denoised:
        seconds[WORK.screens(span.group)] += span.ended - span.started
    per_group = NUM_ITERATIONS * WORK.num_groups
    assert seconds[True] == pytest.approx(per_group * 4 * 4 * 5 * STEP)
    assert seconds[False] == pytest.approx(per_group * 8 * 5 * STEP)
    work = make_costs().kinds["default"].generation(WORK)
    assert sum(seconds.values()) == pytest.approx(NUM_ITERATIONS * work)


def test_groups_may_cost_unequally_and_have_steps_of_their_own():
    """Candidates of a prompt cost as its samples, and take no more steps."""
    steps, trained = (2, 3, 4, 5, 6, 8), (1, 1, 2, 2, 3, 4)
    work = replace(
        WORK,
        group_costs=(0.5, 0.5, 0.5, 1.5, 1.5, 1.5),
        group_steps=steps,
        group_trained=trained,
    )
    taken = {}
    for span in simulated(work).spans:
        if span.kind == "denoise":
            taken[span.group] = max(taken.get(span.group, 0), span.end_step)
    count = WORK.num_groups
    assert [taken[group] for group in range(count)] == [min(4, number) for number in steps]
    assert [taken[count + group] for group in range(count)] == list(steps)


def test_samples_follow_their_candidates_before_others_begin():
    """So trainers have pairs as early as with the candidates of one group, not of all."""
    (first, *_), spans = range(WORK.num_groups), simulated(WORK).spans
    samples = [s for s in spans if s.kind == "denoise" and s.group == first + WORK.num_groups]
    candidates = [s for s in spans if s.kind == "denoise" and WORK.screens(s.group)]
    began = min(span.started for span in samples if span.iteration == 0)
    assert began < max(span.started for span in candidates if span.iteration == 0)


def test_few_steps_of_candidates_take_less_than_all_of_them_as_samples():
    """16 samples of 8 steps of which 4 are trained: 128 against 96 steps of samples a group."""
    whole = replace(WORK, group_size=16, screening=None)
    assert simulated(WORK).seconds < simulated(whole).seconds


def test_helpers_stay_for_the_samples_that_candidates_are_chosen_for():
    """A rollout device alone does not suffice for them, and trainers know before they are there.

    So TAG, whose helpers leave when it does, is as fast as a layout whose helpers stay.
    """
    screening = Screening(num_candidates=8, num_steps=2)
    work = replace(WORK, num_groups=12, group_size=8, trained_per_group=8, screening=screening)

    def seconds(layout):
        report = simulate(
            make_devices(layout, 1, 3),
            work,
            Schedule(LAYOUTS[layout]),
            make_costs(),
            trained_steps=(0, 1, 2),
            num_iterations=NUM_ITERATIONS,
        )
        return max(span.ended for span in report.spans)

    assert seconds("tag") < 1.05 * seconds("tcss")


def test_the_samples_to_come_are_those_of_candidates_that_wait():
    """Of 6 groups 4 samples of 8 steps each; those of a group are no more when it is there."""
    it = Iteration.begin(IterationOffered(0, (0, 1)), tuple(range(6)), WORK)
    assert it.samples_to_come(WORK) == 6 * 4 * 8
    it.queue.take([0], 0, is_stale=False)  # of the first group, which begins
    it.replace({0: 6}, WORK)
    assert it.samples_to_come(WORK) == 5 * 4 * 8
    assert it.samples_to_come(replace(WORK, screening=None)) == 0
