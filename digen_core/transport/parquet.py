"""Parquet files that appear, and are read, whole or not at all."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from digen_core.transport.files import make_folder, written_whole


def write_whole(table: pa.Table, path: Path) -> None:
    """Write a table and have it on disk before this returns; a file of that name is replaced.

    The folder is made if it is missing.
    """
    make_folder(path.parent)
    with written_whole(path) as unfinished:
        pq.write_table(table, unfinished, compression="zstd")


def read_whole(path: Path) -> pa.Table:
    """Return the table in a file, all of which is sound.

    Raises:
        OSError: it cannot be read.
        ValueError: it is damaged.
    """
    try:
        table = pq.read_table(path)
        table.validate(full=True)
    except pa.ArrowException as error:  # not each of them is a ValueError
        raise ValueError(str(error)) from error
    return table
