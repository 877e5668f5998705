"""A network: unequal devices, and what is between each two of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from digen_core.planning.stages.chain import Numbers


@dataclass(frozen=True)
class Network:
    """Devices by number. What goes from one to another is row and column of a matrix.

    Each way between two devices is by itself: others that send at the same time do not count.
    """

    rates: Numbers  # [n] FLOP/s that a device reaches
    memory: Numbers  # [n] bytes
    bandwidth: Numbers  # [n, n] bytes/s
    latency: Numbers  # [n, n] seconds
    first_memory: Numbers | None = None  # [n] bytes for the first stage; None: as for the others

    def __post_init__(self) -> None:
        """Refuse what is no network.

        Raises:
            ValueError: shapes differ, or a number is none or not possible.
        """
        num = len(self.rates)
        shapes = [own.shape for own in (self.memory, self.bandwidth, self.latency)]
        if self.rates.shape != (num,) or shapes != [(num,), (num, num), (num, num)]:
            raise ValueError(f"{num} rates, but memory, bandwidth and latency of shapes {shapes}")
        if self.first_memory is not None and self.first_memory.shape != (num,):
            raise ValueError(f"{num} rates, but first_memory of shape {self.first_memory.shape}")
        apart = ~np.eye(num, dtype=bool)
        for name, values in (
            ("rates", self.rates),
            ("memory", self.memory),
            ("bandwidth", self.bandwidth[apart]),
            ("1 + latency", 1 + self.latency[apart]),
        ):
            if not (np.isfinite(values).all() and (values > 0).all()):
                raise ValueError(f"{name} of a network are {values}; use finite numbers above 0")

    @property
    def num_devices(self) -> int:
        """Number of devices."""
        return len(self.rates)

    def part(self, devices: Sequence[int]) -> "Network":
        """Return the network of some of the devices, numbered anew."""
        own = np.ix_(devices, devices)
        rates, memory = self.rates[list(devices)], self.memory[list(devices)]
        first = None if self.first_memory is None else self.first_memory[list(devices)]
        return Network(rates, memory, self.bandwidth[own], self.latency[own], first)

    def seconds(self, source: int, device: int, num_bytes: float) -> float:
        """Return when the last of so many bytes arrives, if nothing else is under way."""
        return float(self.latency[source, device] + num_bytes / self.bandwidth[source, device])
