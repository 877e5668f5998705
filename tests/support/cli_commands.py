"""The commands of ``digen``, and the examples in their help."""

import inspect
import re
from collections.abc import Iterator

from cyclopts import App

from deployments.cli import app


def commands(group: App = app, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], App]]:
    """Yield every command: the words that call it, and its app."""
    for name in group:
        if name.startswith("-"):
            continue
        found = group[name]
        if found.default_command is None or list(commands(found)):
            yield from commands(found, (*path, name))
        else:
            yield (*path, name), found


COMMANDS = {" ".join(path): found for path, found in commands()}


def examples_of(name: str) -> list[str]:
    """The examples in a command's help, each on one line again."""
    text = inspect.getdoc(COMMANDS[name].default_command) or ""
    matches = re.findall(r"Example: (.*?)(?=\n\n|\nExample:|\Z)", text, re.DOTALL)
    return [" ".join(example.split()) for example in matches]
