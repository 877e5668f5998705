"""The run's data set of spans, and the table of its devices.

One Parquet file per iteration, one row per span. Any reader takes the folder as one table, as with
:mod:`digen_core.transport.samples`. The devices lie beside the folder, in a file of their own.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

from digen_core.control.protocol import Device
from digen_core.records import Span
from digen_core.transport.parquet import read_whole, write_whole

SPANS_OF_RUN: Final = "spans"
"""Folder of the data set in a run's folder."""
DEVICES_OF_RUN: Final = "devices.parquet"

SCHEMA: Final = pa.schema(
    [
        pa.field("iteration", pa.int32(), nullable=False),
        pa.field("task", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("device", pa.string(), nullable=False),
        pa.field("queued", pa.float64(), nullable=False),
        pa.field("started", pa.float64(), nullable=False),
        pa.field("ended", pa.float64(), nullable=False),
        pa.field("group", pa.int32(), nullable=False),
        pa.field("fragment", pa.int32(), nullable=False),
        pa.field("first_step", pa.int32(), nullable=False),
        pa.field("end_step", pa.int32(), nullable=False),
        pa.field("version", pa.int32(), nullable=False),
        pa.field("num_items", pa.int64(), nullable=False),
        pa.field("cost", pa.float64(), nullable=False),
        pa.field("num_bytes", pa.int64(), nullable=False),
        pa.field("compile_seconds", pa.float64(), nullable=False),
        pa.field("beside", pa.list_(pa.list_(pa.int32(), 2)), nullable=False),
    ]
)
"""The fields of :class:`~digen_core.records.Span`."""

DEVICE_SCHEMA: Final = pa.schema(
    [
        pa.field("name", pa.string(), nullable=False),
        pa.field("roles", pa.list_(pa.string()), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
    ]
)


def write_spans(spans_dir: Path | str, iteration: int, spans: Sequence[Span]) -> Path:
    """Write the spans of one iteration and return the file.

    The file appears whole or not at all; a file of the same iteration is replaced.

    Args:
        spans_dir: folder of the data set; made if it is missing.
        iteration: iteration of all spans.
        spans: in any order; they are kept by their start.

    Raises:
        ValueError: a span is of another iteration.
    """
    for span in spans:
        if span.iteration != iteration:
            raise ValueError(f"{span.task} is of iteration {span.iteration}, not {iteration}.")
    path = Path(spans_dir) / f"iteration-{iteration:06d}.parquet"
    write_whole(table_of(sorted(spans, key=lambda span: span.started)), path)
    return path


def read_spans(spans_dir: Path | str) -> list[Span]:
    """Return all spans of a data set, iteration by iteration.

    Raises:
        FileNotFoundError: the folder holds no spans.
        ValueError: a file is damaged, or has other columns than a data set of spans.
    """
    paths = sorted(Path(spans_dir).glob("iteration-*.parquet"))
    if not paths:
        raise FileNotFoundError(f"no spans in {spans_dir}")
    return [span for path in paths for span in spans_of(_read(path, SCHEMA))]


def write_devices(path: Path | str, devices: Iterable[Device]) -> None:
    """Write the devices of a run; the file appears whole or not at all."""
    rows = [
        {"name": device.name, "roles": sorted(device.roles), "kind": device.kind}
        for device in devices
    ]
    write_whole(pa.Table.from_pylist(rows, schema=DEVICE_SCHEMA), Path(path))


def read_devices(path: Path | str) -> list[Device]:
    """Return the devices of a run, in the order they were written in.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is damaged, or has other columns than a table of devices.
    """
    rows = _read(Path(path), DEVICE_SCHEMA).to_pylist()
    return [Device(row["name"], frozenset(row["roles"]), row["kind"]) for row in rows]


def table_of(spans: Iterable[Span]) -> pa.Table:
    """Return spans as a table with the columns of ``SCHEMA``."""
    spans = list(spans)
    columns = {name: [getattr(span, name) for span in spans] for name in SCHEMA.names}
    return pa.table(columns, schema=SCHEMA)


def spans_of(table: pa.Table) -> list[Span]:
    """Return the spans of such a table."""
    rows = table.to_pylist()
    return [Span(**row | {"beside": tuple(map(tuple, row["beside"]))}) for row in rows]


def _read(path: Path, schema: pa.Schema) -> pa.Table:
    table = read_whole(path)
    if table.schema != schema:
        raise ValueError(f"{path} has the columns {table.schema.names}, not {schema.names}.")
    return table
