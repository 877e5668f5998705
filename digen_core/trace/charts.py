"""Charts of a run: where the devices' time went, and how rewards moved."""

from collections.abc import Mapping, Sequence
from typing import Final

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from digen_core.inputs.text import short
from digen_core.trace.gaps import CAUSES, Cause, Gap
from digen_core.trace.metrics import idle_seconds
from digen_core.trace.style import BUSY_COLOUR, IDLE_STYLES

LINE_COLOURS: Final = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000",
)  # fmt: skip
"""Of Okabe and Ito, which tell apart for the colour-blind, too; their yellow is too pale."""
LINE_STYLES: Final = ("-", "--", ":", "-.")
NUM_LOOKS: Final = len(LINE_COLOURS) * len(LINE_STYLES)
MARKERS: Final = "os^D"
ALL_DEVICES: Final = "all devices"


def verbatim(text: str) -> str:
    """Return a text as Matplotlib draws it as it is: what stands between dollars is a formula."""
    return text.replace("$", r"\$")


def look_of(number: int) -> tuple[str, str]:
    """Return colour and line style of one of several curves; the first NUM_LOOKS differ."""
    turn, place = divmod(number, len(LINE_COLOURS))
    return LINE_COLOURS[place], LINE_STYLES[turn % len(LINE_STYLES)]


def draw_idle(gaps: Sequence[Gap], seconds: Mapping[str, float], name: str) -> Figure:
    """Return stacked bars, of all devices and of each: the share of busy time, then of each cause.

    Args:
        gaps: idle gaps of the devices.
        seconds: of the windows that the gaps are of, by device: bars, from the top.
        name: of what is shown.
    """
    bars = [ALL_DEVICES, *seconds]
    idle = [idle_seconds(gaps)]
    idle += [idle_seconds(gap for gap in gaps if gap.device == bar) for bar in bars[1:]]
    totals = [sum(seconds.values()), *seconds.values()]
    shares = {
        cause: [part[cause] / total for part, total in zip(idle, totals, strict=True)]
        for cause in CAUSES
        if idle[0][cause] > 0
    }
    height = max(3.7, 1.6 + 0.24 * len(bars))  # at least the legend's
    figure = Figure(figsize=(11, height), dpi=110)
    axes = figure.add_axes((0.11, 0.55 / height, 0.66, 1 - 1.0 / height))
    rows = [0.0, *(row + 0.4 for row in range(1, len(bars)))]  # the sum stands apart
    _stack(axes, rows, shares)
    axes.set_yticks(rows, bars, fontsize=8)
    axes.set_ylim(rows[-1] + 0.6, -0.6)
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.tick_params(axis="x", labelsize=8)
    title = f"{verbatim(name)}: where {short(totals[0], 4)} device seconds went"
    axes.set_title(title, loc="left", fontsize=11)
    axes.legend(bbox_to_anchor=(1.01, 1), loc="upper left", frameon=False, fontsize=8)
    return figure


def _stack(axes: Axes, rows: Sequence[float], shares: Mapping[Cause, Sequence[float]]) -> None:
    """Draw the busy share and then each cause's, in each row; the first row is of all devices."""
    busy = [1 - sum(values[row] for values in shares.values()) for row in range(len(rows))]
    axes.barh(rows, busy, color=BUSY_COLOUR, label=f"busy {busy[0]:.1%}")
    for row, share in zip(rows, busy, strict=True):
        axes.text(0.008, row, f"{share:.0%}", color="white", va="center", fontsize=7)
    left = busy
    with matplotlib.rc_context({"hatch.linewidth": 0.4}):
        for cause, values in shares.items():
            style = IDLE_STYLES[cause]
            axes.barh(
                rows,
                values,
                left=left,
                label=f"{cause} {values[0]:.1%}\n{style.meaning}",
                facecolor=style.colour,
                edgecolor="#8C8C8C",
                hatch=style.hatch,
                linewidth=0.4,
            )
            left = [start + value for start, value in zip(left, values, strict=True)]


def draw_band(
    axes: Axes,
    places: Sequence[float],
    values: Sequence[float],
    errors: Sequence[float],
    colour: str,
) -> None:
    """Draw one standard error to either side of a curve; none of them are known where all are 0."""
    if any(errors):
        low = [value - error for value, error in zip(values, errors, strict=True)]
        high = [value + error for value, error in zip(values, errors, strict=True)]
        axes.fill_between(places, low, high, color=colour, alpha=0.18, linewidth=0)


def draw_curves(
    curves: Mapping[str, Mapping[int, float]], errors: Mapping[str, Mapping[int, float]]
) -> Figure:
    """Return curves over iterations, by their names.

    Args:
        curves: name -> iteration -> value.
        errors: the standard errors, likewise, of those that have one.
    """
    figure = Figure(figsize=(9, 3.4), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    for number, (name, values) in enumerate(curves.items()):
        colour, style = look_of(number)
        marker = MARKERS[number % len(MARKERS)] if len(values) <= 30 else ""
        label, (x, y) = verbatim(name), (list(values), list(values.values()))
        axes.plot(x, y, style, color=colour, marker=marker, label=label)
        spread = [errors.get(name, {}).get(iteration, 0.0) for iteration in values]
        draw_band(axes, list(values), list(values.values()), spread, colour)
    axes.set_xlabel("iteration")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title(
        "mean over the samples of each iteration, ± one standard error", loc="left", fontsize=11
    )
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure
