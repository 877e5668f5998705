"""Memory that runs out on one member of a gang: each pair counts once, or one line says why not."""

from contextlib import suppress
from functools import partial
from time import sleep

import pytest
import torch
from distributed import Client

from digen_core.config.schedule import ClusterConfig
from digen_core.control.protocol import Device
from digen_core.errors import UserError
from support import gang_shortage as bodies
from tasks.cluster.calls import WorkerLostError
from tasks.cluster.cluster import run_cluster
from tasks.cluster.presence import present_workers
from tasks.gang.forming import form_gang

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def gang():
    """Return a function that calls another on the leader of a gang of two, or of three."""
    both = frozenset({"rollout", "trainer"})
    devices = [Device("g0", both, size=2), Device("three", both, size=3)]
    with run_cluster(ClusterConfig(tls=False), devices) as address, Client(address) as client:

        def call(function, *arguments, name="g0"):
            (leader,) = (w for w in present_workers(client).values() if w.name == name)
            future = client.submit(function, *arguments, workers=[leader.address], pure=False)
            return future.result(timeout=120)

        def formed(name="g0"):
            for _ in range(300):
                (leader,) = (w for w in present_workers(client).values() if w.name == name)
                with suppress(WorkerLostError):  # one that ended is not missed yet
                    if not leader.lacks:
                        form_gang(client, leader.address, list(leader.followers.values()))
                        return partial(call, name=name)
                sleep(0.1)
            raise AssertionError("the gang is never whole")

        yield formed


@pytest.mark.parametrize(
    ("rank", "place"),
    [
        (0, "backward"),
        (1, "forward"),
        (1, "sum"),
        *(
            pytest.param(*case, marks=pytest.mark.nightly)
            for case in ((0, "forward"), (0, "sum"), (1, "backward"))
        ),
    ],
)
def test_a_pack_that_does_not_fit_on_one_member_is_in_no_members_sum(gang, tiny_flux, rank, place):
    """Samples dealt: nobody waits for anybody in a pass, and all members agree afterwards."""
    call = gang()
    first, again, total, expected = call(bodies.train_twice, tiny_flux, {}, rank, place)
    assert (first, again) == ("too large", "added")
    assert total.packs == expected.packs == {0}
    assert total.metrics.num_pairs == expected.metrics.num_pairs == 4
    for name, value in expected.gradient.items():
        torch.testing.assert_close(total.gradient[name], value, rtol=1e-10, atol=1e-14)


def test_a_sum_without_packs_is_reduced_where_one_did_not_fit_on_a_member(gang, tiny_flux):
    """As where others have trained its pairs: members that made room for it add up what all do."""
    came, total = gang()(bodies.reduced_without_packs, tiny_flux, 1, "backward")
    assert came == "too large"
    assert (total.gradient, total.packs) == ({}, frozenset())


@pytest.mark.ci_but_one
@pytest.mark.parametrize(
    ("rank", "place"),
    [
        (0, "forward"),
        (1, "backward"),
        *(
            pytest.param(*case, marks=pytest.mark.nightly)
            for case in ((0, "backward"), (1, "forward"))
        ),
    ],
)
def test_in_a_gang_that_computes_together_one_line_says_what_to_change(
    gang, tiny_flux, rank, place
):
    call = gang()
    shares = {"shard_weights": True, "context_parallel": 2}
    with pytest.raises(UserError, match=r"g0 has not enough memory for the gradient .* 4 together"):
        call(bodies.train_twice, tiny_flux, shares, rank, place)


@pytest.mark.ci_but_one
@pytest.mark.parametrize(
    ("place", "rank"),
    [
        ("backward", 2),
        *(
            pytest.param(*case, marks=pytest.mark.nightly)
            for case in (
                ("forward", 0),
                ("forward", 1),
                ("forward", 2),
                ("backward", 0),
                ("backward", 1),
            )
        ),
    ],
)
def test_what_a_stage_has_no_room_for_is_said_though_others_wait_for_it(
    gang, tiny_families, rank, place
):
    call = gang("three")
    with pytest.raises(UserError, match=r"g0 has not enough memory for the gradient .* 4 together"):
        call(bodies.train_twice, tiny_families["flux"], {"stages": 3}, rank, place)


@pytest.mark.parametrize(
    ("rank", "role", "what"),
    [
        (1, "rollout", "to denoise one sample"),
        pytest.param(0, "trainer", "for the gradient of one", marks=pytest.mark.nightly),
        pytest.param(0, "rollout", "to denoise one sample", marks=pytest.mark.nightly),
        pytest.param(1, "trainer", "for the gradient of one", marks=pytest.mark.nightly),
    ],
)
def test_what_a_gang_cannot_measure_together_it_cannot_do(gang, tiny_flux, rank, role, what):
    """Where one member left a size out, the others would wait for it in the next pass."""
    call = gang()
    with pytest.raises(UserError, match=f"g0 has not enough memory {what}"):
        call(bodies.measured_once, tiny_flux, {"shard_weights": True}, rank, role)


def test_what_each_member_measures_alone_is_left_out_where_it_does_not_fit(gang, tiny_flux):
    call = gang()
    found = call(bodies.measured_once, tiny_flux, {}, 1, "trainer")
    assert found.pack.fixed + found.pack.per_item > 0


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.nightly), 1])
def test_an_evaluation_that_does_not_fit_on_one_member_is_one_line(gang, tiny_flux, rank):
    call = gang()
    with pytest.raises(
        UserError, match=r"g0 has not enough memory to sample a prompt for the eval"
    ):
        call(bodies.evaluated_once, tiny_flux, {}, rank)


SHARED = {"shard_weights": True, "context_parallel": 2}


@pytest.mark.ci_but_one
@pytest.mark.parametrize("rank", [0, 1])
def test_each_member_counts_what_it_needs_before_it_loads(gang, tiny_flux, rank):
    call = gang()
    rooms = [1 << 50, 1 << 50]
    rooms[rank] = 1
    expected = "g0, of 0 GB, lacks" if rank == 0 else r"g0\.1, of 0 GB, .*on member 1 of the gang"
    with pytest.raises(UserError, match=f"^{expected}"):
        call(bodies.load_with_room, tiny_flux, SHARED, rooms)


@pytest.mark.ci
@pytest.mark.parametrize("rank", [1, 2])
def test_a_stage_that_does_not_fit_is_named(gang, tiny_families, rank):
    """It has more blocks than others, or a smaller card."""
    call = gang("three")
    rooms: list[int | None] = [None, None, None]
    rooms[rank] = 1
    stages = {"stages": 3, "stage_blocks": [1, 1, 2]}
    with pytest.raises(
        UserError, match=rf"^g0\.{rank}, of 0 GB, .* parallel.stage_blocks may give"
    ):
        call(bodies.load_with_room, tiny_families["flux"], stages, rooms)


def test_what_was_counted_is_loaded_by_the_same_gang(gang, tiny_flux):
    """As on each GPU: while a member counts, it is in a gang of its own."""
    call = gang()
    counted = call(bodies.load_with_room, tiny_flux, SHARED, [1 << 50, 1 << 50])
    assert counted == call(bodies.load_with_room, tiny_flux, {}, [None, None])
