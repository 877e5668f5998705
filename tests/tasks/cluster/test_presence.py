"""What a run learns from its workers before it starts."""

from threading import Event, Thread

import pytest
from distributed import Client

from digen_core.config.schedule import ClusterConfig
from digen_core.control.layout import LAYOUTS
from digen_core.control.protocol import Device
from digen_core.errors import UserError
from support.clusters import threads_cluster
from tasks.cluster.calls import on_scheduler
from tasks.cluster.cluster import devices_of, exclusive, in_one_role
from tasks.cluster.presence import (
    Presence,
    addresses_of,
    present_workers,
    recompute_elsewhere,
)


@pytest.fixture
def present(monkeypatch):
    """Return a function that lets the cluster have some workers: (name, resources, processor)."""

    def show(*workers):
        seen = {
            f"tcp://10.0.0.{i}:1": Presence(name, f"tcp://10.0.0.{i}:1", frozenset(resources), 0.1)
            for i, (name, resources, _) in enumerate(workers)
        }
        kinds = {at: worker[2] for at, worker in zip(seen, workers, strict=True)}
        monkeypatch.setattr("tasks.cluster.cluster.present_workers", lambda client: seen)
        asked = lambda client, at, function, seconds: {a: kinds[a] for a in at}  # noqa: E731
        monkeypatch.setattr("tasks.cluster.presence.on_workers", asked)

    return show


def test_devices_have_roles_and_the_kind_of_their_processor(present):
    present(
        ("t1", ["trainer"], "NVIDIA H200"),
        ("r0", ["rollout", "memory"], "NVIDIA A100"),
        ("idle", [], "cpu"),
    )
    rollout, trainer = devices_of(None)
    assert (rollout.name, rollout.roles, rollout.kind) == ("r0", {"rollout"}, "NVIDIA A100")
    assert (trainer.name, trainer.roles, trainer.kind) == ("t1", {"trainer"}, "NVIDIA H200")


def test_a_colocated_layout_needs_both_roles_on_every_worker(present):
    present(("a", ["rollout", "trainer"], "cpu"), ("b", ["trainer"], "cpu"))
    assert len(devices_of(None)) == 2
    with pytest.raises(ValueError, match="workers b have one role only"):
        devices_of(None, colocated=True)


def test_workers_are_seen_whatever_the_client_asks_meanwhile(dask_cluster):
    """By itself the client asks for an answer without workers, and keeps the last answer."""
    with Client(dask_cluster) as client:
        names = [worker.name for worker in present_workers(client).values()]
        assert len(names) == 2
        is_over = Event()

        async def ask_all_the_time():
            while not is_over.is_set():
                await client._update_scheduler_info()

        client.loop.add_callback(ask_all_the_time)
        try:
            found = [addresses_of(client, names) for _ in range(100)]
        finally:
            is_over.set()
        assert all(sorted(addresses) == sorted(names) for addresses in found)


@pytest.mark.slow
def test_nothing_samples_the_stacks_of_a_worker():
    """Dask's profiler and the garbage collector can lock up an interpreter of CPython 3.11."""
    import threading

    from distributed import Client

    from digen_core.config.schedule import ClusterConfig
    from tasks.cluster.cluster import local_devices, run_cluster

    def sampling(dask_worker):
        callbacks = [name for name in dask_worker.periodic_callbacks if "profile" in name]
        threads = [thread.name for thread in threading.enumerate() if "rofile" in thread.name]
        return callbacks + threads

    config, of_others = ClusterConfig(), set(sampling_here())
    with (
        run_cluster(config, local_devices(config)) as address,
        Client(address, set_as_default=False) as client,
    ):
        assert list(client.run(sampling).values()) == [[], []]
        assert of_others.issuperset(client.run_on_scheduler(sampling_here))


def sampling_here():
    import threading

    return [thread.ident for thread in threading.enumerate() if "rofile" in thread.name]


@pytest.mark.parametrize(
    ("roles", "counts", "expected"),
    [
        ("bb", (1, 1), "rt"),
        ("bbbb", (3, 1), "rrrt"),
        ("bbb", (9, 1), "rrt"),
        ("bbb", (1, 9), "rtt"),
        ("rbb", (1, 1), "rrt"),
        ("rrb", (1, 1), "rrt"),
        ("tbb", (2, 1), "trr"),
        ("rt", (5, 1), "rt"),
        ("b", (1, 1), "b"),
    ],
)
def test_workers_that_may_do_both_are_dealt_in_the_configs_proportion(roles, counts, expected):
    names = {"r": {"rollout"}, "t": {"trainer"}, "b": {"rollout", "trainer"}}
    devices = [Device(str(i), frozenset(names[role])) for i, role in enumerate(roles)]
    config = ClusterConfig(rollout_workers=counts[0], trainer_workers=counts[1])
    dealt = in_one_role(devices, config, LAYOUTS["elastic"])
    assert [device.name for device in dealt] == [device.name for device in devices]
    assert [device.roles for device in dealt] == [names[role] for role in expected]


def test_one_worker_that_may_do_both_is_none_for_each_role():
    """Such a run stood still when all was generated, or ended with a division by zero."""
    devices = [Device("gpu-0", frozenset({"rollout", "trainer"}))]
    for layout in ("disaggregated", "gap", "tsp", "tag"):
        with pytest.raises(UserError, match=f"one worker, gpu-0, but layout {layout} needs one f"):
            in_one_role(devices, ClusterConfig(), LAYOUTS[layout])


def test_two_runs_do_not_share_a_cluster(dask_cluster):
    with Client(dask_cluster, set_as_default=False) as one:
        with exclusive(one, lambda: pytest.fail("the cluster is free")):
            waiting, ended = Event(), Event()

            def second():
                with (
                    Client(dask_cluster, set_as_default=False) as two,
                    exclusive(two, waiting.set),
                ):
                    ended.set()

            thread = Thread(target=second)
            thread.start()
            assert waiting.wait(10)
            assert not ended.is_set()
        thread.join(10)
        assert ended.is_set()


def test_the_environment_names_the_cluster_where_the_config_does_not(monkeypatch):
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", "tcp://10.0.0.1:8786")
    assert ClusterConfig().address == "tcp://10.0.0.1:8786"
    assert ClusterConfig(scheduler_address="tcp://10.0.0.2:1").address == "tcp://10.0.0.2:1"
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS")
    assert ClusterConfig().address is None


async def lose(address, dask_scheduler):
    """Take a worker out of the cluster."""
    await dask_scheduler.remove_worker(address, stimulus_id="lost")


def test_what_was_on_a_second_worker_that_is_lost_is_recomputed():
    """It was made on one that had been lost before, when nobody had to make it again."""
    with threads_cluster(3) as cluster, Client(cluster) as client:
        client.amm.stop()
        first, second, third = present_workers(client)
        made = client.submit(sum, [1, 2], workers=[first])
        assert client.submit(abs, made, workers=[second]).result(timeout=60) == 3
        on_scheduler(client, lose, address=first)
        recompute_elsewhere(client, [first], third)
        on_scheduler(client, lose, address=second)
        needed = client.submit(str, made, workers=[third])
        client.submit(int, workers=[third]).result(timeout=60)  # the scheduler has heard of both
        recompute_elsewhere(client, [second], third)
        assert needed.result(timeout=60) == "3"
