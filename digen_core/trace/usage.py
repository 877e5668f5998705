"""Usage metrics: what the processes of devices took of their machines in an iteration."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from pydantic import StrictFloat, StrictInt


@dataclass(frozen=True, slots=True)
class Usage:
    """What the process of a device used since it was last asked."""

    seconds: StrictFloat
    cpu_seconds: StrictFloat  # of all its threads
    memory_bytes: StrictInt  # resident, now
    gpu_percent: tuple[StrictFloat, ...] = ()  # samples of the whole GPU's utilisation
    gpu_memory_bytes: StrictInt = 0  # of the whole GPU, the most that was seen; 0 without one


def usage_metrics(device: str, parts: Sequence[Usage]) -> dict[str, float]:
    """Return the metrics of a device, ``system/<device>/...``, of its parts of an iteration.

    Args:
        device: its name.
        parts: one after the other; at least one.
    """
    prefix = f"system/{device}"
    seconds = sum(part.seconds for part in parts)
    metrics = {
        f"{prefix}/cpu_percent": 100 * sum(p.cpu_seconds for p in parts) / seconds,
        f"{prefix}/memory_bytes": float(max(p.memory_bytes for p in parts)),
    }
    if samples := [sample for part in parts for sample in part.gpu_percent]:
        metrics[f"{prefix}/gpu_percent"] = fmean(samples)
    if used := max(part.gpu_memory_bytes for part in parts):
        metrics[f"{prefix}/gpu_memory_bytes"] = float(used)
    return metrics
