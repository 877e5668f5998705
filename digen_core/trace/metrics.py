"""Metrics of a schedule, under stable names."""

from collections.abc import Iterable, Sequence

from digen_core.control.protocol import Device
from digen_core.trace.gaps import CAUSES, Cause, Gap
from digen_core.trace.windows import Window


def schedule_metrics(
    gaps: Sequence[Gap],
    devices: Sequence[Device],
    window: Window,
    num_samples: int,
    predicted_seconds: float | None = None,
) -> dict[str, float]:
    """Return the metrics of an iteration.

    - ``idle/<cause>``: share of all device seconds, for every cause; busy is what is left.
    - ``device/<name>/busy_fraction``
    - ``throughput/samples_per_second``, ``throughput/samples_per_device_second``
    - ``makespan/predicted_error``: predicted seconds over measured ones, less 1. Positive if the
      iteration was faster than predicted. Only if a prediction is given.

    Args:
        gaps: idle gaps of the devices in the window.
        devices: all of the run.
        window: of the iteration, see :func:`~digen_core.trace.windows.iteration_windows`.
        num_samples: generated for the iteration.
        predicted_seconds: what the planner expected.

    Raises:
        ValueError: there is no device, or the window is empty.
    """
    if not devices or not window.seconds > 0:
        raise ValueError(f"{len(devices)} devices for {window.seconds} s have no metrics.")
    shares = idle_shares(gaps, devices, window)
    metrics = {
        f"idle/{cause}": sum(own[cause] for own in shares.values()) / len(devices)
        for cause in CAUSES
    }
    for name, own in shares.items():
        metrics[f"device/{name}/busy_fraction"] = 1 - sum(own.values())
    metrics["throughput/samples_per_second"] = num_samples / window.seconds
    metrics["throughput/samples_per_device_second"] = num_samples / window.seconds / len(devices)
    if predicted_seconds is not None:
        metrics["makespan/predicted_error"] = predicted_seconds / window.seconds - 1
    return metrics


def idle_shares(
    gaps: Sequence[Gap], devices: Iterable[Device], window: Window
) -> dict[str, dict[str, float]]:
    """Return the share of the window that each device was idle for each cause."""
    return {
        device.name: {
            cause: seconds / window.seconds
            for cause, seconds in idle_seconds(g for g in gaps if g.device == device.name).items()
        }
        for device in devices
    }


def idle_seconds(gaps: Iterable[Gap]) -> dict[Cause, float]:
    """Return the seconds of each cause, in the order of ``CAUSES``."""
    seconds: dict[Cause, float] = dict.fromkeys(CAUSES, 0.0)
    for gap in gaps:
        seconds[gap.cause] += gap.seconds
    return seconds
