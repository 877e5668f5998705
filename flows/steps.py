"""How many denoising steps go into one task."""

import math

from digen_core.config import RunConfig

# What a task costs its worker and the flow, as `digen bench runner` measures it.
TASK_SECONDS = 0.010
MAX_ORCHESTRATION_SHARE = 0.05


def steps_per_task(config: RunConfig, step_seconds: float) -> int:
    """Return the configured number, or for "auto" the least that keeps orchestration below 5%.

    Args:
        config: of the run.
        step_seconds: one denoising step of a fragment.
    """
    rollout = config.rollout
    if rollout.steps_per_task != "auto":
        return min(rollout.steps_per_task, rollout.num_steps)
    if step_seconds <= 0:
        return rollout.num_steps
    wanted = math.ceil(TASK_SECONDS / (MAX_ORCHESTRATION_SHARE * step_seconds))
    return max(1, min(wanted, rollout.num_steps))
