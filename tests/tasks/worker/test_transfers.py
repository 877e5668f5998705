"""The size of results, which Dask asks for whenever a task ends."""

import numpy as np
import pytest
import torch
from dask.sizeof import sizeof
from prefect.states import Completed

from digen_core.training.gradient import PackMetrics
from digen_core.training.gradient_sum import GradientSum, PackGradient
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
