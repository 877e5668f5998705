"""digen bench push: what it counts, on real workers, and what it says of that."""

import pytest
from rich.console import Console

from deployments.bench.push.deltas import Both, Crossed, Deltas, bench_deltas, print_deltas
from deployments.bench.push.pulls import Measured, bench_push, print_bench

SECONDS = {"before": [6.0, 9.0, 4.0], "pull": [1.0, 1.0, 1.0]}
BUCKET = 16 << 20


def test_the_verdict_by_hand():
    measured = Measured(200_000_000, 202_000_000, 2 * BUCKET, SECONDS)
    assert measured.ratios == [4.0, 6.0, 9.0]
    assert (measured.moved, measured.buckets) == (1.01, 2.0)
    console = Console(record=True, width=300)
    print_bench(measured, console)
    text = " ".join(console.export_text().split())
    assert "push of 200 MB in the model's dtype, medians of 3 interleaved rounds" in text
    assert "moves 1.0100 x the bytes (limit 1.05), needs 2.00 buckets" in text
    assert "6.0 times as fast (4.0 to 9.0 in the rounds, limit 5): all hold" in text


@pytest.mark.parametrize(
    "measured",
    [
        Measured(200, 200, 0, {"before": [4.9], "pull": [1.0]}),
        Measured(200, 211, 0, SECONDS),
        Measured(200, 200, 3 * BUCKET + BUCKET // 2, SECONDS),
    ],
    ids=["slow", "bytes", "memory"],
)
def test_each_limit_counts(measured):
    assert not measured.holds
    console = Console(record=True, width=300)
    print_bench(measured, console)
    assert "NOT met" in console.export_text()


@pytest.mark.operation
@pytest.mark.parametrize("tls", [False, True])
def test_versions_are_pushed_between_real_workers(tls):
    measured = bench_push(80, 2, tls=tls)
    assert 60e6 < measured.version_bytes < 100e6
    assert 1 < measured.moved <= 1.05
    assert 0 < measured.buckets <= 3.1
    assert [len(seconds) for seconds in measured.seconds.values()] == [2, 2]
    assert all(each > 0 for seconds in measured.seconds.values() for each in seconds)


def test_deltas_by_hand():
    def both(num_bytes, seconds, packing):
        dense = Crossed(2_000_000, 0.25, 0.5, 0.25)
        return Both(dense, Crossed(num_bytes, seconds, 0.5 + packing, 0.25 + packing / 2))

    rounds = [both(100_000, 0.5, 0.002), both(200_000, 0.125, 0.004), both(300_000, 1.0, 0.008)]
    assert [own.share for own in rounds] == [0.05, 0.1, 0.15]
    assert (rounds[1].packing, rounds[1].unpacking) == pytest.approx((2.0, 1.0))
    console = Console(record=True, width=300)
    print_deltas([Deltas(1e-5, 0.125, rounds)], console)
    lines = [" ".join(line.split()) for line in console.export_text().splitlines()]
    assert lines[0] == "deltas of 2 MB, a step of AdamW apart, medians of 3"
    assert lines[2] == "1e-05 0.20 0.100 0.125 0.500 0.250 2.0 1.0"


@pytest.mark.ci
def test_versions_are_pulled_as_deltas_between_real_workers():
    rates = [1e-4, 1e-6]
    found = bench_deltas(1, 2, rates)
    assert [own.learning_rate for own in found] == rates
    for own, least, most in zip(found, (0.15, 0.01), (0.3, 0.06), strict=True):
        assert [least < both.share < most for both in own.rounds] == [True, True]
        assert least < own.first_share < most
        assert all(both.delta.seconds > 0 for both in own.rounds)
        assert {both.dense.num_bytes for both in own.rounds} == {own.rounds[0].dense.num_bytes}
