"""Entries: what a run logged for MLflow, a line each, in the order in which it happened.

tasks/tracking/spool.py writes and sends them. Importing this module must not import torch.
"""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from digen_core.inputs.reading import parse_json

logger = logging.getLogger(__name__)

FOLDER: Final = "tracking"

ENTRIES_OF_RUN: Final = f"{FOLDER}/entries.jsonl"

Entry = dict[str, Any]
"""``key`` and ``kind``, and what the kind needs: see tasks/tracking/delivery.py."""


def read_entries(run_dir: Path) -> list[Entry]:
    """Return all that a run has logged, in order; none if it was not tracked."""
    return [entry for entry, _ in entries_in(run_dir / ENTRIES_OF_RUN)]


def last_entries(run_dir: Path, num_bytes: int) -> list[Entry]:
    """Return the entries that are whole in the last bytes of what a run has logged.

    Raises:
        OSError: they cannot be read.
    """
    path = run_dir / ENTRIES_OF_RUN
    if not path.exists():
        return []
    offset = max(0, os.path.getsize(path) - num_bytes)
    return [entry for entry, _ in entries_in(path, offset, warns=False)]


def entries_in(path: Path, offset: int = 0, *, warns: bool = True) -> Iterator[tuple[Entry, int]]:
    """Yield the entries from a byte on, each with its length and that of damaged lines before."""
    if not path.exists():
        return
    length, is_damaged = 0, not warns
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return  # it is being written, or its writer was killed
            length += len(line)
            entry = _entry_of(line)
            if entry is None:
                if not is_damaged:  # it may be all of many thousands: said once
                    logger.warning("%s holds damaged lines, which are left out", path)
                is_damaged = True
                continue
            yield entry, length
            length = 0


def _entry_of(line: bytes) -> Entry | None:
    try:
        entry = parse_json(line.decode())
    except ValueError:
        return None
    if not isinstance(entry, dict):
        return None
    return entry if all(isinstance(entry.get(name), str) for name in ("key", "kind")) else None
