"""The live page's tables, and how they fit a terminal: what there is no room for is counted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from deployments.views.terminal import plain
from digen_core.inputs.text import number_of, printable
from digen_core.records import EvaluationReport
from tasks.views.display import (
    Progress,
    busy_fractions,
    causes_text,
    change_between,
    change_text,
    duration,
    headlines,
    label_of,
    mean_text,
    sparkline,
    value_text,
    verdict_in_short,
)

WIDTH = 88
"""Columns of a page on a terminal that has them."""
FRAME_LINES, FRAME_COLUMNS = 2, 4
BAR_WIDTH = 20
TREND_WIDTH = 18
LABEL_WIDTH = 24
DEVICE_BAR_WIDTH = 10


@dataclass
class Section:
    """A heading and its rows of cells, which may be cut to fit."""

    columns: Sequence[str]
    right: int  # columns after the first that are numbers
    rows: list[Sequence[RenderableType]] = field(default_factory=list)
    bold: str = ""  # first cell of the row that stands out
    elastic: int = 0  # the column that gives way where there is no room

    def table(self, count: int) -> Table:
        """Return its first rows, and how many others there are, in ``count`` lines."""
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for place, column in enumerate(self.columns):
            numbers = 0 < place <= self.right
            table.add_column(
                plain(column),
                justify="right" if numbers else "left",
                width=LABEL_WIDTH if place == 0 else None,
                min_width=None if place == self.elastic else self._extent(place),
                no_wrap=True,
                overflow="ellipsis",
            )
        fits = count - 1 >= len(self.rows)
        for row in self.rows if fits else self.rows[: count - 2]:
            cells = (plain(cell) if isinstance(cell, str) else cell for cell in row)
            table.add_row(*cells, style="bold" if row[0] == self.bold else None)
        if not fits:
            table.add_row(f"... {len(self.rows) - (count - 2)} more", style="dim")
        return table

    def _extent(self, place: int) -> int:
        """Return the width of a column that does not give way; bars have one of their own."""
        cells = (row[place] for row in self.rows)
        texts = [str(cell) for cell in cells if isinstance(cell, str | Text)]
        return max(map(len, [self.columns[place], *texts]))

    @property
    def lines(self) -> int:
        """Lines of the whole of it."""
        return 1 + len(self.rows)


def draw_page(run_id: str, progress: Progress, width: int, height: int, link: str = "") -> Panel:
    """Return the page of a run.

    Args:
        run_id: the run's name.
        progress: of the run.
        width: at most so many columns.
        height: at most so many lines, 8 or more.
        link: is shown whole, under all else.
    """
    width = min(WIDTH, width)
    sections = [_metrics(progress)] if progress.last else []
    if progress.evaluations:
        sections.append(_evaluations(progress.evaluations))
    if busy := busy_fractions(progress.last):
        sections.append(_devices(busy, progress.idle))
    head = _bar(progress)
    foot = Text(link, style="dim", overflow="fold")
    link_lines = ceil(len(link) / max(1, width - FRAME_COLUMNS))
    room = height - FRAME_LINES - len(head) - link_lines
    gap = 1 if sum(s.lines + 1 for s in sections) <= room else 0
    parts: list[RenderableType] = [*head]
    counts = share_lines([section.lines for section in sections], room - gap * len(sections))
    for section, count in zip(sections, counts, strict=True):
        parts += [""] * gap
        parts += [section.table(count)] if count > 1 else []
    parts += [foot] * bool(link)
    title = Text(printable(f"digen  {run_id}"), overflow="ellipsis", no_wrap=True)
    return Panel(Group(*parts), title=title, title_align="left", width=width)


def share_lines(wanted: Sequence[int], room: int) -> list[int]:
    """Return how many lines each gets: what it wants, the longest being cut as long as they do."""
    given = list(wanted)
    while sum(given) > room and max(given, default=0) > 0:
        longest = max(range(len(given)), key=lambda place: (given[place], -place))
        given[longest] -= 1
    return given


def _bar(progress: Progress) -> list[RenderableType]:
    """Return how far the run is, and what it is at."""
    grid = Table.grid(padding=(0, 2))
    elapsed = f"{duration(progress.elapsed_seconds)} elapsed"
    if progress.trains:
        total, left = progress.config.num_iterations, progress.seconds_left
        count = f"{progress.num_finished} of {number_of(total, 'iteration')}"
        grid.add_row(
            Text(count, style="bold", no_wrap=True),
            ProgressBar(total=total, completed=progress.num_finished, width=BAR_WIDTH),
            elapsed,
            "" if left is None else f"{duration(left)} left",
        )
    else:
        grid.add_row(Text("evaluation", style="bold"), elapsed)
    phase = Text(progress.phase, style="dim", no_wrap=True, overflow="ellipsis")
    if not progress.steps:
        return [grid, phase]
    steps = Table.grid(padding=(0, 2))
    bar = ProgressBar(total=progress.steps, completed=progress.num_steps, width=BAR_WIDTH)
    since = duration(progress.phase_seconds)
    steps.add_row(f"{progress.num_steps} of {progress.steps}", bar, f"for {since}", phase)
    return [grid, steps]


def _metrics(progress: Progress) -> Section:
    first, last = progress.first, progress.last
    section = Section(("metric", "first", "now", "trend", ""), 2, bold="reward")
    for name in headlines(last):
        section.rows.append(
            (
                label_of(name),
                value_text(name, first) if name in first else "",
                value_text(name, last),
                Text(sparkline(progress.trend(name), TREND_WIDTH), style="cyan"),
                verdict_in_short(change_between(name, first, last)),
            )
        )
    return section


def _devices(busy: Mapping[str, float], idle: Mapping[str, Mapping[str, float]]) -> Section:
    """Show what each device did in the last iteration, and what it waited for."""
    section = Section(("device", "busy", " " * DEVICE_BAR_WIDTH, "idle by cause"), 1, elastic=3)
    for device, share in busy.items():
        bar = Text("━" * round(share * DEVICE_BAR_WIDTH), style="bar.complete")
        section.rows.append((device, f"{share:.0%}", bar, causes_text(idle.get(device, {}))))
    return section


def _evaluations(evaluations: Mapping[str, EvaluationReport]) -> Section:
    """Show the latest evaluation, beside the first one if there are several."""
    tags = list(dict.fromkeys([next(iter(evaluations)), list(evaluations)[-1]]))
    first, last = evaluations[tags[0]], evaluations[tags[-1]]
    names = sorted(last.rewards, key=lambda name: name != "reward")
    heads = [_head(tag, evaluations[tag].version) for tag in tags]
    if len(tags) == 1:
        rows = [(name, mean_text(last, name)) for name in names]
        return Section(("evaluation", *heads), 1, list(rows), bold="reward")
    section = Section(("evaluation", *heads, "change", ""), 3, bold="reward")
    for name in names:
        change = last.change_since(first, name)
        before = "" if change is None else mean_text(first, name)
        cells = before, mean_text(last, name), change_text(change), verdict_in_short(change)
        section.rows.append((name, *cells))
    return section


def _head(tag: str, version: int) -> str:
    return f"{tag} (v{version})" if "-" not in tag else f"v{version}"
