"""digen bench gang: commands of real gangs, and what it says of them."""

import pytest
from rich.console import Console

from deployments.bench.gang.calls import ARGUMENT_BYTES, Cost, bench_gang, print_bench


def text_of(*costs: Cost) -> str:
    console = Console(record=True, width=100)
    print_bench(costs, console)
    return " ".join(console.export_text().split())


def test_the_verdict_by_hand():
    quick, large = Cost(2, 0, [1.0, 3.0, 9.0]), Cost(2, 2_000_000, [5.0, 8.0, 6.0])
    assert quick.holds
    assert large.holds  # the limit is one of commands without arguments
    text = text_of(quick, large)
    assert "milliseconds of a command, 3 of each" in text
    assert "2 none 3.00" in text
    assert "2 2.0 MB 6.00" in text
    assert "at most 3 ms at the median: holds" in text
    assert not Cost(4, 0, [3.1, 3.2, 0.1]).holds
    assert "NOT met" in text_of(quick, Cost(4, 0, [3.1, 3.2, 0.1]))


@pytest.mark.nightly
@pytest.mark.parametrize("num_hosts", [1, 2])
def test_commands_of_a_real_gang(num_hosts):
    costs = bench_gang([2], num_hosts, 10)
    assert [(cost.num_members, cost.num_bytes) for cost in costs] == [
        (2, num_bytes) for num_bytes in ARGUMENT_BYTES
    ]
    assert all(len(cost.milliseconds) == 10 and min(cost.milliseconds) > 0 for cost in costs)
