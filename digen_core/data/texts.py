"""Rows of text files: a prompt a line, JSON, and tables with commas or tabs."""

import csv
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, Final

from digen_core.data.published import TEXT_COLUMN, columns_of
from digen_core.data.rows import MAX_BYTES, MAX_ROWS, Row
from digen_core.errors import ConfigError
from digen_core.inputs.reading import JSON_BYTES, listed, parse_json, read_text, shown

MAX_COLUMNS: Final = 10_000

csv.field_size_limit(MAX_BYTES)  # a field may be an image

_LINE_END: Final = re.compile(r"\r\n|\r|\n")  # others may stand in a prompt: U+2028


def text_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """Yield a row for each line of a text that is not empty."""
    columns_of(columns, [TEXT_COLUMN], path)
    for number, line in enumerate(_LINE_END.split(_text(path)), 1):
        if line.strip():
            yield Row(f"{path} line {number}", {TEXT_COLUMN: line.strip()})


def json_lines_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """Yield the objects of JSON Lines."""
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
        rows.append(Row(f"{path} line {number}", values))
        if len(rows) > MAX_ROWS:
            break
    yield from _of_objects(rows, columns, path)


def json_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """Yield the items of a JSON list, which are all texts or all objects."""
    text = read_text(path, "the prompt file", JSON_BYTES)
    try:
        items = parse_json(text)
    except ValueError as error:
        raise ConfigError(
            f"{path} is not JSON: {error}; JSON Lines, an object a line, are named .jsonl"
        ) from error
    kinds = {type(item) for item in items} if isinstance(items, list) else {None}
    if not kinds <= {str} and not kinds <= {dict}:
        raise ConfigError(
            f"{path} holds {shown(items, 80)}, not a list of texts or a list of objects; write "
            "JSON Lines, an object a line, and name the file .jsonl"
        )
    rows = [Row(f"{path} item {number}", _values(item)) for number, item in enumerate(items, 1)]
    yield from _of_objects(rows, columns, path)


def csv_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of a table with commas, and texts in double quotes where they need some."""
    return _table_rows(path, columns, "CSV", {})


def tsv_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of a table with tabs, in which double quotes are letters."""
    return _table_rows(path, columns, "TSV", {"delimiter": "\t", "quoting": csv.QUOTE_NONE})


def _table_rows(
    path: Path, columns: Sequence[str], kind: str, dialect: dict[str, Any]
) -> Iterator[Row]:
    reader = csv.DictReader(StringIO(_text(path), newline=""), strict=True, **dialect)
    try:
        every = list(reader.fieldnames or [])
        names = [name for name in every if name.strip()]  # spreadsheets leave some without behind
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice or len(every) > MAX_COLUMNS:
            what = f"{listed(twice)} twice" if twice else f"more than {MAX_COLUMNS}"
            raise ConfigError(f"{path} has the columns {what}")
        yield from columns_of(columns, names, path).of(_lines(reader, path))
    except csv.Error as error:
        raise ConfigError(f"{path} line {reader.line_num} is not {kind}: {error}") from error


def _lines(reader: "csv.DictReader[str]", path: Path) -> Iterator[Row]:
    for values in reader:
        if None in values or None in values.values():
            raise ConfigError(
                f"{path} line {reader.line_num} has another number of fields than the header"
            )
        yield Row(f"{path} line {reader.line_num}", values)


def _of_objects(rows: list[Row], columns: Sequence[str], path: Path) -> Iterator[Row]:
    if not rows:
        return iter(())
    names = list({name: None for row in rows for name in row.values})
    return columns_of(columns, names, path).of(rows)


def _values(item: str | dict[str, Any]) -> dict[str, Any]:
    return {TEXT_COLUMN: item} if isinstance(item, str) else item


def _text(path: Path) -> str:
    return read_text(path, "the prompt file", MAX_BYTES)
