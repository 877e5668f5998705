"""Metrics of an iteration's updates: what each measured, as one row."""

from collections.abc import Sequence
from statistics import fmean
from typing import Final

import numpy as np

from tasks.receipts import Updated

LARGEST: Final = ("train/max_log_ratio", "train/replay_error")
"""Metrics of which an iteration has the largest of its updates; so have those of devices."""
EACH: Final = ("clip_fraction", "approx_kl", "max_log_ratio", "grad_norm")
"""What is shown of each update, where there are several: `update-2/clip_fraction`."""


def update_metrics(updates: Sequence[Updated]) -> dict[str, float]:
    """Return the metrics of an iteration's updates that made a version.

    Of several: the means, of what is a bound the largest, and the last learning rate.
    """
    if len(updates) == 1:
        return dict(updates[0].metrics)
    found: dict[str, list[float]] = {}
    for update in updates:
        for name, value in update.metrics.items():
            found.setdefault(name, []).append(value)
    row = {name: _of_all(name, values) for name, values in found.items()}
    for number, update in enumerate(updates, 1):
        own = {name: update.metrics[f"train/{name}"] for name in EACH if update.metrics}
        row |= {f"update-{number}/{name}": value for name, value in own.items()}
    return row


def _of_all(name: str, values: list[float]) -> float:
    if name == "train/learning_rate":
        return values[-1]
    if name in LARGEST or name.startswith("device/"):
        return float(np.max(values))
    return fmean(values)
