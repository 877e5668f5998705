"""Usage metrics: what the processes of devices took of their machines in an iteration."""

from collections.abc import Mapping, Sequence, Set
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
    joules: StrictFloat | None = None  # of the whole GPU; None: nothing tells
    card: str = ""  # identifier of the GPU, which processes may share; empty without one


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
    if (joules := joules_of(parts)) is not None:
        metrics[f"{prefix}/watts"] = joules / seconds
    return metrics


def joules_of(parts: Sequence[Usage]) -> float | None:
    """Return the energy of a device's parts of an iteration; None: it tells nothing.

    The first part of a process is over before its GPU is looked at, and tells nothing.
    """
    told = [part.joules for part in parts if part.joules is not None]
    return sum(told) if told else None


def energy_metrics(
    usage: Mapping[str, Sequence[Usage]], gangs: Set[str], num_samples: int
) -> dict[str, float]:
    """Return ``energy/joules_per_sample``; nothing if not all devices tell what they take.

    A card's energy counts once, however many devices share it: each of them looks at the whole.

    Args:
        usage: of an iteration, by device.
        gangs: devices of which only one member is looked at.
        num_samples: generated for the iteration.
    """
    cards: dict[str, float] = {}
    for device, parts in usage.items():
        joules = joules_of(parts)
        if joules is None or device in gangs:
            return {}
        card = parts[-1].card or device
        cards[card] = max(joules, cards.get(card, 0.0))
    return {"energy/joules_per_sample": sum(cards.values()) / num_samples} if cards else {}
