"""Rows of the files that people keep prompts in, down to folders of Hugging Face's datasets."""

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import glob
from io import StringIO
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from digen_core.config import ConfigError

TEXT_COLUMN: Final = "prompt"
"""The only column of a text file."""

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
        rows = _parquet_rows([Path(found) for found in sorted(glob(path))], columns, path)
    elif place.is_dir():
        rows = _folder_rows(place, columns)
    else:
        rows = list(_READERS.get(place.suffix.lower(), _text_rows)(place, columns))
    if not rows:
        raise ConfigError(f"the prompt file {path} holds no prompt; write one a line")
    return rows


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
            values = json.loads(line)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{path} line {number} is not JSON: {error}") from error
        if not isinstance(values, dict):
            raise ConfigError(f"{path} line {number} is {line.strip()[:80]!r}, not an object")
        rows.append(Row(f"{path} line {number}", values))
    if rows:
        _require(columns, list({name: None for row in rows for name in row.values}), path)
    yield from rows


def _csv_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    reader = csv.DictReader(StringIO(_text(path), newline=""), strict=True)
    try:
        _require(columns, reader.fieldnames or [], path)
        for values in reader:
            if None in values or None in values.values():
                raise ConfigError(
                    f"{path} line {reader.line_num} has another number of fields than the header"
                )
            yield Row(f"{path} line {reader.line_num}", values)
    except csv.Error as error:
        raise ConfigError(f"{path} line {reader.line_num} is not CSV: {error}") from error


def _one_parquet_file(path: Path, columns: Sequence[str]) -> list[Row]:
    return _parquet_rows([path], columns, str(path))


def _no_json(path: Path, columns: Sequence[str]) -> list[Row]:
    raise ConfigError(f"{path}: write JSON Lines, an object a line, and name the file .jsonl")


_READERS: Final[dict[str, Callable[[Path, Sequence[str]], Iterator[Row] | list[Row]]]] = {
    ".jsonl": _json_rows,
    ".json": _no_json,
    ".csv": _csv_rows,
    ".parquet": _one_parquet_file,
}


def _folder_rows(folder: Path, columns: Sequence[str]) -> list[Row]:
    """Return the rows of a Hugging Face dataset, or of a folder of Parquet files."""
    if (folder / "state.json").is_file():
        return _saved_rows(folder, columns)
    if (folder / "dataset_dict.json").is_file():
        splits = sorted(state.parent.name for state in folder.glob("*/state.json"))
        raise ConfigError(
            f"{folder} holds the splits {', '.join(splits)}; give one, as in {folder / splits[0]}"
        )
    files = sorted(folder.glob("*.parquet"))
    splits = sorted({found[1] for file in files if (found := _SHARD.fullmatch(file.name))})
    if len(splits) > 1:
        raise ConfigError(
            f"{folder} holds the splits {', '.join(splits)}; give one, as in "
            f"{folder / splits[0]}-*.parquet"
        )
    return _parquet_rows(files, columns, str(folder))


def _saved_rows(folder: Path, columns: Sequence[str]) -> list[Row]:
    """Return the rows of what ``save_to_disk`` wrote: Arrow IPC streams, listed in state.json."""
    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        files = [folder / entry["filename"] for entry in state["_data_files"]]
        tables = [_stream(file) for file in files]
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise ConfigError(f"cannot read the dataset folder {folder}: {error}") from error
    if state.get("_indices_data_files"):
        raise ConfigError(f"{folder} was saved with a selection of its rows; flatten_indices() it")
    return [row for table in tables for row in _table_rows(table, columns, str(folder))]


def _stream(path: Path) -> pa.Table:
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_stream(source).read_all()


def _parquet_rows(files: Sequence[Path], columns: Sequence[str], name: str) -> list[Row]:
    if not files:
        raise ConfigError(f"cannot read the prompt file {name}: no Parquet files are there")
    rows: list[Row] = []
    for file in files:
        try:
            names = pq.read_schema(file).names
            table = pq.read_table(file, columns=[n for n in columns if n in names])
        except (OSError, pa.ArrowException) as error:
            raise ConfigError(f"cannot read the prompt file {file}: {error}") from error
        _require(columns, names, file)
        rows += _table_rows(table, columns, str(file))
    return rows


def _table_rows(table: pa.Table, columns: Sequence[str], name: str) -> list[Row]:
    _require(columns, table.column_names, name)
    listed = table.select(list(columns)).to_pylist()
    return [Row(f"{name} row {number}", values) for number, values in enumerate(listed, 1)]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the prompt file {path}: {error}") from error


def _require(columns: Sequence[str], found: Sequence[str], path: Path | str) -> None:
    for name in columns:
        if name not in found:
            raise ConfigError(
                f"{path} has no column {name!r}, which the config's [prompts] names; it has "
                f"{', '.join(found)}"
            )
