"""The size of results, which Dask asks for whenever a task ends."""

import dask
import numpy as np
import pytest
import torch
from dask.sizeof import sizeof
from distributed import Client, LocalCluster, wait
from prefect.states import Completed

from digen_core.training.gradient import PackMetrics
from digen_core.training.gradient_sum import GradientSum, PackGradient
from tasks.cluster.cluster import QUIET
from tasks.cluster.listening import TaskWorker
from tasks.gang.received import note_received
from tasks.receipts import Received, collecting
from tasks.worker.span import span_on_receipt
from tasks.worker.transfers import received, sent_bytes


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


def test_what_many_workers_sent_for_a_task_is_counted():
    with (
        dask.config.set(QUIET),
        LocalCluster(
            n_workers=13,
            threads_per_worker=1,
            processes=False,
            dashboard_address=None,
            worker_class=TaskWorker,
        ) as cluster,
        Client(cluster) as client,
    ):
        receiver, *senders = client.scheduler_info(n_workers=-1)["workers"]
        parts = [client.submit(np.zeros, 1000, workers=[at], pure=False) for at in senders]
        wait(parts)
        sent = client.submit(
            lambda parts: [own.num_bytes for own in received()], parts, workers=[receiver]
        )
        assert sent.result() == [8000] * 12
