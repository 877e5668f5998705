"""The verdict on what a task costs, from costs that are given."""

from rich.console import Console

from deployments.bench.runner import RunnerBench, TaskCost, print_bench


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
