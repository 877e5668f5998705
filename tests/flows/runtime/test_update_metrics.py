"""What an iteration of several updates shows of them."""

import pytest

from flows.runtime.iterations.update_metrics import update_metrics
from tasks.receipts import Updated


def updated(version, clip, ratio, rate):
    names = ("clip_fraction", "approx_kl", "max_log_ratio", "grad_norm", "learning_rate")
    values = (clip, clip / 2, ratio, 1.0, rate)
    row = {f"train/{name}": value for name, value in zip(names, values, strict=True)}
    return Updated(version, "", {**row, "device/a/replay_error": ratio / 10})


def test_one_update_is_shown_as_it_is():
    update = updated(1, 0.0, 1e-7, 3e-4)
    assert update_metrics([update]) == update.metrics
    assert update_metrics([]) == {}


def test_means_largest_and_last_of_several():
    row = update_metrics([updated(1, 0.0, 1e-7, 3e-4), updated(2, 0.5, 2e-3, 2e-4)])
    assert row["train/clip_fraction"] == 0.25
    assert row["train/approx_kl"] == pytest.approx(0.125)
    assert row["train/max_log_ratio"] == 2e-3
    assert row["device/a/replay_error"] == 2e-4
    assert row["train/learning_rate"] == 2e-4
    assert (row["update-1/clip_fraction"], row["update-2/clip_fraction"]) == (0.0, 0.5)
    assert row["update-2/max_log_ratio"] == 2e-3


def test_an_emulated_update_has_no_metrics():
    assert update_metrics([Updated(1, "", {}), Updated(2, "", {})]) == {}
