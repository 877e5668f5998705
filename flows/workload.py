"""Tell the controller what a config asks for."""

from digen_core.config.run import RunConfig
from digen_core.control.layout import LAYOUTS, Layout
from digen_core.control.schedule import Schedule, Workload
from digen_core.planning import job
from tasks.emulation import EmulatedConfig

QUEUE_DEPTH = 2  # a device finds its next task waiting


def layout_of(config: RunConfig) -> Layout:
    """Return the layout that a config names; ``auto`` is resolved before (scheduling.py)."""
    name = config.schedule.layout
    assert name != "auto"
    return LAYOUTS[name]


def workload_of(config: RunConfig) -> Workload:
    """Return the shape of an iteration."""
    if isinstance(config, EmulatedConfig):
        return config.scenario.workload
    return job.workload_of(config)


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
    )
