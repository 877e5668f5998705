"""Devices by their memory: roles, sizes at once, and what a shortage says."""

from dataclasses import replace

import pytest

from digen_core.control.costs import Linear
from digen_core.planning.capacity import ShortageError, fit
from digen_core.planning.clusters.cluster import Cluster
from digen_core.planning.memory import CONTEXT_BYTES, Memory

GB = 10**9
COSTS = {"step": {"per_item": 1.0}, "pack": {"per_item": 1.0}}

# A sample takes 30 + 2 n GB to generate, a pair 20 + 5 n to train; what both need is 31 + max.
MEMORY = Memory(
    weights=16 * GB - CONTEXT_BYTES,
    adapters=0,
    text_encoders=10 * GB,
    vae=4 * GB,
    step=Linear(per_item=2 * GB),
    decode=Linear(per_item=GB),
    pack=Linear(per_item=5 * GB),
    gradient_sum=4 * GB,
    versions=0,
    state=0,
    step_copies=0,
    offload=frozenset(),
)


def cluster_of(*groups) -> Cluster:
    """Groups as (capacity, roles, count)."""
    devices = [
        {"kind": f"card-{n}", "count": count, "roles": roles, "capacity": capacity, "costs": COSTS}
        for n, (capacity, roles, count) in enumerate(groups)
    ]
    return Cluster.model_validate({"devices": devices})


def roles_of(found) -> list[str]:
    return [group.roles for group in found.cluster.devices]


def test_the_numbers_by_hand():
    assert [MEMORY.rollout(n) for n in (1, 4)] == [32 * GB, 38 * GB]
    assert [MEMORY.trainer(n) for n in (1, 4)] == [25 * GB, 40 * GB]
    assert MEMORY.both(1, 1) == 39 * GB
    assert MEMORY.both(3, 2) == 44 * GB
    assert MEMORY.rollout(2, 6) == 42 * GB, "six are denoised together"
    assert MEMORY.rollout(4, 2) == MEMORY.rollout(4)
    assert MEMORY.both(1, 1, 6) == 46 * GB
    costly = replace(MEMORY, decode=Linear(per_item=9 * GB))
    assert costly.rollout(2, 6) == costly.rollout(2) == 48 * GB, "but two are decoded"


def test_a_batch_is_as_large_as_fits_beside_its_fragments():
    found = fit(cluster_of((40, "rollout", 1), (80, "trainer", 1)), {1: MEMORY}, 2, 4, 16)
    assert (found.fragment_size, found.batch_size) == (2, 3), "and one may train, too"
    assert fit(cluster_of((80, "both", 2)), {1: MEMORY}, 2, 4).batch_size == 1


@pytest.mark.parametrize(
    ("capacity", "roles"), [(25, "trainer"), (31.9, "trainer"), (32, "both"), (141, "both")]
)
def test_a_device_keeps_the_roles_that_fit(capacity, roles):
    found = fit(cluster_of((141, "both", 1), (capacity, "both", 2)), {1: MEMORY}, 4, 4)
    assert roles_of(found) == ["both", roles]


def test_where_both_do_not_fit_together_devices_do_not_mix():
    found = fit(cluster_of((38, "both", 2)), {1: MEMORY}, 4, 4)
    assert not found.helps
    assert not found.assists
    found = fit(cluster_of((39, "both", 2)), {1: MEMORY}, 4, 4)
    assert found.helps
    assert found.assists


def test_devices_help_only_where_all_of_a_role_have_room():
    """Those that memory leaves to generate alone do not train in between, the others generate."""
    small = replace(MEMORY, gradient_sum=20 * GB)
    found = fit(cluster_of((36, "both", 2), (80, "both", 2)), {1: small}, 4, 4)
    assert roles_of(found) == ["rollout", "both"]
    assert found.helps
    assert not found.assists


@pytest.mark.parametrize(
    ("groups", "fragment", "pack"),
    [
        ([(36, "rollout", 1), (35, "trainer", 1)], 3, 3),
        ([(38, "rollout", 1), (40, "rollout", 1), (100, "trainer", 1)], 4, 4),
        ([(41, "both", 2)], 3, 1),  # with what both need: 34 + 2 n to generate, 34 + 5 n to train
        ([(None, "both", 2)], 4, 4),
        ([(None, "rollout", 1), (30, "trainer", 1)], 4, 2),
    ],
)
def test_the_smallest_device_says_how_much_at_once(groups, fragment, pack):
    found = fit(cluster_of(*groups), {1: MEMORY}, 4, 4)
    assert (found.fragment_size, found.pack_size) == (fragment, pack)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (
            [(24, "both", 2), (80, "both", 1)],
            "kind card-0, of 24 GB, lacks the memory that this takes: 32.0 GB to generate one "
            "sample, 25.0 GB to train one pair",
        ),
        (
            [(30, "rollout", 1), (80, "trainer", 1)],
            "kind card-0, of 30 GB, lacks the memory that this takes: 32.0 GB to generate one "
            "sample",
        ),
        (
            [(30, "both", 2)],
            "the largest device, of 30 GB, lacks the memory that this takes: 32.0 GB to generate "
            "one sample",
        ),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(groups, message):
    with pytest.raises(ShortageError) as error:
        fit(cluster_of(*groups), {1: MEMORY}, 4, 4)
    assert str(error.value) == message


def test_nothing_is_looked_at_where_no_capacity_is_known():
    cluster = cluster_of((None, "both", 2))
    found = fit(cluster, {1: replace(MEMORY, weights=10**15)}, 8, 16)
    assert (found.cluster, found.fragment_size, found.pack_size) == (cluster, 8, 16)
    assert found.helps
    assert found.assists


def test_a_gang_is_judged_by_its_members():
    """Two cards of 20 GB together do what one does not."""
    half = replace(MEMORY, weights=4 * GB, text_encoders=0, gradient_sum=2 * GB)
    cluster = cluster_of((20, "both", 4)).in_gangs(2)
    assert [device.size for device in cluster.fleet] == [2, 2]
    assert fit(cluster, {2: half}, 4, 4).fragment_size > 1
    with pytest.raises(ShortageError, match="kind card-0, of 20 GB in gangs of 2, lacks"):
        fit(cluster, {2: MEMORY}, 4, 4)
    assert [device.size for device in cluster.in_gangs(4).fleet] == [4]
    assert cluster.in_gangs(3) is None  # of four cards
