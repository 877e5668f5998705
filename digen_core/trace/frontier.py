"""The picture of plans of which each is faster than all that take less."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from digen_core.trace.charts import LINE_COLOURS


@dataclass(frozen=True, slots=True)
class Point:
    """A plan in the picture."""

    name: str
    seconds: float  # of an iteration
    spent: float


def draw_frontier(points: Sequence[Point], spent: str) -> Figure:
    """Return seconds of an iteration against what is spent.

    Args:
        points: the best of them first.
        spent: what that is, with its unit.
    """
    figure = Figure(figsize=(9, 5), dpi=110, layout="constrained")
    axes = figure.subplots()
    best, ordered = points[0], sorted(points, key=lambda point: point.seconds)
    seconds, taken = [own.seconds for own in ordered], [own.spent for own in ordered]
    first, second, *_ = LINE_COLOURS
    axes.step(seconds, taken, "o-", where="post", color=first, label="undominated")
    axes.plot([best.seconds], [best.spent], "D", color=second, markersize=9, label="best")
    for point in ordered:
        place = (point.seconds, point.spent)
        axes.annotate(point.name, place, (6, 6), textcoords="offset points", fontsize=8)
    axes.margins(x=0.25, y=0.15)
    axes.set_xlabel("seconds of an iteration")
    axes.set_ylabel(spent)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9)
    return figure
