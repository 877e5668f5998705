"""Metrics of iterations on disk."""

from digen_core.records import IterationRecord
from digen_core.transport.metrics import last_metrics, read_metrics, write_metrics


def test_a_damaged_file_is_left_out_and_said(tmp_path, caplog):
    records = [IterationRecord(i, i + 1, 1.5, {"reward/mean": 0.25 * i}) for i in range(3)]
    for record in records:
        write_metrics(tmp_path, record)
    assert read_metrics(tmp_path) == records
    (tmp_path / "iteration-000001.json").write_text('{"iteration": 1, "version"')
    assert read_metrics(tmp_path) == [records[0], records[2]]
    (said,) = caplog.messages
    assert said == (
        f"{tmp_path / 'iteration-000001.json'} is damaged and left out: "
        "Invalid JSON: EOF while parsing an object at line 1 column 26"
    )


def test_who_asks_for_the_last_reads_no_others(tmp_path, caplog):
    assert last_metrics(tmp_path) is None
    records = [IterationRecord(i, i + 1, 1.5, {"reward/mean": 0.25 * i}) for i in range(3)]
    for record in records:
        write_metrics(tmp_path, record)
    (tmp_path / "iteration-000000.json").write_text("damaged, which would be said")
    assert last_metrics(tmp_path) == records[2]
    assert not caplog.messages
    (tmp_path / "iteration-000002.json").write_text("")
    assert last_metrics(tmp_path) == records[1]
