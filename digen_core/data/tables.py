"""Rows of the files that people keep prompts in, down to folders of Hugging Face's datasets."""

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import glob
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from digen_core.errors import ConfigError
from digen_core.inputs.reading import (
    MIB,
    listed,
    parse_json,
    read_json_object,
    read_text,
    require_file,
    shown,
)

TEXT_COLUMN: Final = "prompt"
"""The only column of a text file."""

MAX_ROWS: Final = 2_000_000
MAX_BYTES: Final = 256 * MIB
"""Most rows and bytes of prompts: they are held in memory, a row taking about a kB."""
MAX_COLUMNS: Final = 10_000

_SLICE: Final = 64  # rows that become Python's own at a time
_SHARD: Final = re.compile(r"(.+)-\d+-of-\d+\.parquet")  # data/train-00000-of-00002.parquet


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table."""

    origin: str  # "prompts.jsonl line 3"
    values: Mapping[str, Any]  # by column


def read_rows(path: str, columns: Sequence[str]) -> list[Row]:
    """Return the rows of a file or folder with at least the given columns.

    Args:
        path: of a ``.jsonl``, ``.csv`` or ``.parquet`` file, of a pattern for Parquet files
            ("data/train-*.parquet"), of a folder of Parquet files or one that ``save_to_disk`` of
            Hugging Face's datasets wrote; anything else is text, whose lines are the prompts.
        columns: that are needed.

    Raises:
        ConfigError: it cannot be read, holds no row, or lacks a column.
    """
    place = Path(path)
    if "*" in path:
        rows = _bounded(_parquet_rows(map(Path, sorted(glob(path))), columns, path), path)
    elif place.is_dir():
        rows = _bounded(_folder_rows(place, columns), path)
    else:
        rows = _bounded(_READERS.get(place.suffix.lower(), _text_rows)(place, columns), path)
    if not rows:
        raise ConfigError(f"the prompt file {path} holds no prompt; write one a line")
    return rows


def _bounded(rows: Iterable[Row], path: str) -> list[Row]:
    """Return rows that are not too many to be held."""
    found = list(islice(rows, MAX_ROWS + 1))
    if len(found) > MAX_ROWS:
        raise _too_large(path)
    return found


def _text_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    _require(columns, [TEXT_COLUMN], path)
    for number, line in enumerate(_text(path).splitlines(), 1):
        if line.strip():
            yield Row(f"{path} line {number}", {TEXT_COLUMN: line.strip()})


def _json_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    rows = []
    for number, line in enumerate(_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            values = parse_json(line)
        except ValueError as error:
            raise ConfigError(f"{path} line {number} is not JSON: {error}") from error
        if not isinstance(values, dict):
            raise ConfigError(f"{path} line {number} is {shown(line.strip(), 80)}, not an object")
        if number > MAX_ROWS:
            break
        rows.append(Row(f"{path} line {number}", values))
    if rows:
        _require(columns, list({name: None for row in rows for name in row.values}), path)
    yield from rows


def _csv_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    reader = csv.DictReader(StringIO(_text(path), newline=""), strict=True)
    try:
        names = reader.fieldnames or []
        if len(names) > MAX_COLUMNS or len(set(names)) < len(names):
            twice = [name for name, count in Counter(names).items() if count > 1]
            what = f"{listed(twice)} twice" if twice else f"more than {MAX_COLUMNS}"
            raise ConfigError(f"{path} has the columns {what}")
        _require(columns, names, path)
        for values in reader:
            if None in values or None in values.values():
                raise ConfigError(
                    f"{path} line {reader.line_num} has another number of fields than the header"
                )
            yield Row(f"{path} line {reader.line_num}", values)
    except csv.Error as error:
        raise ConfigError(f"{path} line {reader.line_num} is not CSV: {error}") from error


def _one_parquet_file(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    return _parquet_rows([path], columns, str(path))


def _no_json(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    raise ConfigError(f"{path}: write JSON Lines, an object a line, and name the file .jsonl")


_READERS: Final[dict[str, Callable[[Path, Sequence[str]], Iterator[Row]]]] = {
    ".jsonl": _json_rows,
    ".json": _no_json,
    ".csv": _csv_rows,
    ".parquet": _one_parquet_file,
}


def _folder_rows(folder: Path, columns: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of a Hugging Face dataset, or of a folder of Parquet files."""
    if (folder / "state.json").is_file():
        return _saved_rows(folder, columns)
    if (folder / "dataset_dict.json").is_file():
        splits = sorted(state.parent.name for state in folder.glob("*/state.json"))
        if not splits:
            raise ConfigError(
                f"cannot read the dataset folder {folder}: it has a dataset_dict.json, but no "
                "folder of a split; save the dataset again"
            )
        raise ConfigError(
            f"{folder} holds the splits {listed(splits)}; give one, as in {folder / splits[0]}"
        )
    files = sorted(folder.glob("*.parquet"))
    splits = sorted({found[1] for file in files if (found := _SHARD.fullmatch(file.name))})
    if len(splits) > 1:
        raise ConfigError(
            f"{folder} holds the splits {listed(splits)}; give one, as in "
            f"{folder / splits[0]}-*.parquet"
        )
    return _parquet_rows(files, columns, str(folder))


def _saved_rows(folder: Path, columns: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of what ``save_to_disk`` wrote: Arrow IPC streams, listed in state.json."""
    state = read_json_object(folder / "state.json", "the dataset's state")
    if state.get("_indices_data_files"):
        raise ConfigError(f"{folder} was saved with a selection of its rows; flatten_indices() it")
    try:
        files = [folder / str(entry["filename"]) for entry in state["_data_files"]]
    except (KeyError, TypeError) as error:
        raise ConfigError(f"cannot read the dataset folder {folder}: {error!r}") from error
    yield from _table_rows(_streams(files, folder), columns, str(folder))


def _streams(files: Sequence[Path], folder: Path) -> Iterator[pa.RecordBatch]:
    for file in files:
        require_file(file, "the prompt file")
        try:
            with pa.memory_map(str(file)) as source:
                yield from pa.ipc.open_stream(source)
        except (OSError, pa.ArrowException) as error:
            raise ConfigError(f"cannot read the dataset folder {folder}: {error}") from error


def _parquet_rows(files: Iterable[Path], columns: Sequence[str], name: str) -> Iterator[Row]:
    missing = True
    for file in files:
        missing = False
        require_file(file, "the prompt file")
        yield from _table_rows(_batches(file, columns), columns, str(file))
    if missing:
        raise ConfigError(f"cannot read the prompt file {name}: no Parquet files are there")


def _batches(path: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield some columns of a Parquet file in batches that memory can hold.

    A cell may be stored once for many rows, so a batch may be as large as its rows times what all
    cells take in the file.
    """
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            _require(columns, names, path)
            size = _size_of_columns(file.metadata, columns)
            if size > MAX_BYTES or file.metadata.num_rows > MAX_ROWS:
                raise _too_large(path)
            num_rows = min(max(MAX_BYTES // max(size, 1), 1), 8192)
            yield from file.iter_batches(num_rows, columns=list(columns))
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"cannot read the prompt file {path}: {error}") from error


def _size_of_columns(metadata: pq.FileMetaData, columns: Sequence[str]) -> int:
    """Return the bytes of some columns when they are no longer compressed."""
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    chunks = (group.column(place) for group in groups for place in range(group.num_columns))
    return sum(
        chunk.total_uncompressed_size
        for chunk in chunks
        if chunk.path_in_schema.partition(".")[0] in columns
    )


def _table_rows(
    batches: Iterable[pa.RecordBatch], columns: Sequence[str], name: str
) -> Iterator[Row]:
    number = size = 0
    for batch in batches:
        _require(columns, batch.schema.names, name)
        for start in range(0, len(batch), _SLICE):
            for values in _values(batch.slice(start, _SLICE), columns, name):
                number += 1
                size += sum(len(value) for value in values.values() if isinstance(value, str))
                yield Row(f"{name} row {number}", values)
            if number > MAX_ROWS or size > MAX_BYTES:
                raise _too_large(name)


def _values(batch: pa.RecordBatch, columns: Sequence[str], name: str) -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = batch.select(list(columns)).to_pylist()
    except (
        KeyError,
        ValueError,
        pa.ArrowException,
    ) as error:  # two columns of a name, no UTF-8, no date
        raise ConfigError(f"cannot read the prompt file {name}: {error}") from error
    return found


def _too_large(name: Path | str) -> ConfigError:
    return ConfigError(
        f"the prompt file {name} holds more than {MAX_ROWS} rows or {MAX_BYTES} bytes of prompts, "
        "which are held in memory; give fewer"
    )


def _text(path: Path) -> str:
    return read_text(path, "the prompt file", MAX_BYTES)


def _require(columns: Sequence[str], found: Sequence[str], path: Path | str) -> None:
    for name in columns:
        if name not in found:
            raise ConfigError(
                f"{path} has no column {name!r}, which the config's [prompts] names; it has "
                f"{listed(found)}"
            )
