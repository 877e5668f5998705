"""Tell the controller what a config asks for."""

from digen_core.config import ConfigError, RunConfig
from digen_core.control.costs import Costs, DeviceCosts, Linear
from digen_core.control.layout import LAYOUTS, Layout
from digen_core.control.schedule import Schedule, Workload
from tasks.emulation import EmulatedConfig

QUEUE_DEPTH = 2  # a device finds its next task waiting


def layout_of(config: RunConfig) -> Layout:
    """Return the layout that a config names.

    Raises:
        ConfigError: it leaves the choice to a planner.
    """
    name = config.schedule.layout
    if name == "auto":
        raise ConfigError(
            f"schedule.layout 'auto' cannot choose yet; name one of {', '.join(LAYOUTS)}"
        )
    return LAYOUTS[name]


def workload_of(config: RunConfig) -> Workload:
    """Return the shape of an iteration."""
    if isinstance(config, EmulatedConfig):
        return config.scenario.workload
    return Workload(
        num_groups=config.rollout.prompts_per_iteration,
        group_size=config.rollout.group_size,
        fragment_size=config.rollout.fragment_size,
        num_steps=config.rollout.num_steps,
        pack_size=config.train.pack_size,
        samples_per_pack=config.train.pack_size,
        trained_per_group=config.rollout.group_size,
        advantages_need_all_groups=config.algorithm.advantage_scale == "batch",
    )


def schedule_of(config: RunConfig) -> Schedule:
    """Return the layout and its quantities."""
    schedule = config.schedule
    return Schedule(
        layout=layout_of(config),
        max_stale_share=schedule.stale_share,
        max_staleness=schedule.max_staleness,
        helpers=None if schedule.helpers == "auto" else schedule.helpers,
        assistants=None if schedule.assistants == "auto" else schedule.assistants,
        queue_depth=QUEUE_DEPTH,
    )


def costs_of(config: RunConfig, step_seconds: float) -> Costs:
    """Return what is known about the costs before the first iteration.

    Args:
        config: of the run; that of emulated devices knows all.
        step_seconds: one denoising step of a fragment, as measured when the model was loaded.
    """
    if isinstance(config, EmulatedConfig):
        return config.costs
    return Costs(
        kinds={"default": DeviceCosts(step=Linear(fixed=step_seconds), pack=Linear())},
    )
