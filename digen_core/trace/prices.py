"""Prices: what a run's devices cost while it runs, at work or not."""

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from digen_core.control.protocol import Device
from digen_core.trace.peaks import processor_in

HOUR = 3600.0


def price_of(prices: Mapping[str, float], processor: str) -> float:
    """Return the price of an hour of a GPU, or of a worker without one; 0 without any price.

    Args:
        prices: by what they are of; one that is not among them costs as much as the most expensive
            that is.
        processor: what it is.
    """
    if processor in prices or not prices:
        return prices.get(processor, 0.0)
    return float(np.max([*prices.values()]))


def price_per_second(prices: Mapping[str, float], devices: Iterable[Device]) -> float:
    """Return what devices cost in a second.

    Args:
        prices: as for `price_of`.
        devices: of the run.
    """
    if not prices:
        return 0.0
    numbers = Counter[str]()  # of hundreds of devices, and this is asked for as each task ends
    for own in devices:
        numbers[own.kind] += own.size
    return sum(n * price_of(prices, processor_in(kind)) for kind, n in numbers.items()) / HOUR


def cost_metrics(
    per_second: float, seconds: float, num_samples: int, spent: float
) -> dict[str, float]:
    """Return ``cost/iteration``, ``cost/per_sample`` and ``cost/total``, in the prices' currency.

    Args:
        per_second: price of the devices.
        seconds: of the iteration's window.
        num_samples: generated for it.
        spent: since the run was started.
    """
    cost = per_second * seconds
    return {"cost/iteration": cost, "cost/per_sample": cost / num_samples, "cost/total": spent}
