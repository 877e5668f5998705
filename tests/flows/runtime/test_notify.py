"""What a run says of itself when something is wrong that it can live with."""

from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from prefect.exceptions import Pause
from prefect.states import Suspended

from digen_core.config.run import RunConfig
from digen_core.data.prompts import Prompt
from digen_core.errors import UserError
from digen_core.records import IterationRecord
from flows import launch, prepare
from flows.runtime import notify
from support.contexts import run_context
from support.edits import source
from tasks.receipts import CountedTokens


@pytest.fixture
def told(monkeypatch):
    """Stand in for Prefect; return what was told it."""
    texts = []
    monkeypatch.setattr(notify, "notify", lambda run, event, text: texts.append((event, text)))
    return texts


def run_with(**algorithm):
    return run_context(Path("runs/x"), RunConfig.model_validate({"algorithm": algorithm}))


def record_with(**metrics):
    return IterationRecord(3, 4, 1.0, {f"train/{name}": value for name, value in metrics.items()})


def test_rounding_that_clips_fresh_samples_is_said_once(told):
    run = run_with(clip_range=1e-4)
    for error in (9e-5, 1.2e-3, 2e-3):
        notify.notify_of_clipping(run, record_with(replay_error=error))
    ((event, text),) = told
    assert event == "fresh-samples-clipped"
    assert text.startswith("iteration 4: rollout and trainer round log-probs differently, by up to")
    assert "0.001, which is more than algorithm.clip_range (0.0001)" in text


@pytest.mark.parametrize(
    "algorithm",
    [
        {"clip_range": 1e-2},
        {"correction": "recompute"},
        {"type": "flow_dppo"},
        {"type": "grpo_guard"},
        {"type": "diffusion_nft"},
    ],
)
def test_what_does_not_clip_is_not_warned_about(told, algorithm):
    run = run_with(**algorithm)
    notify.notify_of_clipping(run, record_with(replay_error=1e-3))
    notify.notify_of_clipping(run_with(), record_with(loss=1.0))  # all pairs are stale
    assert told == []


class Answers:
    """A batch that takes one task and gives its facts."""

    def __init__(self, facts):
        self.texts, self.facts = [], facts

    def submit(self, task, label, where, texts, num_images):
        self.texts += texts
        self.num_images = num_images
        return SimpleNamespace(facts=self.facts)

    def wait(self):
        pass


@pytest.mark.parametrize(
    ("most", "advice"), [(31, "set it to 31"), (700, "set it to 512, the most there is")]
)
def test_prompts_that_are_cut_are_told_of(monkeypatch, most, advice):
    texts = []
    monkeypatch.setattr(prepare, "notify", lambda run, event, text: texts.append((event, text)))
    answers = Answers(CountedTokens(most, num_cut=2))
    run = run_context(Path("runs/x"))
    drawn = [Prompt(f"{'a' * length}", {}) for length in (*range(1, 1100), 7)]
    drawn += [Prompt("a" * 1099, images=(source(0),) * number) for number in (3, 1)]
    prepare.notify_of_cut_prompts(run, answers, drawn)
    assert len(answers.texts) == len(set(answers.texts)) == 1000
    assert min(map(len, answers.texts)) == 100
    assert answers.num_images == [3, *[0] * 999]
    ((event, text),) = texts
    assert event == "prompts-cut"
    assert text.startswith("2 of the 1000 longest prompts take more tokens than model.max_seq")
    assert text.endswith(advice)
    prepare.notify_of_cut_prompts(run, answers, drawn)
    assert len(texts) == 1, "said once, though a run is made ready again"
    run.progress.said.clear()
    answers.facts = CountedTokens(most=12, num_cut=0)
    prepare.notify_of_cut_prompts(run, answers, drawn)
    assert len(texts) == 1


def test_who_stops_a_run_is_told_how_to_go_on(monkeypatch):
    warned = []
    monkeypatch.setattr(launch, "warn", warned.append)
    run = run_context(Path("runs/x"))
    run.progress.kept(Path("runs/x/checkpoints/v0004"), 4)

    def stopped_by(error):
        try:
            with launch._saying_how_to_resume(run):
                raise error
        except BaseException as raised:
            return raised

    how = "after iteration 4; resume it with: digen train --resume runs/x"
    assert str(stopped_by(KeyboardInterrupt())) == f"stopped by Ctrl-C or digen cancel {how}"
    assert stopped_by(ValueError("odd")).__notes__ == [how]
    assert warned == []
    stopped_by(SystemExit(143))
    assert warned == [f"terminated {how}"]
    suspended = Pause(state=Suspended())
    assert stopped_by(suspended) is suspended  # Prefect goes on with it
    assert not hasattr(stopped_by(UserError("wrong")), "__notes__")  # its folder goes
    assert len(warned) == 1


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (SystemExit(143), "KILLED", "terminated {}"),
        (KeyboardInterrupt(), "KILLED", "RunCancelledError: stopped by Ctrl-C or digen cancel {}"),
        (ValueError("odd"), "FAILED", "ValueError: odd; {}"),
    ],
    ids=repr,
)
def test_mlflow_is_told_how_a_run_ended_and_how_to_go_on(monkeypatch, error, status, told):
    monkeypatch.setattr(launch, "warn", lambda text: None)
    finished = []
    tracker = SimpleNamespace(finish=lambda *arguments: finished.append(arguments))
    run = run_context(Path("runs/x"))
    run.progress.kept(Path("runs/x/checkpoints/v0004"), 4)
    with suppress(BaseException), launch._ended_in(tracker), launch._saying_how_to_resume(run):
        raise error
    how = "after iteration 4; resume it with: digen train --resume runs/x"
    assert finished == [(status, told.format(how))]
