"""The contract under every layout: the weights do not depend on who did what, or when.

Each run's weights are compared with the serial loop's; stale ones with a serial loop that is told
which versions generated. And each run must show that what its layout is for has happened.
"""

import os
import signal
from collections import Counter
from itertools import cycle, product

import pytest

from digen_core.control import protocol as p
from digen_core.control.layout import LAYOUTS
from support.layout_runs import MAX_WORKERS, Case, DisturbedController, Run, check_weights, marked

pytestmark = pytest.mark.slow

# Each value of each dimension at least twice (a test below counts them).
CASES = [
    Case("colocated", (1,), 4, 1, pauses=True),
    Case("colocated", (3,), 2, 8, dtype="float32"),
    Case("colocated-strong", (1,), 2, 3, pauses=True),
    Case("colocated-strong", (4,), 1, 8, steps_per_task=2),
    Case("disaggregated", (1, 2), 4, 3, pauses=True),
    Case("disaggregated", (3, 1), 1, 1, dtype="float32", steps_per_task=2),
    Case("gap", (1, 1), 2, 3, pauses=True),
    Case("gap", (2, 2), 4, 8, dtype="float32"),
    Case("tsp", (2, 1), 1, 3, pauses=True, dtype="float32"),
    Case("tsp", (1, 2), 4, 1),
    Case("tag", (2, 2), 1, 8, helping=True, pauses=True),
    Case("tag", (1, 1), 4, 3, helping=True, dtype="float32"),
    Case("elastic", (3, 1), 2, 3, helping=True, pauses=True, dtype="float32"),
    Case("elastic", (2, 1), 4, 1, helping=True),
    Case("tcss", (2, 2), 2, 3, helping=True, pauses=True, share=1.0),
    Case("tcss", (1, 1), 4, 8, share=0.5, dtype="float32"),
]


OFTEN = (10, 12, 14)  # other tests run the other layouts; `make test-layouts` runs all


def all_cases() -> list[Case]:
    """Every layout on every split of up to four workers, with and without help and pauses.

    Sizes, precisions and steps per task take turns.
    """
    turns = cycle(product((1, 2, 4), ("float64", "float32"), (1, 3, 8)))
    cases = []
    layouts = [(name, None) for name in LAYOUTS if name != "tcss"]
    for layout, share in [*layouts, ("tcss", 0.5), ("tcss", 1.0)]:
        splits = [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1)]
        if LAYOUTS[layout].colocated:
            splits = [(1,), (2,), (3,), (4,)]
        helping = [False, True] if LAYOUTS[layout].trainers_help else [False]
        for workers, help_, pauses in product(splits, helping, [False, True]):
            fragment, dtype, pack = next(turns)
            per_task = 1 if pauses else 2
            cases.append(
                Case(layout, workers, fragment, pack, help_, pauses, dtype, share, per_task)
            )
    return cases


def check_mechanism(case: Case, run: Run) -> None:
    """What the layout is for has happened, and nothing else."""
    layout = LAYOUTS[case.layout]
    helped, trained = run.num_by_others("denoise", "rollout"), run.num_by_others("train", "trainer")
    rollout, may_help = run.config.rollout, case.helping and layout.trainers_help
    num_fragments = rollout.prompts_per_iteration * rollout.group_size // rollout.fragment_size
    if helped or num_fragments > case.workers[0]:  # else nothing is left for a helper
        assert bool(helped) == may_help
    if trained:
        assert case.helping
        assert layout.rollouts_train
    assert bool(run.num_paused) or not case.pauses
    stale = Counter(i for (i, _), version in run.versions().items() if version < i)
    assert all(version >= i - 1 for (i, _), version in run.versions().items())
    assert bool(stale) == bool(case.share)
    assert max(stale.values(), default=0) <= (case.share or 0) * 3
    assert max(span.num_items for span in run.spans if span.kind == "train") <= case.pack


@pytest.mark.ci
@pytest.mark.parametrize("case", marked(CASES, OFTEN, "layouts"), ids=str)
def test_weights_equal_the_serial_reference(case, run_layout):
    found = run_layout(case)
    check_weights(found)
    check_mechanism(case, found)
    if case.layout == "elastic" and case.pack < 4:  # else one trainer takes all ready pairs
        assert found.num_by_others("train", "trainer"), "no rollout device trained"


@pytest.mark.layouts
@pytest.mark.parametrize("case", all_cases(), ids=str)
def test_weights_equal_the_serial_reference_everywhere(case, run_layout):
    found = run_layout(case)
    check_weights(found)
    check_mechanism(case, found)


def test_the_cases_have_every_value_twice():
    def values(case: Case) -> list[tuple[str, object]]:
        splits = "+".join(map(str, case.workers)) if len(case.workers) == 2 else "colocated"
        named = ("layout", "fragment", "pack", "helping", "pauses", "dtype", "steps_per_task")
        shown = [(name, getattr(case, name)) for name in named]
        return [*shown, ("workers", sum(case.workers)), ("split", splits)]

    counts = Counter(value for case in CASES for value in values(case))
    assert min(counts.values()) >= 2, counts
    assert {layout for name, layout in counts if name == "layout"} == set(LAYOUTS)
    assert {split for name, split in counts if name == "split"} >= {"1+2", "2+1", "2+2", "3+1"}
    assert {case.share for case in CASES} == {None, 0.5, 1.0}
    assert set(CASES[0].__dict__) == set(all_cases()[0].__dict__)


# --- a worker is lost -------------------------------------------------------------------------


class Killer:
    """Ends a worker process after the first event of a kind in the second iteration."""

    def __init__(self, pid: int, kind: type):
        self.pid, self.kind, self.has_killed = pid, kind, False

    def __call__(self, event: p.Event) -> None:
        parts = (getattr(event, name, None) for name in ("batch", "fragment", "pack"))
        about = next(filter(None, parts), event)
        if isinstance(event, self.kind) and about.iteration == 1 and not self.has_killed:
            os.kill(self.pid, signal.SIGKILL)
            self.has_killed = True


def pid_of(client, name: str) -> int:
    from tasks.cluster.presence import addresses_of

    (address,) = addresses_of(client, [name]).values()
    return client.run(os.getpid, workers=[address])[address]


TOGETHER = {"rollout.batch_size": 8}


@pytest.mark.ci
@pytest.mark.parametrize(
    ("case", "kind", "changes"),
    marked(
        [
            (Case("gap", (2, 2), 2, 3), p.BatchGenerated, {}),
            (Case("tag", (2, 2), 1, 3, helping=True, pauses=True), p.FragmentScored, {}),
            (Case("elastic", (3, 1), 2, 1, helping=True), p.PackTrained, {}),
            (Case("tcss", (2, 1), 2, 3, helping=True, share=1.0), p.AdvantagesComputed, {}),
            (Case("colocated-strong", (3,), 2, 3), p.PackTrained, {}),
            (Case("gap", (2, 1), 2, 3, pauses=True), p.BatchGenerated, TOGETHER),
            (Case("elastic", (2, 2), 1, 3, helping=True, pauses=True), p.BatchPaused, TOGETHER),
            (Case("tcss", (2, 1), 4, 3, helping=True, share=1.0), p.BatchGenerated, TOGETHER),
        ],
        (0,),
        "layouts",
    ),
    ids=lambda value: value.__name__ if isinstance(value, type) else str(value),
)
def test_a_lost_worker_changes_nothing(case, kind, changes, run_layout, four_workers, monkeypatch):
    four_workers.wait_for_workers(MAX_WORKERS, timeout=240)
    killer = Killer(pid_of(four_workers, "worker-1"), kind)
    monkeypatch.setattr(DisturbedController, "after_event", staticmethod(killer))
    found = run_layout(case, **changes)
    assert killer.has_killed
    check_weights(found)
