"""Steps in one task: as configured, or as many as keep orchestration below 3%."""

import math

import hypothesis.strategies as st
import pytest
from hypothesis import given

from digen_core.config.prompts import PromptsConfig
from digen_core.config.rollout import RolloutConfig
from digen_core.config.run import RunConfig
from flows.runtime.workload import (
    FLOW_SECONDS,
    MAX_FLOW_SHARE,
    MAX_ORCHESTRATION_SHARE,
    TASK_SECONDS,
    steps_per_task,
)


def config(steps_per_task, num_steps=8) -> RunConfig:
    rollout = RolloutConfig(num_steps=num_steps, steps_per_task=steps_per_task)
    return RunConfig(rollout=rollout)


@pytest.mark.parametrize(
    ("step_seconds", "steps"),
    [
        (0.334, 1),  # 10 ms of 334 ms is 3%
        (0.333, 2),
        (0.100, 4),
        (0.050, 8),  # 7 would do, but 1 would be left over
        (0.005, 8),  # 40 would be needed, 8 is the whole trajectory
        (10.0, 1),
        (0.0, 8),  # not measured
    ],
)
def test_auto_by_hand(step_seconds, steps):
    assert (TASK_SECONDS, MAX_ORCHESTRATION_SHARE) == (0.010, 0.03)
    assert steps_per_task(config("auto"), step_seconds, num_devices=2) == steps


def test_samples_from_files_are_encoded_in_one_task():
    found = config("auto").model_copy(
        update={"prompts": PromptsConfig(evaluation="b.txt", sample_columns=("a", "b"))}
    )
    assert steps_per_task(found, 10.0, num_devices=2) == 8
    one = found.model_copy(update={"rollout": RolloutConfig(num_steps=8, steps_per_task=1)})
    assert steps_per_task(one, 10.0, num_devices=2) == 8


@pytest.mark.parametrize(
    ("num_devices", "steps"),
    [
        (10, 1),  # 10 tasks every 0.4 s take 50 ms of the flow process: an eighth
        (11, 2),
        (32, 4),  # 32 tasks every 1.6 s: 160 ms
    ],
)
def test_auto_spares_the_flow_process(num_devices, steps):
    assert (FLOW_SECONDS, MAX_FLOW_SHARE) == (0.005, 0.125)
    assert steps_per_task(config("auto"), 0.4, num_devices) == steps


@pytest.mark.parametrize(("configured", "steps"), [(1, 1), (3, 3), (8, 8), (20, 8)])
def test_a_number_is_taken_as_it_is(configured, steps):
    assert steps_per_task(config(configured), 0.001, num_devices=64) == steps


@given(st.floats(1e-6, 100), st.integers(2, 50))
def test_auto_is_below_the_share_in_equal_parts(step_seconds, num_steps):
    steps = steps_per_task(config("auto", num_steps), step_seconds, num_devices=2)
    assert 1 <= steps <= num_steps
    if steps < num_steps:
        assert TASK_SECONDS / (steps * step_seconds) <= 0.03 * (1 + 1e-9)
    needed = math.ceil(TASK_SECONDS / (0.03 * step_seconds))
    assert steps < 2 * min(needed, num_steps) or steps == 1


def test_no_short_task_is_left_over():
    # 0.01 / (0.03 * 0.05) = 6.7 steps at least: 8 steps are one task, not 7 and 1.
    assert steps_per_task(config("auto", 8), 0.05, num_devices=2) == 8
    # 0.01 / (0.03 * 0.1) = 3.3: 10 steps are 5 and 5, not 4, 4 and 2.
    assert steps_per_task(config("auto", 10), 0.1, num_devices=2) == 5
