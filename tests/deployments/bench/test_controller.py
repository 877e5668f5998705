"""digen bench controller: what it counts, and what it prints."""

import gc
import re

import pytest

from deployments.bench.controller import CollectorClock, exponent, measure
from deployments.cli import run


def test_the_exponent_of_a_power():
    assert exponent([10, 100, 1000], [3 * size**1.5 for size in (10, 100, 1000)]) == pytest.approx(
        1.5
    )


def test_a_layout_is_measured():
    row = measure("tsp", 4)
    assert (row.layout, row.devices, row.fragments) == ("tsp", 4, 64)
    # Of each of two iterations at least: fragments generated and scored, groups, packs of 4 pairs.
    assert row.events >= 2 * (64 + 64 + 4 + 64 * 9 // 4)
    assert 0 < row.controller < row.simulation
    assert row.microseconds == pytest.approx(1e6 * row.controller / row.events)
    assert not any(isinstance(callback, CollectorClock) for callback in gc.callbacks)


def test_collections_are_timed():
    clock, kept = CollectorClock(), [[] for _ in range(100_000)]
    gc.callbacks.append(clock)
    gc.collect()
    gc.callbacks.remove(clock)
    assert clock.seconds > 0
    assert len(kept) == 100_000


def test_the_table_fits_80_columns_and_says_how_it_grows(capsys):
    assert run(["bench", "controller", "--layout", "tcss", "+tsp", "--devices", "4", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[:5])) <= 80
    assert "…" not in "".join(lines)
    assert [line.split()[:3] for line in lines[1:5]] == [
        ["tcss", "2", "32"],
        ["tcss", "4", "64"],
        ["tsp", "2", "32"],
        ["tsp", "4", "64"],
    ]
    for line, layout in zip(lines[5:], ("tcss", "tsp"), strict=True):
        assert re.match(
            rf"{layout}: the controller's seconds grow with fragments\^-?\d\.\d\d", line
        )
