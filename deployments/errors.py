"""Errors that end a command, and the line that reports them."""

import re
from typing import Final

_LONG_WORD: Final = re.compile(r"\S{300,}")
_LONG_LINE: Final = 2000


class RunStoppedError(RuntimeError):
    """Somebody stopped a run; the message is one line: who, and what is kept."""


class RunFailedError(RuntimeError):
    """A run that had started failed; the message is one line for the user."""


def one_line(text: str) -> str:
    """Return a text as one line of a bounded length, which moves no terminal's cursor."""
    line = _LONG_WORD.sub(lambda word: f"{word[0][:120]}...{word[0][-40:]}", " ".join(text.split()))
    if len(line) > _LONG_LINE:
        line = f"{line[: _LONG_LINE - 500]} ... {line[-400:]}"  # what to do stands at the end
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
