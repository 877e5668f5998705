"""Rows of the files and folders that people keep prompts in, by what they are."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from glob import escape, glob
from itertools import chain, islice
from pathlib import Path
from re import fullmatch
from typing import Final

from digen_core.data.arrow import parquet_rows, saved_rows
from digen_core.data.published import File, Part, files_of
from digen_core.data.rows import MAX_ROWS, Row, too_large
from digen_core.data.texts import csv_rows, json_lines_rows, json_rows, text_rows, tsv_rows
from digen_core.errors import ConfigError
from digen_core.inputs.reading import listed, reason_of

_SHARD: Final = r"(.+)-\d+-of-\d+\.parquet"  # data/train-00000-of-00002.parquet


def read_rows(path: str, columns: Sequence[str], part: Part = "train") -> list[Row]:
    """Return the rows of a file or folder with at least the given columns.

    Args:
        path: of a ``.jsonl`` (or ``.ndjson``), ``.json``, ``.csv``, ``.tsv`` or ``.parquet`` file,
            of a pattern for Parquet files ("data/train-*.parquet"), of a folder of Parquet files,
            of one that ``save_to_disk`` of Hugging Face's datasets wrote, or of a published one;
            anything else is text, whose lines are the prompts.
        columns: that are needed.
        part: what they are for, which chooses among the files of a published folder.

    Raises:
        ConfigError: it cannot be read, holds no row, or lacks a column.
    """
    place = Path(path)
    if "*" in path:
        rows = _bounded(parquet_rows(_files_of_pattern(path), columns, path), path)
    elif place.is_dir():
        rows = _bounded(_folder_rows(place, columns, part), path)
    else:
        rows = _bounded(_file_rows(place, columns), path)
    if not rows:
        raise ConfigError(f"the prompt file {path} holds no prompt; write one a line")
    return rows


def _files_of_pattern(pattern: str) -> list[Path]:
    """Return the files of a pattern; in the name of a folder that is there nothing is one."""
    before = pattern.partition("*")[0]
    folder = before[: before.rfind("/") + 1]
    if Path(folder).is_dir():
        pattern = escape(folder) + pattern.removeprefix(folder)
    return [Path(name) for name in sorted(glob(pattern))]


def _bounded(rows: Iterable[Row], path: str) -> list[Row]:
    """Return rows that are not too many to be held."""
    found = list(islice(rows, MAX_ROWS + 1))
    if len(found) > MAX_ROWS:
        raise too_large(path)
    return found


def _one_parquet_file(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    return parquet_rows([path], columns, str(path))


_READERS: Final[dict[str, Callable[[Path, Sequence[str]], Iterator[Row]]]] = {
    ".jsonl": json_lines_rows,
    ".ndjson": json_lines_rows,
    ".json": json_rows,
    ".csv": csv_rows,
    ".tsv": tsv_rows,
    ".parquet": _one_parquet_file,
}


def _file_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    return _READERS.get(path.suffix.lower(), text_rows)(path, columns)


def _folder_rows(folder: Path, columns: Sequence[str], part: Part) -> Iterator[Row]:
    """Yield the rows of a Hugging Face dataset, of a published folder, or of Parquet files."""
    if (folder / "state.json").is_file():
        return saved_rows(folder, columns)
    if (folder / "dataset_dict.json").is_file():
        raise _several_splits(folder)
    names = _names_in(folder)
    tables = [name for name in names if name.endswith(".parquet")]
    files = files_of(folder, names, part)
    if files is not None and not tables:
        return chain.from_iterable(_rows_of(folder, file, columns) for file in files)
    if files is None and tables:
        return _parquet_folder_rows(folder, tables, columns)
    first = f", as in {folder / names[0]}" if names else ""
    raise ConfigError(
        f"cannot read the prompt file {folder}: it holds {listed(names, 5) or 'nothing'}, and is "
        f"no folder of prompts that is known for prompts.{part}; name a file{first}"
    )


def _several_splits(folder: Path) -> ConfigError:
    splits = sorted(state.parent.name for state in folder.glob("*/state.json"))
    if not splits:
        return ConfigError(
            f"cannot read the dataset folder {folder}: it has a dataset_dict.json, but no "
            "folder of a split; save the dataset again"
        )
    return ConfigError(
        f"{folder} holds the splits {listed(splits)}; give one, as in {folder / splits[0]}"
    )


def _names_in(folder: Path) -> list[str]:
    """Return the names in a folder but for hidden ones."""
    try:
        with os.scandir(folder) as entries:
            found = list(islice((each.name for each in entries), MAX_ROWS + 1))
    except OSError as error:
        raise ConfigError(f"cannot read the folder {folder}: {reason_of(error)}") from error
    if len(found) > MAX_ROWS:
        raise too_large(folder)
    return sorted(name for name in found if not name.startswith("."))


def _parquet_folder_rows(
    folder: Path, names: Sequence[str], columns: Sequence[str]
) -> Iterator[Row]:
    splits = sorted({found[1] for name in names if (found := fullmatch(_SHARD, name))})
    if len(splits) > 1:
        raise ConfigError(
            f"{folder} holds the splits {listed(splits)}; give one, as in "
            f"{folder / splits[0]}-*.parquet"
        )
    return parquet_rows([folder / name for name in names], columns, str(folder))


def _rows_of(folder: Path, file: File, columns: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of a file of a published folder, with the values that all of them have."""
    rows = _file_rows(folder / file.name, [name for name in columns if name not in file.values])
    if file.holds_one:
        rows = iter(_one_row(folder / file.name, list(rows)))
    for row in rows:
        yield Row(row.origin, {**row.values, **file.values})


def _one_row(path: Path, rows: list[Row]) -> list[Row]:
    if len(rows) != 1:
        raise ConfigError(
            f"{path} holds {len(rows)} lines, where a folder of such names has a prompt in each "
            "file; name one file that holds a prompt a line, or put a prompt in each"
        )
    return rows
