"""A page of pictures and tables that is one HTML file and needs no other."""

import base64
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from matplotlib.figure import Figure
from PIL import Image

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1440px; margin: 2em auto; padding: 0 1em;
       color: #222; background: #fff; }
img { max-width: 100%; height: auto; }
table { border-collapse: collapse; margin: 1em 0; }
th, td { padding: 0.25em 0.9em; border-bottom: 1px solid #ddd; text-align: left; }
.number { text-align: right; }
"""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under a heading."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


Part = str | Table | bytes
"""A paragraph, a table, or a picture as PNG."""


def page(title: str, sections: Sequence[tuple[str, Sequence[Part]]]) -> str:
    """Return the HTML of a page.

    Args:
        title: heading of the page.
        sections: their headings, and what is in them.
    """
    name = html.escape(title)
    lines = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{name}</title>',
        f"<style>{_STYLE}</style></head><body><h1>{name}</h1>",
    ]
    for heading, parts in sections:
        lines.append(f"<h2>{html.escape(heading)}</h2>")
        lines += [_html_of(part, heading) for part in parts]
    return "\n".join([*lines, "</body></html>\n"])


def png_of(figure: Figure, num_colours: int | None = None) -> bytes:
    """Return a figure as PNG, with a palette of its own if the number of colours is limited."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    if num_colours is None:
        return buffer.getvalue()
    image = Image.open(buffer).convert("P", palette=Image.Palette.ADAPTIVE, colors=num_colours)
    small = io.BytesIO()
    image.save(small, "png", optimize=True)
    return small.getvalue()


def _html_of(part: Part, heading: str) -> str:
    if isinstance(part, str):
        return f"<p>{html.escape(part)}</p>"
    if isinstance(part, bytes):
        data = base64.b64encode(part).decode()
        return f'<p><img alt="{html.escape(heading)}" src="data:image/png;base64,{data}"></p>'
    head = _row("th", part.columns)
    return "\n".join(["<table>", head, *(_row("td", row) for row in part.rows), "</table>"])


def _row(cell: str, texts: Sequence[str]) -> str:
    cells = []
    for text in texts:
        look = ' class="number"' if text.lstrip("+-")[:1].isdigit() else ""
        cells.append(f"<{cell}{look}>{html.escape(text)}</{cell}>")
    return f"<tr>{''.join(cells)}</tr>"
