"""The picture of a plan: an iteration of its simulation, device by device."""

from pathlib import Path

from matplotlib.figure import Figure

from digen_core.errors import UserError
from digen_core.planning.cluster_plan import ClusterPlan
from digen_core.trace.gaps import idle_gaps
from digen_core.trace.page import png_of
from digen_core.trace.timeline import draw_timeline
from digen_core.trace.windows import Window
from digen_core.transport.files import replace_bytes


def draw_plan(plan: ClusterPlan) -> Figure:
    """Return the timeline of the last iteration of a plan's simulation that is in steady state."""
    report, choice = plan.own.plan.report, plan.own.plan.choice
    devices = plan.own.job.cluster(choice.num_rollout)
    ended = report.steady[1]
    started = max((end for end in report.iteration_ends if end < ended), default=0.0)
    window = Window(started, ended)
    gaps = idle_gaps(report.spans, devices, window)
    return draw_timeline(report.spans, gaps, devices, window, f"an iteration of {choice.layout}")


def write_timeline(plan: ClusterPlan, path: Path) -> None:
    """Write the timeline of a plan as PNG.

    Raises:
        UserError: it cannot be written there.
    """
    try:
        replace_bytes(path, png_of(draw_plan(plan)))
    except OSError as error:
        raise UserError(f"cannot write the timeline to {path}: {error.strerror}") from error
