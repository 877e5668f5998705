"""Where the seconds of a distributed iteration went: parts that add up."""

from contextlib import nullcontext
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from deployments.bench import overhead
from deployments.bench.core_seconds import BODIES, IDLE, CoreSeconds
from deployments.bench.overhead import covered, shares_of
from digen_core.config.run import RunConfig
from digen_core.records import IterationRecord, Span

PARTS = ("tasks", "push", "transfer", "hand_over", "orchestration")


def span(kind: str, started: float, ended: float) -> Span:
    return Span(0, kind, kind, "rollout-0", 0.0, started, ended)


def records(spans: list[Span], before_ended: float) -> list[IterationRecord]:
    """The iteration that is measured, and the one before it, which ended at some moment."""
    before = [span("push", before_ended - 1, before_ended)]
    return [IterationRecord(0, 1, 1.0, {}, [], before), IterationRecord(1, 2, 1.0, {}, [], spans)]


def lengths(shares) -> dict[str, float]:
    return {name: getattr(shares, name) for name in PARTS}


@pytest.mark.parametrize(
    ("intervals", "length"),
    [
        ([], 0),
        ([(1, 3)], 2),
        ([(1, 3), (5, 6)], 3),
        ([(5, 6), (1, 3), (2, 4)], 4),  # 1 to 4 and 5 to 6, in any order
        ([(1, 9), (2, 3), (4, 5)], 8),  # one inside another
        ([(1, 2), (2, 3)], 2),
        ([(1, 1)], 0),
    ],
)
def test_covered_by_hand(intervals, length):
    assert covered(intervals) == length


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted).map(tuple)))
def test_covered_counts_every_moment_once(intervals):
    assert covered(intervals) == len({t for a, b in intervals for t in range(a, b)})


def test_shares_by_hand():
    spans = [
        span("encode", 11, 12),
        span("denoise", 12, 15),
        span("train", 14, 17),  # two devices at once: counted once
        span("push", 17.5, 19),
        span("push", 18, 19.5),
    ]
    transfers = [(11.5, 12.5), (17, 17.25), (17.1, 18)]  # the first hides behind tasks
    shares = shares_of(records(spans, before_ended=10), transfers, serial=7.6)
    assert shares.serial == 7.6
    assert shares.distributed == 9.5
    assert shares.ratio == pytest.approx(0.8)
    assert lengths(shares) == pytest.approx(
        {
            "tasks": 6,  # 11 to 17
            "push": 2,  # 17.5 to 19.5
            "transfer": 0.5,  # 17 to 17.5
            "hand_over": 1,  # 10 to 11
            "orchestration": 0,
        }
    )


def test_idle_time_between_tasks_is_orchestration():
    spans = [span("encode", 1, 2), span("push", 5, 6)]
    shares = shares_of(records(spans, before_ended=0), [], serial=3)
    assert lengths(shares) == {
        "tasks": 1, "push": 1, "transfer": 0, "hand_over": 1, "orchestration": 3,
    }  # fmt: skip


def test_its_runs_do_not_stay_among_the_trainings(tmp_path, monkeypatch):
    given = RunConfig.model_validate({"tracking": {"runs_dir": str(tmp_path / "runs")}})
    used = []

    def run(config, result):
        used.append(config.tracking)
        (Path(config.tracking.runs_dir) / config.name).mkdir(parents=True, exist_ok=True)
        return result

    shares = shares_of(records([span("encode", 1, 2)], before_ended=0), [], serial=3)
    measured = CoreSeconds(1.0, dict.fromkeys((BODIES, IDLE), 1.0))
    monkeypatch.setattr(overhead, "orchestrated", nullcontext)
    monkeypatch.setattr(overhead, "bench_overhead", lambda config: run(config, [shares] * 2))
    monkeypatch.setattr(overhead, "bench_core_seconds", lambda config: run(config, measured))
    overhead.main(given, iterations=1)
    assert {tracking.experiment for tracking in used} == {f"{given.tracking.experiment}-bench"}
    assert not any(Path(tracking.runs_dir).exists() for tracking in used)
    assert not any(tmp_path.iterdir())


moments = st.tuples(st.integers(0, 100), st.integers(0, 100)).map(sorted)


@given(
    spans=st.lists(st.tuples(st.sampled_from(["encode", "train", "push"]), moments), min_size=1),
    transfers=st.lists(moments.map(tuple)),
)
def test_the_parts_add_up_and_none_is_negative(spans, transfers):
    made = [span(kind, *moment) for kind, moment in spans]
    shares = shares_of(records(made, before_ended=-5), transfers, serial=50)
    parts = lengths(shares)
    assert sum(parts.values()) == shares.distributed == max(s.ended for s in made) + 5
    assert min(parts.values()) >= 0
