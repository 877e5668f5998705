"""Small text files that others may read at any time: the old text or the new, never half of one."""

import os
from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Write a file whole, and have it on disk before this returns; the folder must be there."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    with unfinished.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
