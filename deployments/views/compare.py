"""``digen compare``: what differs between runs, and their curves together."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import wrap
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.console import Console
from rich.table import Table

from deployments.views.terminal import FOLDED, borderless, plain
from digen_core.config.checkpoint import EVALUATION
from digen_core.errors import UserError
from digen_core.inputs.text import printable
from digen_core.maths.statistics import (
    PROMPT_WINS,
    WINS,
    Change,
    error_of,
    unpaired_change,
    with_error,
)
from digen_core.records import Wins
from digen_core.trace.charts import MARKERS, NUM_LOOKS, draw_band, look_of, verbatim
from digen_core.trace.page import png_of
from digen_core.transport.files import replace_bytes
from tasks.tracking.history import RunData
from tasks.views.display import sparkline, verdict_in_short, wins_text

MISSING: Final = "-"
SHOWN: Final = (EVALUATION, WINS, "reward/", "train/", "throughput/", "time/iteration_seconds")
"""What the names of metrics begin with that are shown where none are asked for."""
SPARK_WIDTH: Final = 16
COLUMNS: Final = 3
POINTS: Final = "." + MARKERS
"""Markers of the first curves, and of those whose colours and line styles come again."""


def told_apart(targets: Sequence[str], runs: Sequence[RunData]) -> list[RunData]:
    """Return runs of which those of one name, as copies have, are called as they were asked for.

    Args:
        targets: the folders, names or ids that they were asked for by.
        runs: what they logged.
    """
    names = [run.name for run in runs]
    return [
        replace(run, name=target) if names.count(run.name) > 1 else run
        for target, run in zip(targets, runs, strict=True)
    ]


def differing(sides: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """Return the keys whose values are not the same on all sides, with the values."""
    keys = sorted({key for side in sides for key in side})
    values = {key: [side.get(key, MISSING) for side in sides] for key in keys}
    return {key: found for key, found in values.items() if len(set(found)) > 1}


def metrics_to_show(runs: Sequence[RunData], asked: Sequence[str]) -> list[str]:
    """Return the names of the metrics to show.

    Raises:
        UserError: one that was asked for is in no run.
    """
    known = {name for run in runs for name in run.metrics}
    for name in asked:
        if name not in known:
            raise UserError(f"no run has a metric {name}; there are {', '.join(sorted(known))}")
    if asked:
        return list(asked)
    return [name for start in SHOWN for name in sorted(known) if name.startswith(start)]


def last_value(run: RunData, name: str) -> float | None:
    """Return the last value of a metric; None if it has none."""
    points = run.metrics.get(name)
    return points[-1][1] if points else None


def last_error(run: RunData, name: str) -> float | None:
    """Return the standard error of the last value of a metric; None if that one has none."""
    points, errors = run.metrics.get(name), dict(run.metrics.get(error_of(name), []))
    return errors.get(points[-1][0]) if points else None


def change_of(first: RunData, second: RunData, name: str) -> Change | None:
    """Return the difference of two runs' last values, as if their prompts were different ones."""
    before, after = last_value(first, name), last_value(second, name)
    if before is None or after is None:
        return None
    errors = (last_error(run, name) for run in (first, second))
    return unpaired_change(after - before, *errors)


def print_comparison(runs: Sequence[RunData], names: Sequence[str], console: Console) -> None:
    """Print what differs: config, environment and the last value of each metric."""
    _print_differing("config", runs, [run.config for run in runs], console)
    unknown = [run.name for run in runs if not run.environment]
    if unknown:
        console.print(plain(f"environment: not known of {', '.join(unknown)}"))
    else:
        _print_differing("environment", runs, [run.environment for run in runs], console)
    if not names:
        console.print("metrics: none yet; no iteration of these runs is over")
        return
    console.print(_metrics_table(runs, names, console.width))
    if len(runs) == 2 and (wins := _wins(runs[0], runs[1], names)):
        console.print(_wins_table(runs, wins))


def _metrics_table(runs: Sequence[RunData], names: Sequence[str], width: int) -> Table:
    """Return the last value of each metric in each run, whole; above it its curve if need be."""
    rows = [_cells(name, runs, " ") for name in names]
    needed = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    if max(map(len, names)) + sum(needed) + len(needed) + 1 > width:
        rows = [_cells(name, runs, "\n") for name in names]
    room = (width - max(map(len, names)) - sum(needed[len(runs) :])) // len(runs) - 2
    table = borderless("metrics: last value and curve", gap=1)  # 80 columns
    table.add_column("", overflow="fold")
    for place, run in enumerate(runs):
        most = max(len(line) for row in rows for line in row[place].splitlines())
        heading = "\n".join(wrap(printable(run.name), max(most, room, FOLDED)))
        table.add_column(plain(heading), justify="right", no_wrap=True)
    if len(runs) == 2:
        table.add_column("difference", justify="right", no_wrap=True)
        table.add_column("", no_wrap=True)
    for name, row in zip(names, rows, strict=True):
        table.add_row(*map(plain, (name, *row)))
    return table


def _print_differing(
    title: str, runs: Sequence[RunData], sides: Sequence[Mapping[str, str]], console: Console
) -> None:
    rows = differing(sides)
    if not rows:
        console.print(f"{title}: nothing differs")
        return
    table = _table(f"{title}: what differs", runs)
    for key, values in rows.items():
        table.add_row(*map(plain, (key, *values)))
    console.print(table)


def _wins(first: RunData, second: RunData, names: Sequence[str]) -> dict[str, Wins]:
    """Return how often the second run's newest evaluation scores higher than the first's."""
    own, other = second.evaluation, first.evaluation
    if own is None or other is None:
        return {}
    shown = [name for name in names if name.startswith(EVALUATION)]
    found = {name: own.wins_over(other, name.removeprefix(EVALUATION)) for name in shown}
    return {name: wins for name, wins in found.items() if wins}


def _wins_table(runs: Sequence[RunData], rows: Mapping[str, Wins]) -> Table:
    """Return them as a table; without pairs where no two samples began from the same noise."""
    first, second = (run.name for run in runs)
    table = borderless(plain(f"wins of {second} over {first} on the same prompts, ties half"))
    table.add_column("", no_wrap=True)
    kinds = ["prompts"]
    if any(wins.pairs for wins in rows.values()):
        kinds = ["pairs of the same noise", "prompts"]
    for kind in kinds:
        table.add_column(kind, justify="right")
    for name, wins in rows.items():
        shares = [wins.pairs, wins.prompts][-len(kinds) :]
        table.add_row(plain(name), *map(wins_text, shares))
    return table


def _table(title: str, runs: Sequence[RunData]) -> Table:
    table = borderless(title)
    table.add_column("", no_wrap=True)
    for run in runs:
        table.add_column(plain(run.name), overflow="fold")
    return table


def _cells(name: str, runs: Sequence[RunData], between: str) -> list[str]:
    cells = [_cell(name, run, between) for run in runs]
    if len(runs) == 2:
        change = change_of(runs[0], runs[1], name)
        cells.append(with_error(f"{change.value:+.4g}", change.error, ".2g") if change else MISSING)
        cells.append(verdict_in_short(change))
    return cells


def _cell(name: str, run: RunData, between: str) -> str:
    values = [value for _, value in run.metrics.get(name, [])]
    if not values:
        return MISSING
    curve = f"{sparkline(values, SPARK_WIDTH)}{between}" if len(values) > 2 else ""
    return curve + with_error(f"{values[-1]:.4g}", last_error(run, name), ".2g")


def draw_curves(runs: Sequence[RunData], names: Sequence[str]) -> Figure:
    """Return a picture with a chart for each metric and a curve in it for each run."""
    columns = min(COLUMNS, len(names))
    rows = -(-len(names) // columns)
    size = (4.2 * columns, 0.3 + 0.2 * len(runs) + 2.5 * rows)
    figure = Figure(figsize=size, dpi=110, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    places = list(grid.flat)
    for axes, name in zip(places, names, strict=False):
        _draw(axes, runs, name)
    for axes in places[len(names) :]:
        axes.set_axis_off()
    lines = {line.get_label(): line for axes in places[: len(names)] for line in axes.lines}
    figure.legend(handles=lines.values(), loc="outside upper left", frameon=False, fontsize=9)
    return figure


def _draw(axes: Axes, runs: Sequence[RunData], name: str) -> None:
    for number, run in enumerate(runs):
        if points := run.metrics.get(name):
            steps, values = zip(*points, strict=True)
            (colour, style), label = look_of(number), verbatim(printable(run.name))
            marker = POINTS[number // NUM_LOOKS % len(POINTS)]
            axes.plot(steps, values, style, color=colour, label=label, marker=marker, linewidth=1.3)
            errors = dict(run.metrics.get(error_of(name), []))
            spread = [errors.get(step, 0.0) for step in steps]
            draw_band(axes, steps, values, spread, colour)
    axes.set_title(verbatim(name), loc="left", fontsize=10)
    of_versions = name.startswith((EVALUATION, WINS, PROMPT_WINS))
    axes.set_xlabel("policy version" if of_versions else "iteration", fontsize=8)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)


def write_curves(runs: Sequence[RunData], names: Sequence[str], folder: Path) -> Path:
    """Write the picture of the curves into a folder and return its path.

    Raises:
        UserError: the folder cannot be written to.
    """
    path, picture = folder / "compare.png", png_of(draw_curves(runs, names))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_bytes(path, picture)
    except OSError as error:
        raise UserError(f"cannot write the curves to {path}: {error.strerror}") from error
    return path
