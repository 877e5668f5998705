"""The size of results, which Dask asks for whenever a task ends."""

import asyncio

import dask
import numpy as np
import pytest
import torch
from dask.sizeof import sizeof
from prefect.states import Completed

from digen_core.training.gradient import PackMetrics
from digen_core.training.gradient_sum import GradientSum, PackGradient
from tasks.cluster.cluster import QUIET
from tasks.cluster.listening import TaskWorker
from tasks.gang.received import note_received
from tasks.receipts import Received, collecting
from tasks.worker.span import span_on_receipt
from tasks.worker.transfers import sent_bytes


def test_arrays_count_as_they_are_sent():
    state = Completed(data={"a": np.zeros(1000), "b": [np.zeros(500, dtype=np.float32)]})
    assert 10_000 <= sizeof(state) < 13_000
    assert sizeof(state) == sent_bytes(state)


def test_the_sum_of_gradients_is_not_copied_for_it(monkeypatch):
    total = GradientSum()
    total.add(0, [PackGradient({"a": torch.ones(1000), "b": torch.ones(500)}, PackMetrics(2))])
    monkeypatch.setattr(torch.Tensor, "__reduce_ex__", lambda *_: pytest.fail("copied"))
    assert 6_000 <= sizeof(Completed(data=total)) < 9_000


def test_what_a_task_that_failed_was_sent_is_not_counted_for_the_next():
    def pull(num_bytes, fails):
        note_received([Received("tcp://there:1", num_bytes, 0.0, 1.0)])
        if fails:
            raise KeyError

    with pytest.raises(KeyError), collecting(), span_on_receipt("here"):
        pull(1000, fails=True)
    with collecting() as receipt, span_on_receipt("here"):
        pull(20, fails=False)
    assert receipt["ran"]["num_bytes"] == 20


def test_a_worker_remembers_what_more_workers_than_dask_counts_sent_it(tmp_path):
    async def remembered() -> int:
        worker = TaskWorker("tcp://127.0.0.1:9", local_directory=str(tmp_path))
        worker.transfer_incoming_log.extend({"who": number} for number in range(64))
        return len(worker.transfer_incoming_log)

    with dask.config.set(QUIET):
        assert asyncio.run(remembered()) == 64
