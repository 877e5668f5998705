from dataclasses import fields, replace

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from digen_core.control.protocol import Device
from digen_core.records import Span
from digen_core.trace.spans import (
    DEVICE_SCHEMA,
    SCHEMA,
    read_devices,
    read_spans,
    spans_of,
    table_of,
    write_devices,
    write_spans,
)

SPAN = Span(
    iteration=0,
    task="denoise g03 f1 t05",
    kind="denoise",
    device="rollout-0",
    queued=1766000000.125,
    started=1766000000.25,
    ended=1766000001.1,
    group=3,
    fragment=1,
    first_step=5,
    end_step=6,
    version=2,
    num_items=4,
    num_bytes=5_000_000_000,
    compile_seconds=0.5,
)
DEVICES = [
    Device("rollout-0", frozenset({"rollout"}), "l4"),
    Device("both-0", frozenset({"rollout", "trainer"})),
]


def test_a_span_comes_back_as_it_was(tmp_path):
    write_spans(tmp_path, 0, [SPAN])
    assert read_spans(tmp_path) == [SPAN]
    assert spans_of(table_of([SPAN])) == [SPAN]


def test_the_schema_is_pinned(tmp_path):
    assert pq.read_schema(write_spans(tmp_path, 0, [SPAN])) == SCHEMA
    assert SCHEMA.names == [field.name for field in fields(Span)]


def test_iterations_read_as_one_data_set_in_order_of_time(tmp_path):
    late = replace(SPAN, started=1766000009.0, ended=1766000010.0)
    write_spans(tmp_path, 10, [replace(SPAN, iteration=10)])
    path = write_spans(tmp_path, 9, [replace(late, iteration=9), replace(SPAN, iteration=9)])
    assert path.name == "iteration-000009.parquet"
    assert [(s.iteration, s.started) for s in read_spans(tmp_path)] == [
        (9, 1766000000.25),
        (9, 1766000009.0),
        (10, 1766000000.25),
    ]
    assert ds.dataset(tmp_path).to_table()["iteration"].to_pylist() == [9, 9, 10]


def test_an_iteration_without_spans_is_kept_as_such(tmp_path):
    write_spans(tmp_path, 0, [])
    assert read_spans(tmp_path) == []


def test_spans_of_another_iteration_are_refused(tmp_path):
    with pytest.raises(ValueError, match="denoise g03 f1 t05 is of iteration 0, not 1"):
        write_spans(tmp_path, 1, [SPAN])


def test_a_folder_without_spans_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no spans in"):
        read_spans(tmp_path)


def test_a_file_of_other_columns_is_refused(tmp_path):
    pq.write_table(pa.table({"iteration": [0]}), tmp_path / "iteration-000000.parquet")
    with pytest.raises(ValueError, match=r"has the columns \['iteration'\], not"):
        read_spans(tmp_path)


def test_what_arrow_does_not_know_of_a_damaged_file_is_a_value_error(tmp_path, monkeypatch):
    """As an integer of 96 bits: of a bit that flips in what the file says of its columns."""

    def read_table(path):
        raise pa.ArrowNotImplementedError("Integers with more than 64 bits not implemented")

    write_spans(tmp_path, 0, [SPAN])
    write_devices(tmp_path / "devices.parquet", DEVICES)
    monkeypatch.setattr(pq, "read_table", read_table)
    with pytest.raises(ValueError, match="more than 64 bits"):
        read_spans(tmp_path)
    with pytest.raises(ValueError, match="more than 64 bits"):
        read_devices(tmp_path / "devices.parquet")


def test_devices_come_back_as_they_were(tmp_path):
    path = tmp_path / "run" / "devices.parquet"
    write_devices(path, DEVICES)
    assert read_devices(path) == DEVICES
    assert pq.read_schema(path) == DEVICE_SCHEMA
    assert [file.name for file in path.parent.iterdir()] == ["devices.parquet"]
