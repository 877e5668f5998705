"""The stories of ``digen chaos``: a line for each as it ends, a table, and a report to keep."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Final

from rich.console import Console
from rich.table import Table

from deployments.chaos.campaign import WRONG, Told
from deployments.chaos.player import OUTPUT
from deployments.chaos.story import KINDS, Kind
from deployments.views.terminal import borderless, plain, terminal
from digen_core.transport.files import replace_text

REPORT: Final = "report.md"
_HEADINGS: Final = (
    "fault",
    "stories",
    "went on",
    "resumed",
    "restarted",
    "wrong",
    "s lost",
    "steps",
    "pairs",
)


def print_campaign(
    told: Iterable[Told], impossible: Sequence[Kind], folder: Path, console: Console | None = None
) -> bool:
    """Print stories as they end, then the table; return whether all left what they should.

    Args:
        told: the stories.
        impossible: kinds of faults that this machine does not let us do.
        folder: of the campaign, which gets the report.
        console: to print on.
    """
    console, stories = console or terminal(), list[Told]()
    if impossible:
        console.print(f"left out, as this machine has no namespaces: {', '.join(impossible)}")
    try:
        for one in told:
            stories.append(one)
            console.print(plain(_line(one)))
            for complaint in one.complaints:
                console.print(plain(f"    {complaint}"))
    finally:  # also of those that were played before Ctrl-C
        if stories:
            _print_end(stories, impossible, folder, console)
    return all(one.ended != WRONG for one in stories)


def _print_end(
    stories: list[Told], impossible: Sequence[Kind], folder: Path, console: Console
) -> None:
    stories.sort(key=lambda one: one.outcome.story.number)
    console.print(_table(stories))
    replace_text(folder / REPORT, _report(stories, impossible))
    wrong = sum(one.ended == WRONG for one in stories)
    console.print(
        f"{len(stories)} stories, {wrong} of them wrong; report {folder / REPORT}", markup=False
    )


def _line(one: Told) -> str:
    story = one.outcome.story
    return f"{story.name:>7}  {one.ended:<12} {one.seconds_lost:+5.0f} s  {story}"


def _table(stories: Sequence[Told]) -> Table:
    table = borderless(
        "stories with each fault; medians of seconds lost, of steps and pairs done again"
    )
    table.add_column(_HEADINGS[0], no_wrap=True)
    for heading in _HEADINGS[1:]:
        table.add_column(heading, justify="right")
    for row in _rows(stories):
        table.add_row(*row)
    return table


def _rows(stories: Sequence[Told]) -> list[list[str]]:
    """Return the cells of the table: a row for each kind of fault, and one for all."""
    rows = []
    for kind in KINDS:
        own = [s for s in stories if any(fault.kind == kind for fault in s.outcome.story.faults)]
        if own:
            rows.append([kind, *_cells(own)])
    return [*rows, ["all", *_cells(stories)]]


def _cells(stories: Sequence[Told]) -> list[str]:
    ends = [one.ended for one in stories]
    counts = [sum(end.startswith(how) for end in ends) for how in (*_HEADINGS[2:5], WRONG)]
    again = [median(getattr(one, of) for one in stories) for of in ("steps_again", "pairs_again")]
    lost = median(one.seconds_lost for one in stories)
    return [str(len(stories)), *map(str, counts), f"{lost:.0f}", *(f"{x:.0%}" for x in again)]


def _report(stories: Sequence[Told], impossible: Sequence[Kind]) -> str:
    """Return the report, in Markdown."""
    lines = ["# Stories of failures", ""]
    if impossible:
        lines += [f"Left out, as this machine has no namespaces: {', '.join(impossible)}.", ""]
    lines += [_row(_HEADINGS), _row(["---", *["--:"] * (len(_HEADINGS) - 1)])]
    lines += [_row(row) for row in _rows(stories)]
    for one in stories:
        outcome = one.outcome
        lines += ["", f"## Story {outcome.story.name}: {one.ended}", "", f"{outcome.story}.", ""]
        lines += [f"- done: {text}" for text in outcome.done or ("nothing: it was not reached",)]
        lines.append(
            f"- {outcome.seconds:.0f} s, {one.seconds_lost:+.0f} to the run in peace; again "
            f"{one.steps_again:.0%} of the steps (lost: {one.steps_lost:.0%} at most) and "
            f"{one.pairs_again:.0%} of the pairs ({one.pairs_lost:.0%})"
        )
        lines += [f"- it said: {text}" for text in outcome.warnings]
        for attempt in outcome.attempts[:-1]:
            lines.append(f"- exit code {attempt.code}: {attempt.last_line}")
        lines += [f"- **wrong**: {text}" for text in one.complaints]
        if one.complaints:
            lines.append(f"- all that it showed: `{outcome.story.name}/{OUTPUT}`")
    return "\n".join(lines) + "\n"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
