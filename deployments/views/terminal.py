"""Text and tables on the terminal: what others wrote, and how all commands print."""

import signal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from digen_core.inputs.text import printable


class Output(Console):
    """Standard output, which a reader that has seen enough may close, as head does."""

    def on_broken_pipe(self) -> None:
        """End the command as other programs end then, not as one that failed."""
        try:
            super().on_broken_pipe()
        except SystemExit:
            raise SystemExit(128 + signal.SIGPIPE) from None


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
    return Table(title=title or None, title_justify="left", box=None, padding=(0, gap, 0, 0))
