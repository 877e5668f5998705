"""Adaptive staleness in whole runs: the clip decides how many groups are stale."""

from dataclasses import replace

import pytest

from support.layout_runs import Case, check_weights

pytestmark = pytest.mark.slow

CASE = Case("tcss", (2, 1), 2, 3, share=1.0)
MOST, OLDEST = "staleness/most_groups", "staleness/most_iterations"


def rows_of(found) -> list[dict[str, float]]:
    rows = [record.metrics for record in found.records]
    for row in rows:
        assert row["staleness/groups"] <= row[MOST] <= 3
        assert (row["staleness/groups"] > 0) == ("train/stale_clip_fraction" in row)
    return rows


@pytest.mark.operation
def test_what_is_clipped_makes_fewer_groups_stale(run_layout):
    """Log-ratios of stale pairs are about 4e-5: all are beyond a range of 1e-9."""
    changes = {"algorithm.clip_range": 1e-9, "schedule.max_stale_clipped": 0.2}
    found = run_layout(CASE, num_iterations=6, **changes)
    check_weights(found, version=6)
    rows = rows_of(found)
    assert [row[MOST] for row in rows[:2]] == [3, 3]  # offered before anything is known
    clipped = [row for row in rows if row["staleness/groups"]]
    assert clipped, "nothing was ever stale: the layout does not overlap"
    assert all(row["train/stale_clip_fraction"] > 0.2 for row in clipped)
    assert max(row[MOST] for row in rows[-2:]) <= 1


@pytest.mark.operation
def test_the_oldest_versions_are_given_up_first(run_layout):
    changes = {"algorithm.clip_range": 1e-9, "schedule.max_stale_clipped": 0.2}
    changes |= {"schedule.max_staleness": 2}
    training_waits = replace(CASE, workers=(3, 1), pack=1)  # with many tasks: others run ahead
    found = run_layout(training_waits, num_iterations=8, **changes)
    check_weights(found, version=8)
    rows = rows_of(found)
    limits = [(row[MOST], row[OLDEST]) for row in rows]
    assert limits[:3] == [(3, 2)] * 3  # offered before anything is known
    assert max(most for most, _ in limits[-2:]) <= 1
    for row in rows:
        assert row["staleness/iterations_max"] <= row[OLDEST]
    assert max(row["staleness/iterations_max"] for row in rows) == 2, "nothing ran ahead"
    assert rows[-1][OLDEST] == 1


@pytest.mark.operation
def test_what_is_not_clipped_stays(run_layout):
    changes = {"algorithm.clip_range": 0.5, "schedule.max_stale_clipped": 0.2}
    found = run_layout(CASE, **changes)
    check_weights(found)
    assert [row[MOST] for row in rows_of(found)] == [3, 3, 3]
