"""Fragments that are late on one device go on at another one: weights are the serial loop's."""

from collections import defaultdict
from functools import partial
from time import sleep

import pytest

from digen_core.models.pipeline.policy import PipelinePolicy
from support.layout_runs import Case, check_weights, marked
from tasks.cluster.presence import addresses_of

SLOW = "worker-0"
CASES = [
    Case("tsp", (2, 1), 2, 3),
    Case("elastic", (2, 1), 2, 3),
    Case("tcss", (2, 1), 1, 3, share=1.0),
    Case("colocated-strong", (3,), 2, 3),
]


def wait(seconds: float) -> None:
    """Have each velocity of a worker's model take longer; 0: as long as it takes."""
    at_once = getattr(PipelinePolicy, "at_once", PipelinePolicy.velocity)

    def slowly(self, *arguments):
        sleep(seconds)
        return at_once(self, *arguments)

    PipelinePolicy.at_once = at_once
    PipelinePolicy.velocity = slowly if seconds else at_once


@pytest.fixture
def one_is_slow(four_workers):
    """Have one device take many times as long as is learnt of its kind in the first iteration."""
    address = addresses_of(four_workers, [SLOW])[SLOW]
    made_to = partial(four_workers.run, wait, workers=[address])
    made_to(0.25)
    yield
    made_to(0.0)


@pytest.mark.ci
@pytest.mark.parametrize("case", marked(CASES, (1,), "layouts"), ids=str)
def test_what_is_late_goes_on_elsewhere(case, run_layout, one_is_slow):
    run = run_layout(case, **{"rollout.num_steps": 8, "algorithm.trained_fraction": 0.25})
    check_weights(run)
    on = defaultdict(set)
    for span in run.spans:
        if span.kind == "denoise":
            on[span.iteration, span.group, span.fragment].add(span.device)
    moved = [devices for devices in on.values() if len(devices) > 1]
    assert moved, "nothing that was late went on elsewhere"
    assert all(SLOW in devices for devices in moved)
