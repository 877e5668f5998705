"""The picture of plans: seconds of an iteration against what samples take of money or energy."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from matplotlib.figure import Figure

from deployments.views.plan import Row
from digen_core.errors import UserError
from digen_core.planning.spending import Spent
from digen_core.trace.charts import LINE_COLOURS
from digen_core.trace.page import png_of
from digen_core.transport.files import replace_bytes

LABELS: Final[dict[Spent, str]] = {"money": "cost of 1000 samples", "energy": "kWh of 1000 samples"}


def draw_plans(rows: Sequence[Row], spent: Spent) -> Figure:
    """Return a picture of plans, each faster than all that take less, the best of them first."""
    figure = Figure(figsize=(9, 5), dpi=110, layout="constrained")
    axes = figure.subplots()
    ordered = sorted(rows, key=lambda row: row.seconds)
    seconds, taken = [row.seconds for row in ordered], [row.spent(spent) for row in ordered]
    axes.step(seconds, taken, "o-", where="post", color=LINE_COLOURS[0], label="undominated")
    best = rows[0]
    axes.plot(
        [best.seconds], [best.spent(spent)], "D", color=LINE_COLOURS[1], markersize=9, label="best"
    )
    for row, x, y in zip(ordered, seconds, taken, strict=True):
        text = f"{row.devices}, {row.layout}"
        axes.annotate(text, (x, y), (6, 6), textcoords="offset points", fontsize=8)
    axes.margins(x=0.25, y=0.15)
    axes.set_xlabel("seconds of an iteration")
    axes.set_ylabel(LABELS[spent])
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9)
    return figure


def write_picture(rows: Sequence[Row], spent: Spent, path: Path) -> None:
    """Write the picture of plans as PNG.

    Raises:
        UserError: it cannot be written there.
    """
    try:
        replace_bytes(path, png_of(draw_plans(rows, spent)))
    except OSError as error:
        raise UserError(f"cannot write the picture to {path}: {error.strerror}") from error
