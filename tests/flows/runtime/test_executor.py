"""How sums of gradients are asked for, and what is told of one that is not to be had."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from digen_core.control import protocol as p
from digen_core.control.protocol import Device
from flows.runtime.executor import Executor
from flows.runtime.iterations.open_iteration import OpenIteration
from flows.runtime.iterations.round import Round
from flows.runtime.submission import Work
from support.contexts import run_context
from tasks.receipts import NOT_SHARED, Reduced

TRAINER = frozenset({"trainer"})
SITES = {"a0": "a", "a1": "a", "b0": "b", "b1": "b", "b2": "b"}
REDUCE = p.Reduce(3, tuple(SITES), "a0")
GONE = "member-0 does not hold it any more"


@dataclass
class Submitted:
    """Stands for the submitter: it keeps the work."""

    work: dict[str, Work] = field(default_factory=dict)

    def submit(self, iteration, work):
        self.work[work.label] = work
        return work.label

    def forget(self, devices):
        """Of the work that is kept nothing has a result."""


@pytest.fixture
def executor(tmp_path):
    devices = [Device(name, TRAINER, site=site) for name, site in SITES.items()]
    run = run_context(tmp_path, devices=devices)
    run.fleet.addresses.update({name: f"tcp://{name}" for name in SITES})
    found = Executor(run)
    found._submitter = Submitted()
    iteration = OpenIteration(Round(3, []), None, 1)
    iteration.sums = {name: f"sum of {name}" for name in SITES}
    found.open(iteration)
    found.submit(REDUCE)
    return found


def told(executor, label, failed, failure):
    """What the controller is told of the end of a task, and who is found broken."""
    broken = []
    watch = SimpleNamespace(broken=lambda address, why: broken.append((address, why)))
    executor._run = SimpleNamespace(watch=watch, fleet=executor._run.fleet)
    receipt = SimpleNamespace(facts=Reduced(failed, failure))
    return executor._submitter.work[label].event_of(receipt), broken


def test_the_first_of_another_site_adds_up_the_sums_there(executor):
    work = executor._submitter.work
    asked = {label: (own.device, own.parameters) for label, own in work.items()}
    assert asked == {
        "share sum of a1": ("a1", {"total": "sum of a1", "others": [], "sources": []}),
        "share sum of b1": ("b1", {"total": "sum of b1", "others": [], "sources": []}),
        "share sum of b2": ("b2", {"total": "sum of b2", "others": [], "sources": []}),
        "share sums of b": (
            "b0",
            {
                "total": "sum of b0",
                "others": ["share sum of b1", "share sum of b2"],
                "sources": [("tcp://b1",), ("tcp://b2",)],
            },
        ),
        "reduce": (
            "a0",
            {
                "own": "sum of a0",
                "others": ["share sum of a1", "share sums of b"],
                "sources": [("tcp://a1",), ("tcp://b0",)],
            },
        ),
    }


@pytest.mark.parametrize(
    ("label", "failed", "culprit"),
    [("share sums of b", 1, "b2"), ("share sums of b", 0, "b1"), ("reduce", 1, "b0")],
)
def test_who_does_not_give_a_sum_away_is_found_broken(executor, label, failed, culprit):
    why = f"does not give away its sum of gradients: {GONE}"
    expected = p.ReduceFailed(3), [(f"tcp://{culprit}", why)]
    assert told(executor, label, failed, GONE) == expected


def test_what_another_one_has_told_of_is_not_told_again(executor):
    assert told(executor, "reduce", 1, NOT_SHARED) == (None, [])


def test_sums_that_are_there_are_a_gradient(executor):
    assert told(executor, "share sums of b", -1, "") == (None, [])
    assert told(executor, "reduce", -1, "") == (p.GradientReduced(3), [])


def test_nothing_is_told_of_a_reduction_that_is_void(executor):
    executor.forget(["b2"])
    assert told(executor, "share sums of b", 1, GONE) == (None, [])
    assert told(executor, "reduce", -1, "") == (None, [])


def test_a_device_that_is_taken_out_already_is_not_found_broken_again(executor):
    del executor._run.fleet.addresses["b2"]
    assert told(executor, "share sums of b", 1, GONE) == (p.ReduceFailed(3), [])
