"""Reading files that users give: bounded in size, and one line of text if it cannot be done.

All of them come through here, so that a device, a pipe, a folder, a name that no file can have, a
file without end, nesting without end and numbers of thousands of digits are told alike. Importing
this module must not import torch.
"""

import json
import os
import re
import stat
import tomllib
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from digen_core.errors import UserError

MIB: Final = 2**20
SETTINGS_BYTES: Final = 128 * 2**10
"""Most bytes of a TOML file; digen's own have at most some 20 thousand."""
JSON_BYTES: Final = 64 * MIB
"""Most bytes of a JSON file, which takes some ten times that in memory; large tokenizers have 20
MiB."""

_MOST_LEVELS: Final = 900  # of lists and objects in JSON
_MOST_PARTS: Final = 64  # of a key in TOML, whose parser takes their number's square
_DEEP_KEY: Final = re.compile(rf"(?<![\w\"'-])(?:[\w\"'-]++[ \t]*+\.[ \t]*+){{{_MOST_PARTS}}}")
_REMEDIES: Final = {
    b"\xff\xfe": "save it as UTF-8",  # UTF-16
    b"\xfe\xff": "save it as UTF-8",
    b"\x1f\x8b": "it is compressed by gzip, unpack it",
}
"""What to do about a file that is no text, by how it begins."""
_KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class UnreadableError(UserError):
    """A file cannot be read as what it should be; the message names it and says why."""


def require_file(path: Path, what: str, limit: int | None = None) -> None:
    """Check that there is a file, and nothing that reading would wait for or never end.

    Args:
        path: of the file.
        what: it is, for the error: "the prompt file".
        limit: most bytes; None: any number, since it is not read whole.

    Raises:
        UnreadableError: there is none, or something else, or it is larger.
    """
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        raise UnreadableError(f"cannot read {what} {path}: {reason_of(error)}") from error
    for is_kind, kind in _KINDS:
        if is_kind(found.st_mode):
            raise UnreadableError(f"cannot read {what} {path}: it is {kind}, not a file")
    if limit is not None and found.st_size > limit:
        raise UnreadableError(
            f"cannot read {what} {path}: it has {found.st_size} bytes, more than {limit}"
        )


def read_bytes(path: Path, what: str, limit: int) -> bytes:
    """Return the content of a file of at most ``limit`` bytes.

    Raises:
        UnreadableError: see ``require_file``.
    """
    require_file(path, what, limit)
    try:
        # A pipe that has taken the file's place since must not be waited for.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            content = file.read(limit + 1)
    except (OSError, ValueError) as error:
        raise UnreadableError(f"cannot read {what} {path}: {reason_of(error)}") from error
    if len(content) > limit:  # files in /proc say that they have none
        raise UnreadableError(f"cannot read {what} {path}: it has more than {limit} bytes")
    return content


def read_text(path: Path, what: str, limit: int) -> str:
    """Return the text of a file of at most ``limit`` bytes, in UTF-8, without a byte order mark.

    Raises:
        UnreadableError: see ``require_file``, or it is no such text.
    """
    content = read_bytes(path, what, limit)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        hint = _REMEDIES.get(content[:2], "it has to be text in UTF-8")
        raise UnreadableError(f"cannot read {what} {path}: {error}; {hint}") from error


def read_json(path: Path, what: str, limit: int = JSON_BYTES) -> Any:
    """Return what a JSON file holds.

    Raises:
        UnreadableError: it cannot be read, or is no JSON.
    """
    text = read_text(path, what, limit)
    try:
        return parse_json(text)
    except ValueError as error:
        raise UnreadableError(f"cannot read {what} {path}: {error}") from error


def read_json_object(path: Path, what: str, limit: int = JSON_BYTES) -> dict[str, Any]:
    """Return the object that a JSON file holds.

    Raises:
        UnreadableError: it cannot be read, or holds something else.
    """
    tree = read_json(path, what, limit)
    if not isinstance(tree, dict):
        raise UnreadableError(f"cannot read {what} {path}: it holds {shown(tree)}, not an object")
    return tree


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Return the tables of a TOML file.

    Raises:
        UnreadableError: it cannot be read.
        UserError: it is no TOML.
    """
    content = read_bytes(path, what, SETTINGS_BYTES)
    try:
        return parse_toml(content.decode("utf-8-sig"))
    except ValueError as error:
        raise UserError(f"{path} is not valid TOML: {error}") from error


def parse_json(text: str) -> Any:
    """Return what a JSON text says.

    Raises:
        ValueError: it is none, nests too deeply, has a number of too many digits, or an object has
            a key twice.
    """
    try:
        return load_json(text, object_pairs_hook=_with_each_key_once)
    except RecursionError:
        raise ValueError("it nests too deeply") from None


def load_json(text: str, **options: Any) -> Any:
    """Return what a JSON text says, as ``json.loads`` does.

    Raises:
        ValueError: it is none.
        RecursionError: it nests too deeply; from 3.14 on Python could parse it, but not show it.
    """
    found = json.loads(text, **options)
    level = [found] if text.count("[") + text.count("{") > _MOST_LEVELS else []
    for _ in range(_MOST_LEVELS):
        lists = [own for own in level if isinstance(own, list)]
        tables = [own.values() for own in level if isinstance(own, dict)]
        level = [*chain(*lists, *tables)]
        if not level:
            return found
    raise RecursionError


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text.

    Raises:
        ValueError: it is none, nests too deeply, or has a number of too many digits.
    """
    if _DEEP_KEY.search(text):
        raise ValueError(f"a key has more than {_MOST_PARTS} parts")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it nests too deeply") from None


def reason_of(error: Exception) -> str:
    """Say in a few words why a file cannot be opened, or what of its content is wrong first."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return ": ".join([".".join(map(str, first["loc"])), first["msg"]]).removeprefix(": ")
    return (isinstance(error, OSError) and error.strerror) or str(error)


def shown(value: object, most: int = 200) -> str:
    """Return a value as Python writes it, shortened; it may be one that Python refuses to write."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # thousands of digits, thousands of levels
        return f"too much to show, of type {type(value).__name__}"
    return text if len(text) <= most else f"{text[: most - 40]}...{text[-37:]}"


def listed(names: Iterable[str], most: int = 20) -> str:
    """Return names with commas between, and of many only the first ones."""
    names = [name if len(name) <= 100 else f"{name[:97]}..." for name in names]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _with_each_key_once(pairs: list[tuple[str, Any]]) -> Mapping[str, Any]:
    tree = dict(pairs)
    if len(tree) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has the key {shown(twice)} twice")
    return tree
