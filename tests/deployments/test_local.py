"""Flows that are run from a terminal: what is seen there."""

from contextlib import nullcontext

from deployments import local
from digen_core.checkpoints.judging import Judging
from digen_core.config.run import RunConfig
from flows.runtime.observers import Observer, warn


class Terminal(Observer):
    """Keeps what it is warned of."""

    def __init__(self):
        self.warnings = []

    def on_warning(self, text):
        self.warnings.append(text)


def test_the_terminal_is_told_what_an_evaluation_warns_of(tmp_path, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(local, "judged_config", lambda *_: RunConfig())
    for check in ("run.check_judged", "reward_probe.probe_before_start"):
        monkeypatch.setattr(f"digen_core.preflight.{check}", lambda *_, **__: None)
    monkeypatch.setattr(local, "orchestrated", lambda config: nullcontext(terminal))
    monkeypatch.setattr("flows.evaluate_run.evaluate_run", lambda *_: warn("a prompt is cut"))
    local.run_evaluation(tmp_path, Judging(), warn)
    warn("nobody watches any more")
    assert terminal.warnings == ["a prompt is cut"]
