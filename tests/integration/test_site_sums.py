"""Sums of gradients of two sites: those of the other one are added up there, and cross as one."""

from dataclasses import replace

import pytest

from digen_core.control import protocol as p
from support.layout_runs import Case, check_weights

pytestmark = pytest.mark.ci


class TwoSites(Case):
    """One trains here, beside who generates, and two far away."""

    @property
    def devices(self) -> list[p.Device]:
        far = {"worker-2", "worker-3"}
        return [replace(own, site="b" if own.name in far else "a") for own in super().devices]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        pytest.param(
            {"train.lora": None, "train.updates_per_iteration": 3}, marks=pytest.mark.layouts
        ),
    ],
    ids=["adapters", "all weights, three updates"],
)
def test_sums_of_another_site_cross_as_one(run_layout, changes):
    case = TwoSites("gap", (1, 3), 2, 1)
    run = run_layout(case, **changes)
    check_weights(run, version=3 * run.config.train.updates_per_iteration)
    spans = [span for span in run.spans if span.kind == "reduce"]
    for iteration in {span.iteration for span in spans}:
        by_task = {span.task: span for span in spans if span.iteration == iteration}
        assert by_task.keys() == {"share sum of worker-3", "share sums of b", "reduce"}
        assert by_task["share sums of b"].device == "worker-2"
        assert by_task["reduce"].device == "worker-1"
    trained = {span.device for span in run.spans if span.kind == "train"}
    assert trained == {"worker-1", "worker-2", "worker-3"}
