"""Workers that lost their scheduler, or that it let go of: another process takes their place."""

import subprocess
import sys
from contextlib import ExitStack, contextmanager
from time import monotonic, sleep

import pytest
from distributed import Client

from digen_core.config.schedule import ClusterConfig
from digen_core.errors import UserError
from support.mlflow_server import free_port
from support.waiting import comes_to
from tasks.cluster.calls import on_scheduler
from tasks.cluster.cluster import run_cluster
from tasks.cluster.presence import addresses_of, dismiss
from tasks.worker.process import await_scheduler

pytestmark = pytest.mark.slow


async def remove(address, dask_scheduler):
    """As a worker finds it whose heartbeat is faster than its nanny hears that it is dismissed."""
    await dask_scheduler.remove_worker(address, stimulus_id="test", close=False)


def cut_off(address, dask_scheduler):
    dask_scheduler.stream_comms[address].abort()


@contextmanager
def worker_process(scheduler, *arguments):
    command = [sys.executable, "-m", "tasks.worker.process", scheduler, "--name", "w", *arguments]
    process = subprocess.Popen(command)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


def statuses_of_nannies(client):
    return {*client.run(lambda dask_worker: dask_worker.status.name, nanny=True).values()}


def await_address(client, other_than=None):
    deadline = monotonic() + 120
    while (found := addresses_of(client, ["w"]).get("w")) in (None, other_than):
        assert monotonic() < deadline
        sleep(0.2)
    return found


@pytest.mark.nightly
def test_a_worker_comes_back_whatever_parted_it_from_its_scheduler():
    with (
        run_cluster(ClusterConfig(tls=False), []) as scheduler,
        worker_process(scheduler) as process,
        Client(scheduler, set_as_default=False) as client,
    ):
        address = await_address(client)
        for part in (remove, cut_off):
            on_scheduler(client, part, address=address)
            address = await_address(client, other_than=address)
        dismiss(client, address)
        await_address(client, other_than=address)
        assert process.poll() is None


@pytest.mark.ci
def test_a_worker_ends_with_its_scheduler():
    with ExitStack() as ending:
        scheduler = ending.enter_context(run_cluster(ClusterConfig(tls=False), []))
        with worker_process(scheduler) as process:
            with Client(scheduler, set_as_default=False) as client:
                await_address(client)  # its nanny may not have heard of it yet
                assert comes_to(lambda: statuses_of_nannies(client) == {"running"})
            ending.close()
            assert process.wait(60) == 0


@pytest.mark.ci
def test_a_worker_that_is_started_before_its_scheduler_waits(monkeypatch):
    """Also for longer than Dask tries to connect, here a second: as where pods or jobs start."""
    monkeypatch.setenv("DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT", "1s")
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    with worker_process(address) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(8)
        where = ["--host", "127.0.0.1", "--port", str(port), "--no-dashboard"]
        command = [sys.executable, "-m", "distributed.cli.dask_scheduler", *where]
        with subprocess.Popen(command) as scheduler:
            monkeypatch.delenv("DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT")
            try:
                with Client(address, timeout="30s", set_as_default=False) as client:
                    await_address(client)
            finally:
                scheduler.kill()


def test_a_worker_whose_scheduler_does_not_come_says_so(capsys):
    address = f"tcp://127.0.0.1:{free_port()}"
    said = rf"no scheduler answers at {address} \(.*refused\), for 1 s; start it"
    with pytest.raises(UserError, match=said):
        await_scheduler([address, "--name", "w", "--death-timeout", "1"])
    waits = f"waiting for the scheduler at {address}, 1 s at most\n"
    assert capsys.readouterr().err == waits


@pytest.mark.operation
def test_a_worker_that_is_cut_off_for_long_ends(tmp_path):
    """Its scheduler is killed, and says nothing."""
    file = tmp_path / "scheduler.json"
    where = ["--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(file), "--no-dashboard"]
    scheduler = subprocess.Popen([sys.executable, "-m", "distributed.cli.dask_scheduler", *where])
    try:
        while not file.exists() or not file.read_text():
            sleep(0.1)
        with Client(scheduler_file=str(file), set_as_default=False) as client:
            address = client.scheduler.address
            with worker_process(address, "--death-timeout", "40") as process:
                await_address(client)
                scheduler.kill()
                process.wait(150)
    finally:
        scheduler.kill()
        scheduler.wait()
