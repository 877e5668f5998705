"""Fences: devices that are close to each other, and the orders in which stages may visit them.

OP-Fence is FusionLLM's (arXiv:2410.12707): devices of similar bandwidth are put together, so that
few cuts are at slow links. The paper's code is not published; this is ours.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, combinations, islice, permutations
from typing import Final

import networkx as nx
import numpy as np

from digen_core.planning.stages.network import Network

MOST_WHOLE: Final = 4
"""Fences of which all orders, and all choices, are tried."""

MOST_ORDERS: Final = 120
"""Orders that are tried of more."""


def fences_of(network: Network, seed: int = 0) -> list[list[int]]:
    """Return communities of devices (Louvain), by the bytes per second between each two.

    Args:
        network: of the devices.
        seed: of the order in which devices are looked at.
    """
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(range(network.num_devices))
    both = np.minimum(network.bandwidth, network.bandwidth.T)
    for pair in combinations(range(network.num_devices), 2):
        graph.add_edge(*pair, weight=float(both[pair]))
    return sorted(map(sorted, nx.community.louvain_communities(graph, seed=seed)))


def orders_of(
    network: Network, fences: Sequence[Sequence[int]], seed: int = 0
) -> Iterator[list[int]]:
    """Yield orders of devices in which each fence is in one piece, some without some fences.

    Args:
        network: of the devices.
        fences: of it.
        seed: chooses the orders of many fences.
    """
    chained = [chain_of_fence(network, fence) for fence in fences]
    visits: Iterable[Sequence[list[int]]] = islice(_some_orders(chained, seed), MOST_ORDERS)
    if len(fences) <= MOST_WHOLE:
        counts = range(1, len(fences) + 1)
        visits = chain.from_iterable(permutations(chained, count) for count in counts)
    for visit in visits:
        yield list(chain.from_iterable(visit))


def _some_orders(chained: Sequence[list[int]], seed: int) -> Iterator[Sequence[list[int]]]:
    """Yield each fence alone, and then random orders, of all fences and of some."""
    yield from ([fence] for fence in chained)
    random = np.random.default_rng(seed)
    while True:
        order = [chained[place] for place in random.permutation(len(chained))]
        yield order
        yield order[: int(random.integers(2, len(chained) + 1))]


def chain_of_fence(network: Network, fence: Sequence[int]) -> list[int]:
    """Return the devices of a fence in a chain of good links: the fastest first, grown greedily.

    The next one is, at either end, that with the best link to it; of those the fastest.
    """
    left = set(fence)
    found = [max(left, key=lambda device: (network.rates[device], -device))]
    left -= {found[0]}
    while left:
        ends = [(found[-1], len(found)), (found[0], 0)]
        _, _, place, device = max(
            (network.bandwidth[end, device], network.rates[device], place, -device)
            for end, place in ends
            for device in left
        )
        found.insert(place, -device)
        left.remove(-device)
    return found
