"""The policy versions of a run as a file in its folder: a line of JSON for each, with its hash.

| RUN/versions.jsonl   {"version": 7, "hash": "...", "parent": "..."}
"""

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from digen_core.inputs.reading import parse_json
from digen_core.transport.files import append_line, replace_text

logger = logging.getLogger(__name__)

VERSIONS_OF_RUN: Final = "versions.jsonl"
MOST_BYTES: Final = 4096
"""Of a line; it has some hundred."""


def note_versions(run_dir: Path, hashes: Mapping[int, str]) -> None:
    """Have versions in the file of a run, on disk: those that it lacks are added at its end.

    What it has of later versions goes: a run that was resumed makes them again.

    Args:
        run_dir: folder of the run.
        hashes: version -> hash of its content, of one at least; each is made from the version
            before it.
    """
    path = run_dir / VERSIONS_OF_RUN
    last = _last_in(path)
    if last is None or hashes.get(last[0]) != last[1]:
        known = _versions_in(path)
        found = {version: known[version] for version in known if version <= max(hashes)}
        found |= hashes
        if last is None or found != known:  # None: half a line may be at its end
            replace_text(path, "".join(f"{line}\n" for line in _lines(found, found)))
        return
    new = {version: hashes[version] for version in hashes if version > last[0]}
    if new:
        append_line(path, "\n".join(_lines(new, hashes)))


def _lines(versions: Mapping[int, str], hashes: Mapping[int, str]) -> list[str]:
    """Return the lines of some versions, whose parents are among others."""
    return [
        json.dumps({"version": own, "hash": versions[own], "parent": hashes.get(own - 1)})
        for own in sorted(versions)
    ]


def _last_in(path: Path) -> tuple[int, str] | None:
    """Return the version of the last line, and its hash; None: that is damaged, or there is none.

    What is before it is not read: a run may have made many thousands.
    """
    if not path.exists():
        return None
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - MOST_BYTES))
        end = file.read()
    return _entry_of(end.splitlines()[-1]) if end.endswith(b"\n") else None


def _versions_in(path: Path) -> dict[int, str]:
    """Return the hashes that a file holds; damaged lines are left out, with one warning."""
    found = [_entry_of(line) for line in path.read_bytes().splitlines()] if path.exists() else []
    if num_damaged := found.count(None):
        logger.warning("%s holds damaged lines, which are left out: %d", path, num_damaged)
    return dict(entry for entry in found if entry is not None)


def _entry_of(line: bytes) -> tuple[int, str] | None:
    try:
        entry = parse_json(line.decode())
        return int(entry["version"]), str(entry["hash"])
    except (ValueError, TypeError, KeyError):
        return None
