"""Work to submit, and receipts that cannot be used: both name their task."""

import math
from types import SimpleNamespace
from uuid import uuid4

import pytest

from digen_core.control.protocol import Fragment
from digen_core.errors import UserError
from flows.runtime.fleet.task_set import TaskFailedError, receipt_of
from flows.runtime.fleet.watch import MIN_WARNING
from flows.runtime.generation import about
from flows.runtime.submission import URGENT, Submitter, Work
from support.contexts import run_context
from tasks.receipts import Ran, Receipt, Trained, attach, collecting, packed
from tasks.runner.completions import Completion
from tasks.train import train_pack

RAN = Ran("trainer-0", 1.0, 2.0, num_bytes=0)


def completed(receipt):
    future = SimpleNamespace(task_run_id=0)
    return Completion(future, "COMPLETED", "Completed", "", receipt=packed(receipt))


def receipt_from(completion):
    return receipt_of(completion, train_pack, "train p003", "trainer-0")


def test_work_can_be_printed():
    work = Work(
        body=train_pack,
        label="train p003",
        device="trainer-0",
        kind="train",
        about=about(Fragment(0, 1, 2, 4, 3)),
        parameters={"version": 7},
    )
    assert repr(work) == (
        "Work(body=Body('train'), label='train p003', device='trainer-0', kind='train', "
        "about={'group': 1, 'fragment': 2, 'num_items': 3, 'cost': 1.0}, "
        "parameters={'version': 7}, "
        f"priority={URGENT}, resource=None, takes_from=frozenset(), lasts=False)"
    )
    assert work.event_of(Receipt(RAN, Trained(too_large=False))) is None


@pytest.mark.parametrize(("lasts", "expected"), [(False, 0.0), (True, None)])
def test_nobody_knows_how_long_work_takes_that_says_so(lasts, expected):
    watched, future = [], SimpleNamespace(task_run_id=7)
    task = SimpleNamespace(submit=lambda *arguments, **parameters: future)
    run = SimpleNamespace(
        run_id="run",
        config=SimpleNamespace(model=SimpleNamespace(compile=False)),
        workers=SimpleNamespace(
            body=lambda body: SimpleNamespace(task=task), place=lambda kind, device: (device, {})
        ),
        fleet=SimpleNamespace(addresses={}, known={"rollout-0": SimpleNamespace(kind="cpu")}),
        progress=SimpleNamespace(known_costs=SimpleNamespace(kinds={})),
        trace=SimpleNamespace(begin=lambda span: None),
        watch=SimpleNamespace(begin=lambda *about: watched.append(about)),
    )
    work = Work(
        body=train_pack, label="a", device="rollout-0", kind="score", parameters={}, lasts=lasts
    )
    iteration = SimpleNamespace(index=0, context=SimpleNamespace(run=lambda submit: submit()))
    assert Submitter(run).submit(iteration, work) is future
    assert watched == [(7, "a", expected)]


def test_a_receipt_of_the_tasks_kind_is_read():
    with collecting() as receipt:
        attach(RAN)
        attach(Trained(too_large=True))
    assert receipt_from(completed(receipt)) == Receipt(RAN, Trained(too_large=True))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"facts": {}}, "Trained: too_large is missing"),
        ({"facts": {"too_large": False, "size": 3}}, "Trained: size is unknown"),
        ({"facts": {"too_large": 0}}, "Trained: too_large: Input should be a valid boolean, not 0"),
        (
            {"ran": {"device": "a", "started": 1.0, "ended": math.nan, "num_bytes": 0}},
            "Ran: ended: Input should be a finite number, not nan",
        ),
        ({"ran": {"device": "a", "started": 1.0, "num_bytes": 0}}, "Ran: ended is missing"),
    ],
)
def test_one_that_cannot_be_used_names_the_task_and_what_is_wrong(change, problem):
    with collecting() as receipt:
        attach(RAN)
        attach(Trained(too_large=True))
    with pytest.raises(TaskFailedError) as failure:
        receipt_from(completed(receipt | change))
    expected = f"train p003 on trainer-0 sent a receipt that cannot be used: {problem}"
    assert str(failure.value) == expected


def test_a_task_that_failed_has_no_receipt_to_read():
    kinds = ("digen_core.errors.UserError", "builtins.ValueError")
    failed = Completion(
        SimpleNamespace(task_run_id=0),
        "FAILED",
        "Failed",
        "it does not fit",
        error_types=kinds,
        error_text="use less",
    )
    with pytest.raises(UserError, match=r"^use less$"):
        receipt_from(failed)
    with pytest.raises(TaskFailedError, match="train p003 on trainer-0 failed: odd"):
        receipt_from(Completion(SimpleNamespace(task_run_id=0), "FAILED", "Failed", "odd"))


def test_what_a_run_had_under_way_as_it_went_back_is_no_reason_to_stand_still(tmp_path):
    """What compiles, or nobody knows how long it takes, would be waited for half an hour."""
    run, task_run_id = run_context(tmp_path), uuid4()
    submitter = Submitter(run)
    run.watch.begin(task_run_id, "train p003")
    submitter._running[task_run_id] = None
    assert run.watch.patience > MIN_WARNING
    submitter.stop()
    assert run.watch.patience == MIN_WARNING
