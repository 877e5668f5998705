"""Calls to the scheduler and to workers end, whatever hangs."""

import asyncio
import time

import pytest
from distributed import Client

from support.clusters import threads_cluster
from tasks.cluster import calls
from tasks.cluster.calls import (
    SchedulerLostError,
    WorkerLostError,
    on_scheduler,
    on_worker,
    on_workers,
    silent_among,
)
from tasks.cluster.presence import dismiss, present_workers


@pytest.fixture
def cluster():
    with threads_cluster(2) as made:
        yield made


@pytest.fixture
def client(cluster):
    with Client(cluster, set_as_default=False) as made:
        yield made


def address(dask_worker=None):
    return dask_worker.address


async def never(dask_worker=None):
    await asyncio.Event().wait()


async def never_on_scheduler(dask_scheduler=None):
    await asyncio.Event().wait()


def fails():
    raise OSError("no space left on device")


def test_an_answer_comes_back(client):
    first, second = present_workers(client)
    assert on_worker(client, first, address) == first
    assert on_workers(client, [first, second], address) == {first: first, second: second}


async def cut(dask_worker=None):
    """End the connections to a worker, which stays, as a network between two hosts may."""
    for comm in list(dask_worker._comms):
        comm.abort()
    await asyncio.Event().wait()


def test_a_connection_that_ends_is_no_error_of_what_was_called(client):
    """A run would take it for one of the disk on which the worker was to write."""
    first, _ = present_workers(client)
    with pytest.raises(WorkerLostError, match=f"{first} does not answer"):
        on_worker(client, first, cut, seconds=None)
    assert first in present_workers(client)


def test_who_does_not_answer_is_given_up(client, monkeypatch):
    monkeypatch.setattr(calls, "CALL_SECONDS", 0.2)
    first, second = present_workers(client)
    with pytest.raises(WorkerLostError, match=f"{first} does not answer"):
        on_worker(client, first, never, seconds=0.2)
    assert on_workers(client, [first, "tcp://127.0.0.1:1"], address, seconds=5) == {first: first}
    with pytest.raises(SchedulerLostError, match=r"the Dask scheduler .* does not answer"):
        on_scheduler(client, never_on_scheduler)
    assert on_worker(client, second, address) == second


@pytest.mark.nightly
def test_who_is_not_heard_of_is_not_waited_for(client, monkeypatch):
    """One that is slow, but heard of, is."""
    monkeypatch.setattr(calls, "LOOK_SECONDS", 1.0)
    first, second = present_workers(client)
    client.run(hold_its_tongue, workers=[first])
    started = time.monotonic()
    assert on_workers(client, [first, second], answer_late, seconds=60, silence=4) == {
        second: second
    }
    assert 6 <= time.monotonic() - started < 50
    assert silent_among(client, [first, second, "tcp://127.0.0.1:1"], 4) == {
        first,
        "tcp://127.0.0.1:1",
    }
    started = time.monotonic()
    assert on_workers(client, [first], never, seconds=60, silence=4) == {}
    assert time.monotonic() - started < 10


async def answer_late(dask_worker=None):
    """The first worker says nothing at all."""
    if not dask_worker.periodic_callbacks["heartbeat"].is_running():
        await asyncio.Event().wait()
    await asyncio.sleep(6)
    return dask_worker.address


def hold_its_tongue(dask_worker=None):
    dask_worker.periodic_callbacks["heartbeat"].stop()


def test_without_a_limit_a_call_waits_as_long_as_the_worker_is_there(client, monkeypatch):
    monkeypatch.setattr(calls, "LOOK_SECONDS", 0.1)
    first, _ = present_workers(client)

    async def later(dask_worker=None):
        await asyncio.sleep(0.5)
        return "written"

    assert on_worker(client, first, later, seconds=None) == "written"
    client.loop.call_later(0.5, dismiss_soon, client, first)
    with pytest.raises(WorkerLostError):
        on_worker(client, first, never, seconds=None)


def dismiss_soon(client, worker):
    from threading import Thread

    Thread(target=dismiss, args=(client, worker)).start()


def test_what_the_function_raises_comes_back(client):
    first, _ = present_workers(client)
    with pytest.raises(OSError, match="no space left"):
        on_worker(client, first, fails)


def test_a_scheduler_that_is_gone_is_said_to_be():
    with threads_cluster() as cluster:
        client = Client(cluster.scheduler_address, set_as_default=False)
        assert present_workers(client)
    deadline = time.monotonic() + 30
    while True:
        with pytest.raises(SchedulerLostError, match="the Dask scheduler") as error:
            present_workers(client)
        if "is gone; see its log" in str(error.value):
            break
        assert time.monotonic() < deadline
        time.sleep(0.1)
    client.close(timeout=1)
