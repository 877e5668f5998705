"""The policy versions of a run as a file in its folder: a line of JSON for each, with its hash.

| RUN/versions.jsonl   {"version": 7, "hash": "...", "parent": "..."}
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from digen_core.inputs.reading import parse_json
from digen_core.transport.files import replace_text

logger = logging.getLogger(__name__)

VERSIONS_OF_RUN: Final = "versions.jsonl"


def note_versions(run_dir: Path, hashes: Mapping[int, str]) -> None:
    """Have versions in the file of a run, whole and on disk.

    What it has of later versions goes: a run that was resumed makes them again.

    Args:
        run_dir: folder of the run.
        hashes: version -> hash of its content, of one at least; each is made from the version
            before it.
    """
    path = run_dir / VERSIONS_OF_RUN
    known = _versions_in(path)
    found = {version: known[version] for version in known if version <= max(hashes)} | dict(hashes)
    if found == known:
        return
    lines = [
        {"version": version, "hash": found[version], "parent": found.get(version - 1)}
        for version in sorted(found)
    ]
    replace_text(path, "".join(json.dumps(line) + "\n" for line in lines))


def _versions_in(path: Path) -> dict[int, str]:
    """Return the hashes that a file holds; damaged lines are left out, with one warning."""
    found, num_damaged = {}, 0
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            entry = parse_json(line.decode())
            found[int(entry["version"])] = str(entry["hash"])
        except (ValueError, TypeError, KeyError):
            num_damaged += 1
    if num_damaged:
        logger.warning("%s holds damaged lines, which are left out: %d", path, num_damaged)
    return found
