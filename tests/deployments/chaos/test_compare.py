"""What a story left is held against what the run in peace left: nothing may slip through."""

from collections.abc import Mapping
from math import inf, nan
from types import MappingProxyType

import numpy as np
import pytest

from deployments.chaos.compare import Left, complaints_of, differing_rows, excess_of
from deployments.chaos.ledger import Life, Work
from deployments.chaos.outcome import Attempt, Outcome
from deployments.chaos.story import Fault, Moment, Story
from digen_core.config.load import CONFIG_OF_RUN
from digen_core.transport.arrays import distance

WELL = {
    "code": 0,
    "seconds": 1.0,
    "last_line": "all is well",
    "has_traceback": False,
    "asks_to_sync": False,
    "left_over": (),
    "is_late": False,
    "lives": (),
}


def outcome_of(*changes: dict) -> Outcome:
    attempts = tuple(Attempt(**{**WELL, **change}) for change in changes)
    return Outcome(story=Story(0, 0, ()), seconds=2.0, attempts=attempts, done=(), warnings=())


def weights(*values: float) -> dict:
    return {"a": np.array([3.0, -4.0]), "b": np.array(values)}


def test_weights_are_compared_by_the_largest():
    assert distance(weights(1.0), weights(1.0)) == 0
    assert distance(weights(1.5), weights(1.0)) == 0.125
    assert distance(weights(nan), weights(1.0)) == inf
    assert distance(weights(nan), weights(nan)) == inf
    assert distance({"a": weights(1.0)["a"]}, weights(1.0)) == inf


ROWS = [((0, 0), 0.5), ((0, 1), 0.25), ((1, 0), -1.0)]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (ROWS, ""),
        (ROWS[:2], "1 are missing, such as (1, 0)"),
        ([*ROWS, ROWS[0]], "1 are there twice"),
        ([*ROWS, ((2, 0), 0.0)], "1 should not be there, such as (2, 0)"),
        ([*ROWS[:2], ((1, 0), -1.1)], "(1, 0) is -1.1, not -1"),
        ([*ROWS[:2], ((1, 0), nan)], "(1, 0) is nan, not -1"),
    ],
)
def test_rows_are_compared_by_name(rows, said):
    found = list(differing_rows("rows", rows, ROWS, 1e-6))
    assert found == ([f"rows: {said}"] if said else [])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"is_late": True, "code": -9}, "it did not end"),
        ({"code": 1, "last_line": "digen: it broke"}, "it ended with exit code 1: digen: it broke"),
        ({"has_traceback": True, "code": 1}, "a traceback was shown"),
        ({"left_over": ("python sleep",), "code": 1}, "left over: python sleep"),
    ],
)
def test_how_it_ended_counts(tmp_path, change, said):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / CONFIG_OF_RUN).touch()
    left = Left.in_folder(tmp_path, "float64")
    assert said in complaints_of(outcome_of({}, change), left, left)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_every_dtype_of_a_model_has_a_tolerance(dtype):
    expected = 1e-10 if dtype == "float64" else 1e-5
    assert Left((), dtype).tolerance == expected


def test_there_is_one_run(tmp_path):
    left = Left.in_folder(tmp_path, "float64")
    assert complaints_of(outcome_of({}), left, left) == ["0 folders of runs"]


def life(*steps: int, lost: Mapping[int, int] = MappingProxyType({}), kept=()) -> Life:
    """A life with so many denoising steps in each iteration, and half as many pairs."""
    asked, gone = (
        {at: Work(sample_steps=number, pairs=number // 2) for at, number in table.items() if number}
        for table in (dict(enumerate(steps)), lost)
    )
    return Life(asked=asked, lost=gone, kept=kept)


PEACE = {"lives": (life(8, 8, 8),)}
KILLED = {"code": -9}
FLIP = Fault("flip", ("disk",), Moment("reduced", 2))


@pytest.mark.parametrize(
    ("lives", "faults", "said"),
    [
        ([[life(8, 8, 8)]], (), []),
        ([[life(8, 12, 8, lost={1: 4})]], (), []),  # what a lost device had
        ([[life(8, 16, 8, lost={1: 4})]], (), [1]),  # and what the others had, too
        ([[life(8, 8, 12)]], (), [2]),  # nothing was lost
        ([[life(8, 8, 12, lost={1: 4})]], (), [2]),  # nothing of that iteration
        ([[life(8, 4, kept=(1,))], [life(0, 8, 8)]], (), []),  # killed, and resumed
        ([[life(8, 4, kept=(1,)), life(0, 8, 8)]], (), []),  # resumed by itself
        ([[life(8, 8, 4, kept=(1, 2))], [life(0, 8, 8)]], (), [1]),  # from too far back
        ([[life(8, 8, 4, kept=(1, 2))], [life(0, 8, 8)]], (FLIP,), []),  # a checkpoint is damaged
        ([[life(4)], [life(4)], [life(8, 8, 8)]], (), []),  # before there was any
        ([[life(8, 4, kept=(1,))], [], [life(0, 8, 8)]], (), []),  # killed again while it began
        ([[life(8, 8, kept=(1,))], [life(0, 12, 8)]], (), [1]),
    ],
)
def test_more_work_done_again_than_was_lost_is_a_complaint(lives, faults, said):
    changes = [{**KILLED, "lives": tuple(own)} for own in lives]
    outcome = outcome_of(*changes).model_copy(update={"story": Story(0, 0, faults)})
    found = excess_of(outcome, outcome_of(PEACE))
    assert found == [
        f"iteration {index + 1}: {own} {what} were done again, and at most {gone} were lost"
        for index in said
        for what, own, gone in differences(outcome, index)
    ]


def differences(outcome: Outcome, index: int) -> list[tuple[str, int, int]]:
    asked, lost = outcome.asked[index], outcome.lost.get(index, Work())
    return [
        ("denoising steps", asked.sample_steps - 8, lost.sample_steps),
        ("training pairs", asked.pairs - 4, lost.pairs),
    ]


def test_a_complaint_has_the_numbers():
    outcome = outcome_of({"lives": (life(8, 16, 8, lost={1: 4}),)})
    assert excess_of(outcome, outcome_of(PEACE)) == [
        "iteration 2: 8 denoising steps were done again, and at most 4 were lost",
        "iteration 2: 4 training pairs were done again, and at most 2 were lost",
    ]
