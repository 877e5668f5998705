"""Parquet files that appear whole or not at all."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def write_whole(table: pa.Table, path: Path) -> None:
    """Write a table; the folder is made if it is missing, a file of that name is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Readers of a data set skip names that begin with a dot.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        pq.write_table(table, unfinished, compression="zstd")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
