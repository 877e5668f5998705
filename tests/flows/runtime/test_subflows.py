"""Flows that a run is made of, where Prefect's server is away or fails."""

import logging
from contextlib import nullcontext
from types import SimpleNamespace

import httpx
import pytest

from flows.runtime import subflows

REQUEST = httpx.Request("POST", "http://prefect/api/flow_runs/")
FAILS = httpx.HTTPStatusError("500", request=REQUEST, response=httpx.Response(500))


class Subflow:
    """A flow whose run cannot be opened, or whose end cannot be told."""

    name = "iteration"

    def __init__(self, error, *, begins=False):
        self.error, self.begins, self.calls = error, begins, []
        self.fn = self.body

    def body(self, run_id, *arguments):
        self.calls.append(arguments)
        return "done"

    def with_options(self, task_runner):
        return self

    def __call__(self, *arguments):
        if self.begins:
            self.fn(*arguments)
        raise self.error


@pytest.fixture
def run(monkeypatch):
    """A run whose server says that it is well."""

    class Context:
        def model_copy(self, update):
            return nullcontext()

    monkeypatch.setattr(subflows, "api_answers", lambda: True)
    monkeypatch.setattr(subflows, "with_settings", lambda settings: nullcontext())
    monkeypatch.setattr(subflows, "_context_of", lambda run: nullcontext())
    monkeypatch.setattr(subflows, "_run_context", Context)
    monkeypatch.setattr(subflows, "LeanDaskTaskRunner", lambda address: nullcontext())
    monkeypatch.setattr(subflows, "get_run_logger", lambda: logging.getLogger("run"))
    return SimpleNamespace(run_id="run", address="")


@pytest.mark.parametrize("error", [httpx.ConnectError("refused"), FAILS], ids=["away", "fails"])
def test_a_flow_whose_run_cannot_be_opened_is_called_without_one(error, run, caplog):
    """As where the database of Prefect's server is locked, or its disk full."""
    subflow = Subflow(error)
    assert subflows.on_cluster(run, subflow, 3) == "done"
    assert subflow.calls == [(3,)]
    assert "iteration goes on without a page of its own" in caplog.text


def test_a_flow_that_has_begun_is_not_called_again(run):
    subflow = Subflow(FAILS, begins=True)
    with pytest.raises(httpx.HTTPStatusError):
        subflows.on_cluster(run, subflow, 3)
    assert subflow.calls == [(3,)]
