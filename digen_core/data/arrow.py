"""Rows of Parquet files, and of the Arrow files that Hugging Face's datasets write."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from digen_core.data.published import columns_of
from digen_core.data.rows import MAX_BYTES, MAX_ROWS, Row, too_large
from digen_core.errors import ConfigError
from digen_core.inputs.reading import read_json_object, require_file

_SLICE: Final = 64  # rows that become Python's own at a time


def saved_rows(folder: Path, columns: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of what ``save_to_disk`` wrote: Arrow IPC streams, listed in state.json."""
    state = read_json_object(folder / "state.json", "the dataset's state")
    if state.get("_indices_data_files"):
        raise ConfigError(f"{folder} was saved with a selection of its rows; flatten_indices() it")
    try:
        files = [folder / str(entry["filename"]) for entry in state["_data_files"]]
    except (KeyError, TypeError) as error:
        raise ConfigError(f"cannot read the dataset folder {folder}: {error!r}") from error
    batches = _streams(files, folder)
    try:
        for first in batches:
            places = columns_of(columns, first.schema.names, folder)
            rows = _table_rows(chain([first], batches), places.names, str(folder))
            yield from places.of(rows)
    except UnicodeDecodeError as error:  # the name of a column
        raise ConfigError(f"cannot read the dataset folder {folder}: {error}") from error


def _streams(files: Sequence[Path], folder: Path) -> Iterator[pa.RecordBatch]:
    for file in files:
        require_file(file, "the prompt file")
        try:
            with pa.memory_map(str(file)) as source:
                yield from pa.ipc.open_stream(source)
        except (OSError, pa.ArrowException) as error:
            raise ConfigError(f"cannot read the dataset folder {folder}: {error}") from error


def parquet_rows(files: Iterable[Path], columns: Sequence[str], name: str) -> Iterator[Row]:
    """Yield the rows of Parquet files, in their order."""
    missing = True
    for file in files:
        missing = False
        require_file(file, "the prompt file")
        yield from _rows_of_file(file, columns)
    if missing:
        raise ConfigError(f"cannot read the prompt file {name}: no Parquet files are there")


def _rows_of_file(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of a Parquet file, read in batches that memory can hold.

    A cell may be stored once for many rows, so a batch may be as large as its rows times what all
    cells take in the file.
    """
    try:
        with pq.ParquetFile(path) as file:
            places = columns_of(columns, file.schema_arrow.names, path)
            size = _size_of_columns(file.metadata, places.names)
            if size > MAX_BYTES or file.metadata.num_rows > MAX_ROWS:
                raise too_large(path)
            num_rows = min(max(MAX_BYTES // max(size, 1), 1), 8192)
            batches = file.iter_batches(num_rows, columns=places.names)
            yield from places.of(_table_rows(batches, places.names, str(path)))
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise ConfigError(f"cannot read the prompt file {path}: {error}") from error


def _size_of_columns(metadata: pq.FileMetaData, columns: Sequence[str]) -> int:
    """Return the bytes of some columns when they are no longer compressed.

    The path of a chunk is its column's name, which may have dots, and what lies in it after a dot.
    """
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    chunks = (group.column(place) for group in groups for place in range(group.num_columns))
    return sum(
        chunk.total_uncompressed_size
        for chunk in chunks
        if any(f"{chunk.path_in_schema}.".startswith(f"{name}.") for name in columns)
    )


def _table_rows(
    batches: Iterable[pa.RecordBatch], columns: Sequence[str], name: str
) -> Iterator[Row]:
    number = size = 0
    for batch in batches:
        columns_of(columns, batch.schema.names, name)  # files of a data set may differ
        for start in range(0, len(batch), _SLICE):
            for values in _values(batch.slice(start, _SLICE), columns, name):
                number += 1
                size += sum(map(_size_of, values.values()))
                yield Row(f"{name} row {number}", values)
            if number > MAX_ROWS or size > MAX_BYTES:
                raise too_large(name)


def _size_of(value: object) -> int:
    """Return the bytes, or characters, of a value or of those in a list.

    Of an image of datasets they are those of its content.
    """
    if isinstance(value, list):
        return sum(map(_size_of, value))
    content = value.get("bytes") if isinstance(value, dict) else value
    return len(content) if isinstance(content, str | bytes) else 0


def _values(batch: pa.RecordBatch, columns: Sequence[str], name: str) -> list[dict[str, Any]]:
    try:
        chosen = batch.select(list(columns))
        chosen.validate(full=True)  # of a damaged file a length may lead out of memory
        found: list[dict[str, Any]] = chosen.to_pylist()
    except (
        KeyError,
        ValueError,
        OverflowError,
        pa.ArrowException,
    ) as error:  # two columns of a name, no UTF-8, no date, one of no year of Python's
        raise ConfigError(f"cannot read the prompt file {name}: {error}") from error
    return found
