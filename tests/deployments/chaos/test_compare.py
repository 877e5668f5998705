"""What a story left is held against what the run in peace left: nothing may slip through."""

from math import inf, nan

import numpy as np
import pytest

from deployments.chaos.compare import Left, complaints_of, differing_rows
from deployments.chaos.outcome import Attempt, Outcome
from deployments.chaos.story import Story
from digen_core.config.load import CONFIG_OF_RUN
from digen_core.transport.arrays import distance

WELL = {
    "code": 0,
    "seconds": 1.0,
    "last_line": "all is well",
    "has_traceback": False,
    "left_over": (),
    "is_late": False,
    "sample_steps": 8,
    "pairs": 4,
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


def test_work_is_that_of_all_attempts():
    outcome = outcome_of({"code": -9}, {})
    assert (outcome.sample_steps, outcome.pairs) == (16, 8)
