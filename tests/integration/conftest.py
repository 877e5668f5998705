"""A run config for the tiny FLUX, and clusters that several tests share."""

from collections.abc import Iterator

import pytest
from distributed import Client

from support.runs import tree_of
from support.started import room_of, started_workers


@pytest.fixture(autouse=True)
def no_timelines(monkeypatch):
    """The runs of a test draw no timelines, a process of a second each; those of a module do."""
    monkeypatch.setattr("flows.runtime.publishing.is_drawn", lambda *of: False)


@pytest.fixture
def tree(tiny_flux, tmp_path) -> dict:
    """Config of a small run on it, as a tree to be changed."""
    return tree_of(tiny_flux, tmp_path)


@pytest.fixture(scope="session")
def cluster_address(request):
    """Return a function (rollout, trainers) -> address of a cluster of worker processes.

    They talk without TLS, as those of ``four_workers``.
    """
    from contextlib import ExitStack

    from digen_core.config.schedule import ClusterConfig
    from tasks.cluster.cluster import local_devices, run_cluster

    stack, addresses = ExitStack(), {}

    def address_of(rollout: int, trainers: int) -> str:
        if (rollout, trainers) not in addresses:
            config = ClusterConfig(rollout_workers=rollout, trainer_workers=trainers, tls=False)
            cluster = run_cluster(config, local_devices(config))
            addresses[rollout, trainers] = stack.enter_context(cluster)
        return addresses[rollout, trainers]

    with stack:
        yield address_of


@pytest.fixture(scope="session")
def four_workers(prefect_backend):
    """A client of four workers with both roles; a layout's case takes some of them.

    They talk without TLS, which takes a fifth of what such a run computes. Runs that start their
    own workers have it, and those of gangs.
    """
    from distributed import Client

    from digen_core.config.schedule import ClusterConfig
    from support.layout_runs import MAX_WORKERS
    from tasks.cluster.cluster import local_devices, run_cluster

    config = ClusterConfig(rollout_workers=MAX_WORKERS, tls=False)
    devices = local_devices(config, colocated=True)[:MAX_WORKERS]
    with (
        run_cluster(config, devices) as address,
        Client(address, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture
def run_layout(four_workers, tree, monkeypatch):
    """Return a function that runs a layout's case when all workers are there."""
    from support.layout_runs import MAX_WORKERS, run_case

    def run_on_all(case, **changes):
        four_workers.wait_for_workers(MAX_WORKERS, timeout=240)
        return run_case(case, tree, four_workers.scheduler.address, monkeypatch, **changes)

    return run_on_all


@pytest.fixture(scope="module")
def room(prefect_backend) -> Iterator[str]:
    """Address of a cluster with a gang of two on two hosts, and a worker that is in none."""
    with started_workers(*room_of("127.0.0.1", "127.0.0.2")) as (address, _):
        with Client(address, set_as_default=False) as client:
            hosts = {at.split(":")[1] for at in client.scheduler_info(n_workers=-1)["workers"]}
        assert hosts == {"//127.0.0.1", "//127.0.0.2"}
        yield address


@pytest.fixture
def follow(monkeypatch):
    """Return a function that lets a story see the contexts of a run."""
    from flows.runtime.context import context_of

    def let_see(story) -> None:
        def known(run_id):
            story.run_context = context_of(run_id)
            return story.run_context

        for module in ("prepare", "evaluate", "export", "runtime.iterations.iteration"):
            monkeypatch.setattr(f"flows.{module}.context_of", known)

    return let_see
