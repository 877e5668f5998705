"""Text that others wrote, for rich's tables."""

from rich.text import Text

from digen_core.inputs.text import printable


def plain(text: str) -> Text:
    """Return a text in which nothing is rich's markup, nor an order to the terminal."""
    return Text(printable(text))
