"""The workload of a run: what a config asks of the controller, and how long its tasks are."""

import math
from dataclasses import replace

from digen_core.config.run import RunConfig
from digen_core.control.layout import LAYOUTS, Layout
from digen_core.control.schedule import QUEUE_DEPTH, Schedule, Workload
from digen_core.data.draws import prompts_of_iteration
from digen_core.planning.job import group_costs, with_steps
from flows.runtime.context import RunContext

# What a task costs its worker and the flow, as `digen bench runner` measures it.
TASK_SECONDS = 0.010
MAX_ORCHESTRATION_SHARE = 0.03
# What a task costs the flow process, which all devices share, as `digen bench layouts` shows.
FLOW_SECONDS = 0.005
MAX_FLOW_SHARE = 0.125  # more of it, and tasks wait for each other


def layout_of(config: RunConfig) -> Layout:
    """Return the layout that a config names; ``auto`` is resolved before (scheduling.py)."""
    name = config.schedule.layout
    assert name != "auto"
    return LAYOUTS[name]


def schedule_of(config: RunConfig) -> Schedule:
    """Return the layout and its quantities."""
    schedule = config.schedule
    return Schedule(
        layout=layout_of(config),
        max_stale_share=schedule.stale_share,
        max_staleness=schedule.max_staleness,
        helpers=schedule.num_helpers,
        assistants=schedule.num_assistants,
        queue_depth=QUEUE_DEPTH,
        pulls_at_once=config.pulls_at_once,
        copies_state=config.copies_state,
    )


def next_workload(run: RunContext) -> Workload:
    """Return the shape of a run's next iteration; groups may have their own sizes or steps."""
    config, shape = run.config, run.workers.workload
    index, count = run.progress.num_iterations, config.rollout.prompts_per_iteration
    if config.model.sizes:
        shape = replace(shape, group_costs=group_costs(config, index)[:count])
    if config.prompts.steps_column is None and not config.algorithm.shortens:
        return shape
    prompts = prompts_of_iteration(run.prompts, index, count, seed=config.seed)
    return with_steps(shape, config, run.workers.group_steps(index, prompts))


def steps_per_task(config: RunConfig, step_seconds: float, num_devices: int) -> int:
    """Return the configured number, or for "auto" the least that orchestration can keep up with.

    Where samples come from files one task encodes those of a fragment, in place of all steps.
    Otherwise it stays below 3% of a device's time, and an eighth of the flow process's: that one
    hands out the tasks of all devices, so the more there are, the longer each has to be.

    Args:
        config: of the run.
        step_seconds: one denoising step of a fragment.
        num_devices: that may generate at the same time.
    """
    rollout = config.rollout
    if config.prompts.sample_columns:
        return rollout.num_steps
    if rollout.steps_per_task != "auto":
        return min(rollout.steps_per_task, rollout.num_steps)
    if step_seconds <= 0:
        return rollout.num_steps
    for_device = TASK_SECONDS / MAX_ORCHESTRATION_SHARE
    for_flow = num_devices * FLOW_SECONDS / MAX_FLOW_SHARE
    wanted = math.ceil(max(for_device, for_flow) / step_seconds)
    num_tasks = max(1, rollout.num_steps // wanted)  # equally long: no short one is left over
    return math.ceil(rollout.num_steps / num_tasks)
