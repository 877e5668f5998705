"""OP-Fence: where the blocks of a chain are put, on devices of which some are far from others.

Fences are visited in several orders, the dynamic programme cuts the chain for each, and a local
search goes on from the best.
"""

from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import Final

import numpy as np

from digen_core.planning.stages.chain import Chain
from digen_core.planning.stages.codecs import NONE, Codec
from digen_core.planning.stages.fences import fences_of, orders_of
from digen_core.planning.stages.network import Network
from digen_core.planning.stages.placement import Placement, Placer

_STARTS: Final = 3
"""Orders from which the local search goes on."""

_MOST_TRIED: Final = 100
"""Orders that it tries from each: of 5 devices all neighbours, of many some."""

_MIN_GAIN: Final = 1e-9


def op_fence(
    chain: Chain, network: Network, codec: Codec = NONE, num_samples: int = 1, seed: int = 0
) -> list[Placement]:
    """Return good placements, that with the least bottleneck first; none if memory is not enough.

    Args:
        chain: to be cut.
        network: of the devices.
        codec: of all cuts.
        num_samples: of a pack.
        seed: same seed, same placements.
    """
    placer = Placer(chain, network, codec, num_samples)
    orders = list(orders_of(network, fences_of(network, seed), seed))
    ranked = sorted(orders, key=placer.bottleneck)
    random = np.random.default_rng(seed)
    improved = [_improved(placer, order, random) for order in ranked[:_STARTS]]
    found = {placer.place(order) for order in (*improved, *ranked)}
    return sorted(
        (placement for placement in found if placement is not None),
        key=lambda placement: (placement.bottleneck, len(placement.stages), placement.stages),
    )


def _improved(placer: Placer, order: Sequence[int], random: np.random.Generator) -> list[int]:
    """Return an order with no better neighbour, as far as they were tried."""
    best, least = _with_all(order, placer.num_devices), placer.bottleneck(order)
    tried, is_better = 0, True
    while is_better:
        is_better = False
        for other in _neighbours(best, random):
            tried += 1
            bottleneck = placer.bottleneck(other)
            if bottleneck < least * (1 - _MIN_GAIN):
                best, least, is_better = other, bottleneck, True
                break
            if tried >= _MOST_TRIED:
                return best
    return best


def _with_all(order: Sequence[int], num_devices: int) -> list[int]:
    """Return an order with the devices that it leaves out at its end."""
    return [*order, *sorted(set(range(num_devices)) - set(order))]


def _neighbours(order: Sequence[int], random: np.random.Generator) -> Iterator[list[int]]:
    """Yield, in a random order, those in which one device is moved or two are swapped."""
    pairs = list(permutations(range(len(order)), 2))
    for place in random.permutation(2 * len(pairs)).tolist():
        (first, second), other = pairs[place // 2], list(order)
        if place % 2:
            other.insert(second, other.pop(first))
        elif first < second:
            other[first], other[second] = other[second], other[first]
        else:
            continue
        yield other
