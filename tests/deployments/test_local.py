"""Flows that are run from a terminal: what is seen there."""

import signal
from contextlib import nullcontext
from unittest.mock import Mock

import httpx
import pytest
from prefect.exceptions import CancelledRun, TerminationSignal
from prefect.states import Cancelled

from deployments import local
from digen_core.checkpoints.judging import Judging
from digen_core.config.run import RunConfig
from digen_core.errors import UserError
from flows.runtime.observers import Observer, warn, watching


class Terminal(Observer):
    """Keeps what it is warned of."""

    def __init__(self):
        self.warnings = []

    def on_warning(self, text):
        self.warnings.append(text)


class Told:
    """A flow whose server answers."""

    def __init__(self, body):
        self.fn = body

    def __call__(self, *arguments):
        return self.fn(*arguments)


def test_the_terminal_is_told_what_an_evaluation_warns_of(tmp_path, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(local, "judged_config", lambda *_: RunConfig())
    for check in ("run.check_judged", "reward_probe.probe_before_start"):
        monkeypatch.setattr(f"digen_core.preflight.{check}", lambda *_, **__: None)
    shown = []
    monkeypatch.setattr(
        local, "orchestrated", lambda _, evaluated: shown.append(evaluated) or nullcontext(terminal)
    )
    told = Told(lambda *_: warn("a prompt is cut"))
    monkeypatch.setattr("flows.evaluate_run.evaluate_run", told)
    local.run_evaluation(tmp_path, Judging(), warn)
    warn("nobody watches any more")
    assert terminal.warnings == ["a prompt is cut"]
    assert shown == [tmp_path]


def test_who_is_not_logged_in_to_a_place_is_told_before_anything_starts(monkeypatch):
    check = Mock(side_effect=UserError("nobody is logged in"))
    monkeypatch.setattr("tasks.tracking.also.places._found", lambda name: check)
    monkeypatch.setattr(local, "prefect_ready", Mock(side_effect=AssertionError("Prefect starts")))
    config = RunConfig.model_validate({"tracking": {"also": ["wandb"]}})
    with pytest.raises(UserError, match="nobody is logged in"):
        local.run_training(config)


class Untold:
    """A flow whose server has gone away when its body ends, or before it begins."""

    def __init__(self, body, *, begins=True):
        self.fn, self._begins = body, begins

    def __call__(self, *arguments):
        try:
            if self._begins:
                self.fn(*arguments)
        finally:
            raise httpx.ConnectError("[Errno 111] Connection refused")


def fails(*_):
    raise RuntimeError("the disk is full")


def test_a_run_that_prefect_cannot_be_told_of_ends_as_its_body_does():
    terminal = Terminal()
    with watching(terminal):
        assert local.called(Untold(lambda a, b: a + b), 2, 3) == 5
        with pytest.raises(RuntimeError, match="the disk is full"):
            local.called(Untold(fails))
        with pytest.raises(CancelledRun, match="resume it with"):
            local.called(Untold(lambda: Cancelled(message="stopped; resume it with: ...")))
    assert terminal.warnings == 3 * [
        "Prefect could not be told how the run ended, and may show it as running: ConnectError: "
        "[Errno 111] Connection refused"
    ]


def test_a_run_that_is_terminated_ends_so_where_prefect_cannot_be_told():
    """Its server may have been terminated, too, and another one be in its place."""

    def body():
        raise TerminationSignal(signal.SIGTERM)

    terminal = Terminal()
    with watching(terminal), pytest.raises(SystemExit) as ended:
        local.called(Untold(body))
    assert ended.value.code == 128 + signal.SIGTERM
    assert len(terminal.warnings) == 1


def test_a_run_that_cannot_begin_without_prefect_fails():
    with pytest.raises(httpx.ConnectError):
        local.called(Untold(fails, begins=False))
