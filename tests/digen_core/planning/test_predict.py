"""The prediction for a run, by hand."""

import pytest

from digen_core.control.costs import Costs, DeviceCosts, Linear, Link, Sent
from digen_core.control.layout import LAYOUTS
from digen_core.control.protocol import Device
from digen_core.control.schedule import Schedule, Workload
from digen_core.planning.predict import expected_seconds, predicted_seconds
from digen_core.records import Span

COSTS = Costs(
    kinds={
        "default": DeviceCosts(
            step=Linear(fixed=0.5, per_item=0.25),
            decode=Linear(per_item=0.25),
            pack=Linear(fixed=1.0, per_item=0.5),
        )
    },
    optimizer_step=0.25,
    push=0.75,
)
DEVICES = [Device("g", frozenset({"rollout"})), Device("t", frozenset({"trainer"}))]


@pytest.mark.parametrize(
    ("layout", "seconds"),
    [
        # Two fragments of 3 (0.5 + 2 0.25) + 2 0.25 s, two packs of two pairs, step and push.
        ("disaggregated", 7.0 + 4.0 + 0.25 + 0.75),
        # The first group's two pairs are trained while the second one is generated.
        ("tsp", 7.0 + 2.0 + 0.25 + 0.75),
    ],
)
def test_an_iteration_by_hand(layout, seconds):
    work = Workload(2, 2, 2, 3, 2, 2, samples_per_pack=2)
    schedule = Schedule(LAYOUTS[layout], queue_depth=2)
    assert predicted_seconds(DEVICES, work, schedule, COSTS, 1) == pytest.approx(seconds)


def test_stale_groups_are_predicted_in_steady_state():
    work = Workload(2, 2, 2, 3, 2, 2)
    seconds = [
        predicted_seconds(
            DEVICES, work, Schedule(LAYOUTS["tcss"], share, staleness, 0, 0), COSTS, 1
        )
        for share, staleness in ((0.0, 1), (1.0, 1), (1.0, 20))
    ]
    # Generation alone takes 7 s; all that comes after it is hidden.
    assert seconds[0] == pytest.approx(10.0)
    assert seconds[1:] == pytest.approx([7.0, 7.0])


def test_a_push_may_be_the_one_that_crosses_a_link():
    push = Span(0, "push v1 to g", "push", "g", 0.0, 0.0, 0.0, version=1)
    links = [Link(between=("a", own), bytes_per_second=10.0, latency=0.5) for own in "bc"]
    afar = COSTS.model_copy(update={"links": (links[0].slower(2.0), links[1])})
    afar = afar.model_copy(update={"sent": Sent(version=20.0)})
    assert expected_seconds(COSTS, "default", push) == 0.75
    assert expected_seconds(COSTS.model_copy(update={"push": 0.0}), "default", push) is None
    assert expected_seconds(afar, "default", push) == 0.75 + 2 * 2.5
    as_deltas = afar.model_copy(update={"sent": Sent(version=20.0, delta=1.0)})
    assert expected_seconds(as_deltas, "default", push) == 0.75 + 2 * 2.5  # not of who joins
