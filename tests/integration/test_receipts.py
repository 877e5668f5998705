"""Receipts and the bench's verdict: no server, no cluster."""

import numpy as np
import pytest
from rich.console import Console

from deployments.bench.runner import RunnerBench, TaskCost, print_bench
from tasks.receipts import attach, collecting


def test_later_facts_replace_earlier_ones():
    with collecting() as receipt:
        attach({"a": 1, "b": [1.5, None]})
        attach({"a": 2})
    assert receipt == {"a": 2, "b": [1.5, None]}


def test_nobody_collects():
    attach({"a": 1})


@pytest.mark.parametrize("value", [np.float32(1), object(), {1, 2}])
def test_only_plain_values(value):
    with collecting() as receipt, pytest.raises(TypeError, match="plain values"):
        attach({"a": value})
    assert receipt == {}


def test_large_receipts_are_refused():
    with collecting(), pytest.raises(ValueError, match="65536"):
        attach({"a": bytes(70_000)})


def test_bench_verdict():
    def cost(client: float, worker: float) -> TaskCost:
        return TaskCost(client, worker, 1.0, 25.0, 5.0, 6.0)

    bench = RunnerBench(60, bare=[cost(1, 1)], lean=[cost(1, 9)], stock=[cost(30, 50)])
    console = Console(record=True, width=120)
    print_bench(bench, console)

    assert bench.holds
    assert bench.ratio_to_stock == 8.0
    assert not RunnerBench(60, bench.bare, lean=[cost(8, 8)], stock=[cost(90, 90)]).holds
    assert "8.0 times below stock (limit 6): both hold" in console.export_text()
