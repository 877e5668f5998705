"""What a run learns from its workers before it starts."""

import pytest

from tasks.cluster import devices_of


class Workers:
    """A Dask client as far as devices_of needs it."""

    def __init__(self, *workers):
        self.workers = {
            f"tcp://10.0.0.{i}:1": {"name": name, "resources": dict.fromkeys(roles, 1)}
            for i, (name, roles, _) in enumerate(workers)
        }
        self.processors = {at: w[2] for at, w in zip(self.workers, workers, strict=True)}

    def scheduler_info(self, n_workers):
        return {"workers": self.workers}

    def run(self, function, workers):
        return {address: self.processors[address] for address in workers}


def test_devices_have_roles_and_the_kind_of_their_processor():
    client = Workers(
        ("t1", ["trainer"], "NVIDIA H200"),
        ("r0", ["rollout", "memory"], "NVIDIA A100"),
        ("idle", [], "cpu"),
    )
    rollout, trainer = devices_of(client)
    assert (rollout.name, rollout.roles, rollout.kind) == ("r0", {"rollout"}, "NVIDIA A100")
    assert (trainer.name, trainer.roles, trainer.kind) == ("t1", {"trainer"}, "NVIDIA H200")


def test_a_colocated_layout_needs_both_roles_on_every_worker():
    client = Workers(("a", ["rollout", "trainer"], "cpu"), ("b", ["trainer"], "cpu"))
    assert len(devices_of(client)) == 2
    with pytest.raises(ValueError, match="workers b have one role only"):
        devices_of(client, colocated=True)


@pytest.mark.slow
def test_nothing_samples_the_stacks_of_a_worker():
    """Dask's profiler and the garbage collector can lock up an interpreter of CPython 3.11."""
    import threading

    from distributed import Client

    from digen_core.schedule_config import ClusterConfig
    from tasks.cluster import local_devices, run_cluster

    def sampling(dask_worker):
        callbacks = [name for name in dask_worker.periodic_callbacks if "profile" in name]
        threads = [thread.name for thread in threading.enumerate() if "rofile" in thread.name]
        return callbacks + threads

    config = ClusterConfig()
    with (
        run_cluster(config, local_devices(config)) as address,
        Client(address, set_as_default=False) as client,
    ):
        assert list(client.run(sampling).values()) == [[], []]
        assert client.run_on_scheduler(sampling_here) == []


def sampling_here():
    import threading

    return [thread.name for thread in threading.enumerate() if "rofile" in thread.name]
