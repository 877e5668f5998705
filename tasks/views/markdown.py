"""Text that others wrote inside Markdown: prompts, names and messages stay what they are.

Code spans, as GitHub's Markdown has them, are the only place where nothing is markup; elsewhere
even bare addresses become links.
"""

import re

from digen_core.inputs.addresses import redacted
from digen_core.inputs.text import printable


def code(text: str) -> str:
    """Return a text as a code span, on one line."""
    text = printable(" ".join(redacted(text).split())) or " "
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def inline(text: str) -> str:
    """Return a text for the middle of a line: words as they are, all else as a code span."""
    return text if re.fullmatch(r"[\w ,/-]+", text) and "_" not in text else code(text)


def cell(text: str) -> str:
    """Return the same for a cell of a table.

    A bar there ends the cell unless an odd number of backslashes is before it.
    """
    return re.sub(r"(\\*)\|", r"\1\1\\|", inline(text))


def escaped(text: str) -> str:
    """Return words of digen's own, in which names are that others gave, without markup."""
    return " ".join(_escaped_word(word) for word in printable(redacted(text)).split())


def _escaped_word(word: str) -> str:
    if re.search(r"://|www\.|@", word):  # a link without being marked up as one
        return code(word)
    return re.sub(r"([\\`*_\[\]<>|~&!#])", r"\\\1", word)
