"""Where blocks are put: the dynamic programme against all cuts, OP-Fence against all orders."""

from itertools import combinations, pairwise, permutations
from math import inf

import numpy as np
import pytest

from digen_core.planning.stages.codecs import INT8, INT8_INT4, NONE
from digen_core.planning.stages.fences import chain_of_fence, fences_of, orders_of
from digen_core.planning.stages.network import Network
from digen_core.planning.stages.op_fence import op_fence
from digen_core.planning.stages.placement import Placer, Stage
from support.stages import chain_of_arrays, random_chain, random_network


def every_cut(chain, network, order, codec) -> float:
    """The least bottleneck of all cuts between all devices of an order, one by one."""
    num, least = len(chain.blocks), inf
    for count in range(1, len(order) + 1):
        for devices in combinations(order, count):
            for cuts in combinations(range(1, num), count - 1):
                least = min(least, bottleneck(chain, network, devices, (0, *cuts, num), codec))
    return least


def bottleneck(chain, network, devices, edges, codec) -> float:
    found = 0.0
    for place, device in enumerate(devices):
        blocks = chain.blocks[edges[place] : edges[place + 1]]
        if sum(block.weight_bytes for block in blocks) > network.memory[device]:
            return inf
        flops = sum(block.forward_flops + block.backward_flops for block in blocks)
        found = max(found, flops / network.rates[device])
        if place:
            before, size = devices[place - 1], blocks[0].cut_bytes
            there = size / codec.there / network.bandwidth[before, device]
            back = size / codec.back / network.bandwidth[device, before]
            found = max(found, there + back)
    return found


@pytest.mark.parametrize("seed", range(12))
def test_the_programme_finds_what_trying_all_cuts_does(seed):
    random = np.random.default_rng(seed)
    codec = (NONE, INT8, INT8_INT4)[seed % 3]
    network, chain = random_network(random, [3, 2]), random_chain(random)
    order = random.permutation(5).tolist()
    placer, least = Placer(chain, network, codec), every_cut(chain, network, order, codec)
    assert placer.bottleneck(order) == pytest.approx(least, rel=1e-12)
    found = placer.place(order)
    edges = [0, *(stage.end for stage in found.stages)]
    assert [stage.first for stage in found.stages] == edges[:-1]
    again = bottleneck(chain, network, found.devices, edges, codec)
    assert (found.bottleneck, again) == pytest.approx((least, least), rel=1e-12)


def test_op_fence_against_all_orders():
    """60 networks of 5 devices: the least of all orders, devices that are left out included."""
    random, ratios = np.random.default_rng(0), []
    for trial in range(60):
        network = random_network(random, [2, 2, 1] if trial % 2 else [3, 2])
        chain = random_chain(random)
        least = min(map(Placer(chain, network).bottleneck, permutations(range(5))))
        ratios.append(op_fence(chain, network)[0].bottleneck / least)
    assert min(ratios) > 1 - 1e-9
    assert sum(ratio < 1 + 1e-9 for ratio in ratios) >= 50
    assert np.mean(ratios) <= 1.02
    assert max(ratios) <= 1.2


def network_of(rates, bandwidth, memory=inf) -> Network:
    shape = 2 * (len(rates),)
    memory = np.full(len(rates), 1e9 if memory == inf else memory)
    return Network(np.array(rates), memory, np.full(shape, bandwidth), np.zeros(shape))


def test_a_placement_by_hand():
    """Devices of 1 and 3 FLOP/s: one block of 4 and three. There and back are 3 FLOP a block."""
    chain = chain_of_arrays(np.ones(4), np.ones(4), np.full(4, 5.0))
    placer = Placer(chain, network_of([1.0, 3.0], 10.0))
    found = placer.place([0, 1])
    assert found.stages == (Stage(0, 0, 1), Stage(1, 1, 4))
    assert found.bottleneck == 3.0
    # a link that takes 5 s each way is not worth it: the fast one does all, in 4 s
    alone = Placer(chain, network_of([1.0, 3.0], 1.0)).place([0, 1])
    assert alone.stages == (Stage(1, 0, 4),)
    assert alone.bottleneck == 4.0
    # with int8 it takes 2.5 s each way, with int4 on the way back 2.5 + 1.39
    assert Placer(chain, network_of([1.0, 3.0], 1.0), INT8).bottleneck([0, 1]) == 4.0
    coded = Placer(chain, network_of([1.0, 3.0], 1.0), INT8_INT4)
    assert coded.bottleneck([0, 1]) == pytest.approx(5 / 2 + 5 / 3.6)


def test_memory_is_a_bound():
    chain = chain_of_arrays(np.ones(4), np.ones(4), np.ones(4))
    network = network_of([1.0, 100.0], 1e9, memory=3.0)
    assert [stage.end - stage.first for stage in Placer(chain, network).place([0, 1]).stages] == [
        1,
        3,
    ]
    small = network_of([1.0, 100.0], 1e9, memory=1.5)
    assert Placer(chain, small).place([0, 1]) is None
    assert Placer(chain, small).bottleneck([0, 1]) == inf
    assert op_fence(chain, small) == []


def test_fences_are_sites_where_links_between_them_are_slow():
    random = np.random.default_rng(3)
    network = random_network(random, [4, 3, 5])
    shuffled = random.permutation(12)
    mixed = Network(
        network.rates[shuffled],
        network.memory[shuffled],
        network.bandwidth[np.ix_(shuffled, shuffled)],
        network.latency[np.ix_(shuffled, shuffled)],
    )
    sites = np.repeat(range(3), [4, 3, 5])[shuffled]
    fences = fences_of(mixed)
    assert sorted(map(len, fences)) == [3, 4, 5]
    assert all(len({sites[device] for device in fence}) == 1 for fence in fences)
    orders = list(orders_of(mixed, fences))
    assert len(orders) == 3 + 6 + 6  # one fence, two and three in each order
    for order in orders:
        visited = [sites[device] for device in order]
        changes = sum(one != other for one, other in pairwise(visited))
        assert changes == len(set(visited)) - 1, "each in one piece"


def test_many_fences_are_visited_in_some_orders():
    network = random_network(np.random.default_rng(5), [2] * 6)
    fences = [[2 * n, 2 * n + 1] for n in range(6)]
    orders = list(orders_of(network, fences))
    assert orders == list(orders_of(network, fences))
    assert orders != list(orders_of(network, fences, seed=1))
    assert [sorted(order) for order in orders[:6]] == fences
    assert {len(order) for order in orders} == {2, 4, 6, 8, 10, 12}


def test_a_chain_of_good_links():
    """The fastest in the middle: 1 - 0 - 2 are near, 3 is near to 2 only."""
    bandwidth = np.ones((4, 4))
    for one, other, fast in [(0, 1, 9), (0, 2, 8), (2, 3, 7)]:
        bandwidth[one, other] = bandwidth[other, one] = fast
    network = Network(np.array([5.0, 1, 1, 1]), np.ones(4), bandwidth, np.zeros((4, 4)))
    assert chain_of_fence(network, [0, 1, 2, 3]) in ([1, 0, 2, 3], [3, 2, 0, 1])


def test_same_seed_same_placements():
    random = np.random.default_rng(7)
    network, chain = random_network(random, [2] * 6, memory=[9e9]), random_chain(random, 12)
    assert op_fence(chain, network, seed=2) == op_fence(chain, network, seed=2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rates": np.array([1.0, 0.0])}, "rates of a network are"),
        ({"memory": np.array([1.0, np.nan])}, "memory of a network are"),
        ({"bandwidth": np.array([[1.0, np.inf], [1.0, 1.0]])}, "bandwidth of a network are"),
        ({"latency": np.array([[0.0, -2.0], [0.0, 0.0]])}, "latency of a network are"),
        ({"latency": np.zeros((2, 3))}, "2 rates, but memory, bandwidth and latency of shapes"),
    ],
)
def test_what_is_no_network_is_refused(change, message):
    whole = {
        "rates": np.ones(2),
        "memory": np.ones(2),
        "bandwidth": np.ones((2, 2)),
        "latency": np.zeros((2, 2)),
    }
    Network(**whole)
    with pytest.raises(ValueError, match=message):
        Network(**whole | change)


def test_repeated_devices_are_no_use():
    """Every device of a placement is there once."""
    random = np.random.default_rng(11)
    for _ in range(5):
        for placement in op_fence(random_chain(random), random_network(random, [3, 2])):
            assert len(set(placement.devices)) == len(placement.devices)
