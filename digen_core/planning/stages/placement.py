"""Placement: which device computes which blocks, for an order of devices.

A dynamic programme over blocks and devices finds the cuts with the least bottleneck: the seconds
that a sample takes, there and back, at the slowest stage or link. Devices may be left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

import numpy as np

from digen_core.planning.stages.chain import Chain, Numbers
from digen_core.planning.stages.codecs import NONE, Codec
from digen_core.planning.stages.network import Network


class Stage(NamedTuple):
    """Blocks ``[first, end)`` on a device."""

    device: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Placement:
    """The stages of a chain, in order."""

    stages: tuple[Stage, ...]
    bottleneck: float  # seconds of a sample there and back, at the slowest stage or link

    @property
    def devices(self) -> list[int]:
        """Of the stages."""
        return [stage.device for stage in self.stages]


class Placer:
    """Finds placements of a chain on a network."""

    def __init__(
        self, chain: Chain, network: Network, codec: Codec = NONE, num_samples: int = 1
    ) -> None:
        """Prepare.

        Args:
            chain: to be cut.
            network: of the devices.
            codec: of all cuts.
            num_samples: whose graphs a stage keeps at the same time: those of a pack.
        """
        self.num_devices, self.num_blocks = network.num_devices, len(chain.blocks)
        flops = _sums(chain, "forward_flops") + _sums(chain, "backward_flops")
        held = held_bytes(chain, num_samples)
        fits = held <= network.memory[:, None, None]
        if network.first_memory is not None:
            fits[:, 0] = held[0] <= network.first_memory[:, None]
        self._seconds = np.where(fits, flops / network.rates[:, None, None], inf)
        ways = 1 / codec.there / network.bandwidth + 1 / codec.back / network.bandwidth.T
        cuts = np.append(chain.of_blocks("cut_bytes"), 0.0)
        self._crossing = ways[:, :, None] * cuts  # [from, to, block]

    def bottleneck(self, order: Sequence[int]) -> float:
        """Return the least that there is for an order of devices; inf if memory is not enough."""
        return float(self._least(order)[:, -1].min())

    def place(self, order: Sequence[int]) -> Placement | None:
        """Return the placement with the least bottleneck; None if memory is not enough.

        Args:
            order: in which devices may follow each other; some may be left out.
        """
        least, end = self._least(order), self.num_blocks
        at = int(least[:, end].argmin())
        bottleneck = float(least[at, end])
        if bottleneck == inf:
            return None
        stages: list[Stage] = []
        while end:
            before = np.maximum(least[:at], self._crossing[order[:at], order[at]])
            device, last = order[at], end
            end = int(np.maximum(_first(before), self._seconds[device][:, last]).argmin())
            stages.append(Stage(device, end, last))
            at = int(before[:, end].argmin()) if end else 0
        return Placement(tuple(reversed(stages)), bottleneck)

    def _least(self, order: Sequence[int]) -> Numbers:
        """Return the least bottleneck of the blocks before each, by the last device.

        [devices, blocks + 1]; inf where memory is not enough.
        """
        least = np.full((len(order), self.num_blocks + 1), inf)
        crossing = self._crossing[np.ix_(order, order)]
        for at, device in enumerate(order):
            before = np.maximum(least[:at], crossing[:at, at])
            least[at] = np.maximum(_first(before)[:, None], self._seconds[device]).min(0)
        return least


def _first(before: Numbers) -> Numbers:
    """Return the least over the devices before, of which there may be none."""
    found: Numbers = before.min(0, initial=inf)
    found[0] = 0.0
    return found


def held_bytes(chain: Chain, num_samples: int) -> Numbers:
    """Return what a stage of blocks ``[first, end)`` holds while a pack passes it.

    Weights, adapters or the gradients of all weights, the sum of gradients, and the graphs of all
    samples; [blocks + 1, blocks + 1], inf where there are no blocks.
    """
    times = {"weight_bytes": 1, "trained_bytes": 1, "sum_bytes": 1, "graph_bytes": num_samples}
    held = _runs(sum(times[field] * chain.of_blocks(field) for field in times))
    outside = [chain.before, chain.after]
    return held + sum(
        times[field] * float(getattr(part, field)) for field in times for part in outside
    )


def _sums(chain: Chain, field: str) -> Numbers:
    """Return a number of each stage ``[first, end)``, with what it computes beside its blocks."""
    found: Numbers = _runs(chain.of_blocks(field)) + getattr(chain.before, field)
    found[:, -1] += getattr(chain.after, field)
    return found


def _runs(values: Any) -> Numbers:
    """Return the sums of all runs ``[first, end)``; inf where they are empty."""
    until = np.concatenate([[0.0], values.cumsum()])
    sums = until[None, :] - until[:, None]
    found: Numbers = np.where(np.tri(len(until), dtype=bool), inf, sums)
    return found
