"""What the benches of real compute print, from numbers by hand."""

import pytest

from deployments.bench import compute, packs
from deployments.bench.compute import Row, print_rows
from deployments.bench.packs import fitted, print_packs
from digen_core.config.run import RunConfig
from digen_core.control.costs import Linear
from digen_core.errors import UserError
from digen_core.records import IterationRecord, Span


def test_layouts_are_compared_with_those_that_ran(capsys):
    rows = [
        Row("serial", seconds=[3.0, 9.0, 3.0]),  # the median is 3
        Row("disaggregated", "disaggregated", "1:1", [4.0], [0.1], [0.5]),
        Row("auto", "colocated-strong", "both", [2.0], [-0.04, 0.2, 0.05], [0.9]),
    ]
    print_rows(rows, RunConfig(), rounds=3)
    text = capsys.readouterr().out
    serial, disaggregated, auto = [line.split() for line in text.splitlines()[-3:]]
    # 128 samples an iteration; times as fast as the serial loop and as disaggregated.
    assert serial == ["serial", "1", "3.00", "42.7", "1.00", "1.33", "-", "-"]
    assert disaggregated[1:] == ["1:1", "4.00", "32.0", "0.75", "1.00", "+10.0%", "50%"]
    assert auto[:2] == ["auto:", "colocated-strong"]
    assert auto[2:] == ["both", "2.00", "64.0", "1.50", "2.00", "+5.0%", "90%"]


def iteration_of(index: int, version: int) -> IterationRecord:
    """An iteration that ends 10 s after the one before; with a version of its own it is pushed."""

    def span(kind, iteration, start, end, version=-1):
        return Span(iteration, kind, kind, "rollout-0", start, start, end, version=version)

    start = 10.0 * index
    spans = [span("denoise", index, start, start + 5)]
    if version >= 0:
        spans += [span("step", index, start + 5, start + 6)]
        spans += [span("push", -1, start + 6, start + 10, version)]
    else:
        spans += [span("score", index, start + 5, start + 10)]
    metrics = {"makespan/predicted_error": 0.0, "idle/tail": 0.25}
    return IterationRecord(index, max(version, 0), 10.0, metrics, spans=spans)


@pytest.mark.parametrize("versions", [(1, 2, 3, 4, 5), (1, 2, -1, 3, -1), (-1,) * 5])
def test_an_iteration_without_an_update_is_timed_as_any_other(versions, monkeypatch):
    records = [iteration_of(index, version) for index, version in enumerate(versions)]
    monkeypatch.setattr(compute, "run_layout", lambda config: ("elastic", "1:1", records))
    row = Row("auto")
    compute._measure(row, RunConfig(), iterations=2)  # after three that warm up
    assert row.seconds == [10.0, 10.0]
    assert row.busy == [0.75, 0.75]


def test_packs_are_fitted_by_a_line_on_which_small_ones_count(capsys):
    exact = {size: 0.02 + 0.003 * size for size in (1, 2, 4, 64)}
    line = fitted(exact)
    assert (line.fixed, line.per_item) == (pytest.approx(0.02), pytest.approx(0.003))
    # An outlier of 10% at the large end moves the small end by less than 10%.
    line = fitted(exact | {64: 1.1 * exact[64]})
    assert line(1) == pytest.approx(exact[1], rel=0.1)
    print_packs(exact, Linear(fixed=0.02, per_item=0.003), rounds=5)
    last, costs = capsys.readouterr().out.splitlines()[-2:]
    assert last.split() == ["64", "212.0", "3.31", "6.94", "212.0"]
    assert costs == "a = 20.00 ms a pack, c = 3.000 ms a pair"


def test_where_not_even_one_pair_fits_it_is_said_what_to_change(monkeypatch):
    monkeypatch.setattr(packs, "train_prompts", lambda config: ["a cat"])
    monkeypatch.setattr(packs, "pack_seconds", lambda *of: {})
    with pytest.raises(UserError, match=r"for the gradient of one pair .*gradient_checkpointing"):
        packs.main(RunConfig(), rounds=1)
