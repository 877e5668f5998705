"""Metrics of a schedule, under stable names."""

from collections.abc import Iterable, Sequence

from digen_core.control.protocol import Device
from digen_core.records import Span
from digen_core.trace.gaps import CAUSES, Cause, Gap, idle_gaps
from digen_core.trace.windows import Window


def schedule_metrics(
    spans: Sequence[Span],
    devices: Sequence[Device],
    window: Window,
    num_samples: int,
    predicted_seconds: float | None = None,
) -> dict[str, float]:
    """Return the metrics of an iteration.

    - ``idle/<cause>``: share of all device seconds, for every cause; busy is what is left.
    - ``throughput/samples_per_device_second``
    - ``makespan/predicted_error``: predicted seconds over measured ones, less 1. Positive if the
      iteration was faster than predicted. Only if a prediction is given.

    Args:
        spans: of this iteration, and of others that ran in its window.
        devices: all of the run.
        window: of the iteration, see :func:`~digen_core.trace.windows.iteration_windows`.
        num_samples: generated for the iteration.
        predicted_seconds: what the planner expected.

    Raises:
        ValueError: there is no device, or the window is empty.
    """
    if not devices or window.seconds <= 0:
        raise ValueError(f"{len(devices)} devices for {window.seconds} s have no metrics.")
    device_seconds = len(devices) * window.seconds
    idle = idle_seconds(idle_gaps(spans, devices, window))
    metrics = {f"idle/{cause}": seconds / device_seconds for cause, seconds in idle.items()}
    metrics["throughput/samples_per_device_second"] = num_samples / device_seconds
    if predicted_seconds is not None:
        metrics["makespan/predicted_error"] = predicted_seconds / window.seconds - 1
    return metrics


def idle_seconds(gaps: Iterable[Gap]) -> dict[Cause, float]:
    """Return the seconds of each cause, in the order of ``CAUSES``."""
    seconds: dict[Cause, float] = dict.fromkeys(CAUSES, 0.0)
    for gap in gaps:
        seconds[gap.cause] += gap.seconds
    return seconds
