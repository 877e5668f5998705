"""What a run says of itself when something is wrong that it can live with."""

from types import SimpleNamespace

import pytest

from digen_core.config import RunConfig
from digen_core.records import IterationRecord
from flows import telling


@pytest.fixture
def told(monkeypatch):
    """Stand in for Prefect; return what was told it."""
    texts = []
    monkeypatch.setattr(telling, "tell", lambda session, event, text: texts.append((event, text)))
    return texts


def session_with(**algorithm):
    return SimpleNamespace(config=RunConfig.model_validate({"algorithm": algorithm}), told=set())


def record_with(**metrics):
    return IterationRecord(3, 4, 1.0, {f"train/{name}": value for name, value in metrics.items()})


def test_rounding_that_clips_fresh_samples_is_said_once(told):
    session = session_with(clip_range=1e-4)
    for error in (9e-5, 1.2e-3, 2e-3):
        telling.tell_of_clipping(session, record_with(replay_error=error))
    ((event, text),) = told
    assert event == "fresh-samples-clipped"
    assert text.startswith("iteration 3: rollout and trainer round log-probs differently, by up to")
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
    session = session_with(**algorithm)
    telling.tell_of_clipping(session, record_with(replay_error=1e-3))
    telling.tell_of_clipping(session_with(), record_with(loss=1.0))  # all pairs are stale
    assert told == []
