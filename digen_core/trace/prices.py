"""Prices: what a run's devices cost while it runs, at work or not."""

from collections.abc import Iterable, Mapping

import numpy as np

from digen_core.control.protocol import Device
from digen_core.trace.peaks import processor_in

HOUR = 3600.0


def price_per_second(prices: Mapping[str, float], devices: Iterable[Device]) -> float:
    """Return what devices cost in a second.

    Args:
        prices: of an hour of one GPU, or of a worker without one, by what it is; one that is not
            among them costs as much as the most expensive that is.
        devices: of the run.
    """
    most = float(np.max([*prices.values()])) if prices else 0.0
    hourly = sum(own.size * prices.get(processor_in(own.kind), most) for own in devices)
    return hourly / HOUR


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
