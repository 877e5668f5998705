"""The followers that one command starts beside a gang's leader."""

import signal
import subprocess
import sys
from time import monotonic, sleep

import pytest
from distributed import Client

from digen_core.config.schedule import ClusterConfig
from digen_core.errors import UserError
from tasks.cluster.cluster import run_cluster
from tasks.cluster.presence import present_workers
from tasks.worker.followers import gpus_of
from tasks.worker.process import main


def test_each_member_has_a_gpu_of_its_own():
    assert gpus_of({}, 3) == ["0", "1", "2"]
    assert gpus_of({"CUDA_VISIBLE_DEVICES": "3,5,6"}, 2) == ["3", "5"]
    with pytest.raises(UserError, match="CUDA_VISIBLE_DEVICES is 3, but a gang of 2 needs 2 GPUs"):
        gpus_of({"CUDA_VISIBLE_DEVICES": "3"}, 2)


def test_a_gang_is_no_worker_for_each_gpu(capsys):
    address = "tcp://127.0.0.1:1"
    assert main([address, "--name", "a", "--cuda", "--members", "2"]) == 2
    assert "leave it out with --members 2" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_gang_comes_and_goes_with_its_command(dask_scheduler_address, number):
    command = [sys.executable, "-m", "tasks.worker.process", dask_scheduler_address]
    command += ["--name", "g", "--resources", "trainer=1", "--members", "3"]
    with Client(dask_scheduler_address) as client:

        def names() -> set[str]:
            return {worker.name for worker in present_workers(client).values()}

        process = subprocess.Popen(command)
        try:
            await_that(lambda: names() == {"g", "g.1", "g.2"})
            (leader,) = (w for w in present_workers(client).values() if w.name == "g")
            assert (leader.size, leader.lacks, leader.roles) == (3, [], {"trainer"})
        finally:
            process.send_signal(number)
            process.wait(30)
        await_that(lambda: not names())


def await_that(condition, seconds=120):
    deadline = monotonic() + seconds
    while not condition():
        assert monotonic() < deadline
        sleep(0.2)


@pytest.fixture
def dask_scheduler_address():
    """Address of a scheduler without workers."""
    with run_cluster(ClusterConfig(tls=False), []) as address:
        yield address
