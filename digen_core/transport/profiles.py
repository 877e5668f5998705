"""Where the profiles of an iteration's tasks are; `tasks.worker.profiling` makes them."""

from pathlib import Path
from typing import Final

PROFILES_OF_RUN: Final = "profiles"


def folder_of(run_dir: Path, iteration: int) -> Path:
    """Return the folder of an iteration's profiles, which is called by its number from 1."""
    return run_dir / PROFILES_OF_RUN / f"iteration-{iteration + 1:04d}"
