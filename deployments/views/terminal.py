"""Text and tables on the terminal: what others wrote, and how all commands print."""

import signal
from typing import Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from digen_core.inputs.text import printable

WIDEST: Final = 1000
"""Columns of the widest word of a table."""

FOLDED: Final = 12
"""Columns that words of a column that folds may be broken into, and no fewer."""


class Output(Console):
    """Standard output, which a reader that has seen enough may close, as head does."""

    def on_broken_pipe(self) -> None:
        """End the command as other programs end then, not as one that failed."""
        try:
            super().on_broken_pipe()
        except SystemExit:
            raise SystemExit(128 + signal.SIGPIPE) from None


class Whole(Table):
    """A table of which no word is cut: its lines are longer than a terminal that is too narrow.

    Columns without wrapping show each line whole, and those that fold break words where they end.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Give each column the width that it needs."""
        wide, needed = options.update(max_width=WIDEST), 0
        _, right, _, left = self.padding
        for column in self.columns:
            cells = (column.header, *column.cells)
            widths = [Measurement.get(console, wide, cell) for cell in cells]
            least = max(own.maximum if column.no_wrap else own.minimum for own in widths)
            column.min_width = min(least, FOLDED) if column.overflow == "fold" else least
            needed += left + column.min_width + right
        room = options.update(max_width=max(options.max_width, needed))
        yield from super().__rich_console__(console, room)


def plain(text: str) -> Text:
    """Return a text in which nothing is rich's markup, nor an order to the terminal."""
    return Text(printable(text))


def terminal(width: int | None = None) -> Console:
    """Return standard output for text as it is: nothing is coloured, no line is broken.

    What stands in brackets, or between colons, is text, as in names of runs and descriptions.

    Args:
        width: of tables, in columns; None: the terminal's.
    """
    return Output(markup=False, emoji=False, highlight=False, soft_wrap=True, width=width)


def borderless(title: str | Text | None = None, *, gap: int = 2) -> Table:
    """Return a table without lines.

    Args:
        title: stands above it, at the left.
        gap: columns between two of its columns.
    """
    return Whole(title=title or None, title_justify="left", box=None, padding=(0, gap, 0, 0))
