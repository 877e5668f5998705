"""Which sockets workers and clusters open, and who can run code through them."""

import asyncio
import os
import re
import subprocess
import sys
import time

import dask
import psutil
import pytest
from distributed import Client, Security, SpecCluster

from deployments.bench.gang.calls import gang_cluster
from deployments.cli import run
from digen_core.config.schedule import ClusterConfig
from digen_core.errors import UserError
from support.gang_functions import summed as summed_by_all
from support.paths import ROOT
from support.sockets import (
    address_in_the_network,
    assert_documented,
    documented,
    listening,
    parts_of_dask,
    run_code_at,
)
from tasks.cluster.cluster import local_devices, run_cluster
from tasks.cluster.listening import (
    ENCRYPTED,
    is_loopback,
    options_of_worker,
    own_scheduler,
    own_tls_settings,
    require_entry,
    tls_settings,
)
from tasks.cluster.presence import present_workers
from tasks.gang.forming import form_gang
from tasks.worker.process import main

PREFECT = ("127.0.0.1", 4200)
NAMED = ["--name", "a", "--resources", "rollout=1"]


@pytest.fixture
def scheduler():
    """A scheduler without TLS on this machine, as Dask's users start it."""
    with SpecCluster(scheduler=own_scheduler(tls=False), workers={}) as cluster:
        yield cluster.scheduler_address


@pytest.fixture
def worker(scheduler):
    """The process of ``digen worker``, when the scheduler has it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tasks.worker.process", scheduler, *NAMED],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with Client(scheduler, set_as_default=False) as client:
            deadline = time.monotonic() + 120
            while not present_workers(client):
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.1)
            yield process, client
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.ci
def test_a_worker_of_a_loopback_scheduler_is_reached_from_this_machine_only(worker):
    process, client = worker
    (address,) = present_workers(client)
    sockets = listening([psutil.Process(process.pid)])
    assert len(sockets) == 2
    parts = parts_of_dask(client)
    assert_documented("digen worker", sockets, parts)

    # The attack is one: on this machine it runs code. From the network it must not get there.
    here = address_in_the_network()
    nannies = [f"tcp://{host}:{port}" for (host, port), part in parts.items() if part == "nanny"]
    for victim in (address, *nannies):
        assert run_code_at(victim) in {one.pid for one in sockets.values()}
        with pytest.raises(OSError, match=r"[Tt]imed out|[Cc]onnection"):
            run_code_at(victim.replace("127.0.0.1", here))


@pytest.mark.slow
def test_the_cluster_of_a_run_takes_nobody_without_its_key():
    config = ClusterConfig()
    before = set(listening([psutil.Process()]))
    with (
        run_cluster(config, local_devices(config)[:1]) as address,
        Client(address, set_as_default=False) as client,
    ):
        sockets = set(listening([psutil.Process()])) - before
        assert len(sockets) == 4
        server = {PREFECT: "Prefect server"}  # tests/security/test_prefect.py has its socket
        assert_documented("digen train", {*sockets, PREFECT}, parts_of_dask(client) | server)

        (victim,) = present_workers(client)
        assert run_code_at(victim) != os.getpid()  # with the key it is no attack
        for scheme, security in (("tcp", Security()), ("tls", Security.temporary())):
            with pytest.raises(OSError, match=r"[Tt]imed out|established"):
                run_code_at(victim.replace("tls", scheme), security)


REFUSED = {
    "a scheduler of another machine": ["tcp://192.0.2.1:8786", *NAMED],
    "no scheme": ["192.0.2.1:8786", *NAMED],
    "another transport": ["ucx://192.0.2.1:8786", *NAMED],
    "all interfaces": ["tcp://127.0.0.1:8786", *NAMED, "--host", "0.0.0.0"],
    "an address to listen on": ["tcp://127.0.0.1:1", *NAMED, "--listen-address", "tcp://0.0.0.0:2"],
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_worker_that_would_listen_on_a_network_without_tls_is_refused(case):
    with pytest.raises(UserError, match=r"without TLS, .*digen up --host.*--insecure if you kno"):
        options_of_worker(REFUSED[case], insecure=False)
    assert "--worker-class" in options_of_worker(REFUSED[case], insecure=True)


def test_the_command_refuses_it_in_one_line(capsys, monkeypatch):
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", "tcp://192.0.2.1:8786")
    assert run(["worker", "--name", "a"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("digen: a worker of tcp://192.0.2.1:8786 would listen on ")
    assert err.count("\n") == 1
    assert main(["tcp://192.0.2.1:8786", *NAMED]) == 2
    assert capsys.readouterr().err == err


@pytest.fixture
def locked_scheduler():
    """A scheduler with TLS, whose key the process of the test has in no setting any more."""
    with dask.config.set(own_tls_settings(tls=True)):
        cluster = SpecCluster(scheduler=own_scheduler(tls=True), workers={})
    with cluster:
        yield cluster.scheduler_address


NOT_LET_IN = r"does not let this process in \(%s.*\); .*: set -a; . runs/up/env; set \+a"


def test_whoever_lacks_the_key_of_a_scheduler_is_told_where_it_is(locked_scheduler, capsys):
    refused = NOT_LET_IN % "no key for TLS is set here"
    assert main([locked_scheduler, *NAMED]) == 2
    assert re.search(refused, capsys.readouterr().err)
    assert run(["worker", locked_scheduler, "--name", "a", "--leave"]) == 2
    assert re.search(refused, capsys.readouterr().err)
    config = ClusterConfig(scheduler_address=locked_scheduler)
    with pytest.raises(UserError, match=refused), run_cluster(config, []):
        pass
    with dask.config.set(own_tls_settings(tls=True)):
        require_entry(locked_scheduler, "worker")
        asyncio.run(in_a_notebook(locked_scheduler))


async def in_a_notebook(address: str) -> None:
    """Ask where a loop runs already."""
    require_entry(address, "client")


def test_another_key_or_none_lets_nobody_in(locked_scheduler, scheduler, tmp_path):
    made, paths = Security.temporary(), {name: str(tmp_path / name) for name in ("pem", "key")}
    (tmp_path / "pem").write_text(made.tls_ca_file)
    (tmp_path / "key").write_text(made.tls_client_key)
    other = tls_settings(paths["pem"], paths["key"])
    for settings, address, why in (
        (other, locked_scheduler, "TLS certificate does not match"),
        (tls_settings(paths["pem"], tmp_path / "gone"), locked_scheduler, "No such file"),
        ({}, locked_scheduler.replace("tls", "tcp"), ""),
        (other, scheduler.replace("tcp", "tls"), ""),
        (ENCRYPTED, scheduler, "encryption required"),
    ):
        with dask.config.set(settings), pytest.raises(UserError, match=NOT_LET_IN % f".*{why}"):
            require_entry(address, "client")


ALLOWED = {
    "TLS": (["tls://192.0.2.1:8786"], None),
    "this machine": (["tcp://127.0.0.1:8786"], "127.0.0.1"),
    "this machine by name": (["localhost:8786"], "127.0.0.1"),
    "this machine, IPv6": (["tcp://[::1]:8786"], "::1"),
}


@pytest.mark.parametrize("case", ALLOWED)
def test_a_worker_listens_where_it_reaches_its_scheduler(case):
    arguments, host = ALLOWED[case]
    options = options_of_worker(arguments, insecure=False)
    assert options[:3] == ["--worker-class", "tasks.cluster.listening.TaskWorker", "--host"]
    assert is_loopback(options[3]) == (host is not None)
    assert host in (None, options[3])


@pytest.mark.slow
def test_a_gang_over_two_hosts_listens_where_its_workers_do():
    with gang_cluster(["127.0.0.1", "127.0.0.2"]) as client:
        before = set(listening([psutil.Process()]))
        (leader,) = (own for own in present_workers(client).values() if own.size == 2)
        form_gang(client, leader.address, list(leader.followers.values()))
        found = {"follower": set(listening([psutil.Process()])) - before}
        (awaiting,) = found["follower"]
        summed = client.submit(summed_by_all, 1.0, 0.0, 1, workers=[leader.address], pure=False)
        assert summed.result(timeout=60) == 3.0
        of_torch = set(listening([psutil.Process()])) - before
        assert awaiting not in of_torch, "nobody else is awaited"
        found |= {"store": of_torch, "gloo, NCCL": of_torch}
        assert {part.split(" of ")[0] for part in documented("digen worker --ranks")} == set(found)
        assert awaiting[0] == "127.0.0.2"
        # Loopback is one interface, whose first address gloo takes for both.
        assert [host for host, _ in of_torch] == ["127.0.0.1"] * 3
