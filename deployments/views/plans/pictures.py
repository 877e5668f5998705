"""Pictures of plans: what they take beside time, and an iteration of one, device by device."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from deployments.views.plans.row import Row
from digen_core.errors import UserError
from digen_core.planning.cluster_plan import ClusterPlan
from digen_core.planning.spending import Spent
from digen_core.trace.frontier import Point, draw_frontier
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
    _write(draw_plan(plan), "timeline", path)


def write_frontier(rows: Sequence[Row], spent: Spent, path: Path) -> None:
    """Write a picture of what plans take as PNG, the best of them first.

    Raises:
        UserError: it cannot be written there.
    """
    points = [Point(f"{row.devices}, {row.layout}", row.seconds, row.spent(spent)) for row in rows]
    label = "cost of 1000 samples" if spent == "money" else "kWh of 1000 samples"
    _write(draw_frontier(points, label), "picture", path)


def _write(figure: Figure, what: str, path: Path) -> None:
    try:
        replace_bytes(path, png_of(figure))
    except OSError as error:
        raise UserError(f"cannot write the {what} to {path}: {error.strerror}") from error
