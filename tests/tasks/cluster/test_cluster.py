"""A run's own cluster, and what a run on another one shows in its terminal."""

import asyncio
import logging
import os
from asyncio import CancelledError

import dask
import pytest
from distributed import Client, Scheduler
from distributed.comm.core import CommClosedError

from digen_core.config.schedule import ClusterConfig
from tasks.cluster import cluster
from tasks.cluster.cluster import counted_nanny, run_cluster


@pytest.fixture(autouse=True)
def level():
    logger = logging.getLogger("distributed")
    before = logger.level
    logger.setLevel(logging.INFO)
    yield
    logger.setLevel(before)


@pytest.mark.parametrize(
    ("error", "is_shown"),
    [(None, True), (CommClosedError("gone"), True), (CancelledError(), False)],
)
def test_a_reconnect_that_is_given_up_is_not_shown(error, is_shown, monkeypatch):
    monkeypatch.setattr(cluster, "require_entry", lambda address, part: None)  # nobody is there
    info = None if error is None else (type(error), error, None)
    record = logging.LogRecord("distributed.client", logging.ERROR, "", 1, "text", (), info)
    with run_cluster(ClusterConfig(scheduler_address="tcp://127.0.0.1:8786"), []) as address:
        assert address == "tcp://127.0.0.1:8786"
        assert not logging.getLogger("distributed.batched").isEnabledFor(logging.INFO)
        assert bool(logging.getLogger("distributed.client").filter(record)) is is_shown


def test_the_cluster_of_a_run_is_there_until_that_ends():
    lasts = {
        "distributed.scheduler.idle-timeout": "1h",
        "distributed.worker.lifetime.duration": "1h",
    }
    with (
        dask.config.set(lasts),  # as of a user whose other clusters serve many
        run_cluster(ClusterConfig(tls=False), []) as address,
        Client(address) as client,
    ):
        assert client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.idle_timeout) is None
        assert (
            dask.config.get("distributed.worker.lifetime.duration") is None
        )  # which nannies pass on


def test_a_worker_that_a_question_to_all_does_not_reach_is_not_logged(caplog):
    nobody, soon = "tcp://127.0.0.1:1", {"distributed.comm.timeouts.connect": "1s"}
    with (
        dask.config.set(soon),
        run_cluster(ClusterConfig(tls=False), []) as address,
        Client(address) as client,
    ):
        assert client.run(int, workers=[nobody], on_error="ignore") == {}
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_worker_that_is_starting_as_its_cluster_closes_is_not_waited_for(tmp_path):
    (slow := tmp_path / "slow.py").write_text("import time\ntime.sleep(120)\n")

    async def close_at_once() -> int:
        async with Scheduler(dashboard=False, port=0) as scheduler:
            nanny = counted_nanny(1, lambda done, total: None)(
                scheduler.address, preload=[str(slow)]
            )
            starting = asyncio.ensure_future(nanny)
            while not (pid := nanny.pid):
                await asyncio.sleep(0.05)
            await asyncio.wait_for(nanny.close(), 60)
            await asyncio.wait([starting])
            return pid

    pid = asyncio.run(close_at_once())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
