"""The members of a gang that one command starts."""

import signal
import subprocess
import sys
from time import monotonic, sleep

import psutil
import pytest
import torch
from distributed import Client

from digen_core import PYTHON
from digen_core.config.schedule import ClusterConfig
from digen_core.errors import UserError
from tasks.cluster.cluster import run_cluster
from tasks.cluster.listening import asked_of_worker
from tasks.cluster.presence import present_workers
from tasks.worker import followers
from tasks.worker.followers import gpus_of, member_arguments, ranks_of
from tasks.worker.process import _reason, main


def test_each_member_has_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert gpus_of({}, 3) == ["0", "1", "2"]
    assert gpus_of({"CUDA_VISIBLE_DEVICES": "3,5,6"}, 2) == ["3", "5"]
    with pytest.raises(UserError, match="CUDA_VISIBLE_DEVICES is 3, but 2 members of a gang need"):
        gpus_of({"CUDA_VISIBLE_DEVICES": "3"}, 2)
    with pytest.raises(UserError, match=r"^this host has 4 GPUs, but 5 members .* need 5"):
        gpus_of({}, 5)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UserError, match="this host has 1 GPU, but 2 members of a gang need 2 GPUs"):
        gpus_of({}, 2)


@pytest.mark.parametrize("environment", [{"CUDA_VISIBLE_DEVICES": ""}, {}])
def test_where_no_gpu_is_to_be_seen_all_members_compute_on_the_cpu(environment, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert gpus_of(environment, 2) == ["", ""]


def test_too_few_gpus_are_one_line(capsys, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert main(["tcp://127.0.0.1:1", "--name", "a", "--members", "2"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("digen: this host has 1 GPU, but 2 members of a gang need 2 GPUs; ")


def test_a_gang_is_no_worker_for_each_gpu(capsys):
    address = "tcp://127.0.0.1:1"
    assert main([address, "--name", "a", "--cuda", "--members", "2"]) == 2
    assert "leave it out with --members 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "ranks"),
    [("", [0, 1, 2, 3]), ("0-1", [0, 1]), ("2-3", [2, 3]), ("0", [0]), ("3", [3]), ("1-1", [1])],
)
def test_ranks_are_members_of_the_gang(text, ranks):
    assert list(ranks_of(text, 4)) == ranks


@pytest.mark.parametrize("text", ["4", "2-4", "3-2", "-1", "0-", "a", "0,1", "0-1-2", "1000"])
def test_other_ranks_are_refused(text):
    with pytest.raises(UserError, match=f"--ranks is {text}; of a gang of 4 use one of 0 to 3, or"):
        ranks_of(text, 4)


def test_without_a_gang_there_are_no_ranks(capsys):
    assert main(["tcp://127.0.0.1:1", "--name", "a", "--ranks", "0-1"]) == 2
    expected = (
        "digen: --ranks is 0-1, but there is no gang; say how many members it has by --members"
    )
    assert capsys.readouterr().err == f"{expected}\n"


def test_a_member_has_its_own_name_and_only_the_leader_has_roles():
    asked = ["tcp://127.0.0.1:1", "--name", "g", "--resources", "trainer=1 site:a=1"]
    found = [asked_of_worker(member_arguments(asked, rank, 3)) for rank in range(3)]
    assert [(own["name"], own["resources"]) for own in found] == [
        ("g", "trainer=1 site:a=1 members=3"), ("g.1", "member=1"), ("g.2", "member=1"),
    ]  # fmt: skip


def test_a_second_leader_is_told_that_there_is_one():
    """As Dask's scheduler says it, under what its nanny makes of that."""
    found = RuntimeError("Nanny failed to start.")
    found.__cause__ = RuntimeError("TaskWorker failed to start.")
    assert _reason(found) is found.__cause__
    answer = {"status": "error", "message": "name taken, room", "time": 1.0}
    found.__cause__.__cause__ = ValueError(f"Unexpected response from register: {answer!r}")
    assert isinstance(_reason(found), UserError)
    assert str(_reason(found)).startswith("the cluster has a worker called room already; end that")


@pytest.mark.ci
@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGTERM, marks=pytest.mark.nightly), signal.SIGKILL]
)
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


@pytest.mark.slow
@pytest.mark.nightly
def test_a_member_whose_nanny_is_killed_is_started_anew(dask_scheduler_address):
    """Else its gang would lack it until somebody starts it again."""
    command = [sys.executable, "-m", "tasks.worker.process", dask_scheduler_address]
    command += ["--name", "g", "--resources", "trainer=1", "--members", "2"]
    with Client(dask_scheduler_address) as client, subprocess.Popen(command) as process:

        def seen() -> dict[str, str]:
            found = [own for own in present_workers(client).values() if own.name == "g"]
            return dict(found[0].followers) if found else {}

        try:
            await_that(lambda: seen().keys() == {"g.1"})
            before = seen()
            beside = psutil.Process(process.pid).children(recursive=True)
            words = {own: own.cmdline() for own in beside}
            (nanny,) = (own for own in beside if words[own][:4] == NANNY and "g.1" in words[own])
            nanny.kill()
            await_that(lambda: seen().keys() == {"g.1"} and seen() != before)
        finally:
            process.terminate()
            process.wait(60)


NANNY = [*PYTHON, "-m", "tasks.worker.process"]


def test_what_does_not_end_in_time_is_left_to_what_it_is_tied_to(monkeypatch):
    waited = []

    class Frozen:
        def __init__(self, command, **_):
            self.name = command[-1]

        def terminate(self):
            waited.append(f"ends {self.name}")

        def wait(self, seconds):
            waited.append(f"awaited {self.name}")
            raise subprocess.TimeoutExpired(self.name, seconds)

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(subprocess, "Popen", Frozen)
    with followers.beside([["g.1"], ["g.2"]]):
        pass
    assert waited == ["ends g.1", "ends g.2", "awaited g.1", "awaited g.2"]


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
