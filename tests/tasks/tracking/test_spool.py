"""The list on disk of what MLflow has to be told."""

import multiprocessing
import os
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from digen_core.transport.entries import read_entries
from tasks.tracking.delivery import batches
from tasks.tracking.spool import RunOfSpool, Spool

RUN = RunOfSpool(uri="http://x", experiment_id="1", mlflow_run_id="r", name="run")


@pytest.fixture
def spool(tmp_path):
    return Spool.create(tmp_path, RUN)


def keys(entries) -> list[str]:
    return [entry["key"] for entry in entries]


def unsent(spool) -> list[str]:
    return [entry["key"] for entry, _ in spool.unsent()]


def test_a_key_is_told_once_also_by_another_process(spool, tmp_path):
    assert spool.append("a", "metrics", value=1)
    assert not spool.append("a", "metrics", value=2)
    again = Spool.open(tmp_path)
    assert again.run == RUN
    assert not again.append("a", "metrics", value=3)
    assert [entry["value"] for entry in again.read()] == [1]


def test_the_file_that_tells_when_a_run_began_is_written_once(spool, tmp_path):
    path = tmp_path / "tracking" / "run.json"
    os.utime(path, (1e9, 1e9))
    Spool.create(tmp_path, RUN)
    assert path.stat().st_mtime == 1e9
    Spool.create(tmp_path, RUN.model_copy(update={"uri": "http://y"}))
    assert Spool.open(tmp_path).run.uri == "http://y"


def test_what_was_acknowledged_is_not_sent_again(spool, tmp_path):
    for key in "abc":
        spool.append(key, "tags", text="ü" * 5)
    (_, first), (_, second), _ = spool.unsent()
    spool.acknowledge(2, first + second)
    assert unsent(Spool.open(tmp_path)) == ["c"]
    spool.append("d", "tags")
    assert unsent(spool) == ["c", "d"]
    assert keys(spool.read()) == ["a", "b", "c", "d"]


def test_half_a_line_of_a_killed_process_is_dropped(spool, tmp_path):
    spool.append("a", "tags")
    path = tmp_path / "tracking" / "entries.jsonl"
    path.write_text(path.read_text() + '{"key": "b", "ki')
    again = Spool.open(tmp_path)
    assert unsent(again) == ["a"]
    assert again.append("b", "tags")
    assert unsent(again) == ["a", "b"]


def test_only_one_sends_at_a_time(spool, tmp_path):
    with spool.sending() as first, Spool.open(tmp_path).sending() as second:
        assert (first, second) == (True, False)
    with spool.sending() as third:
        assert third


def _append_many(folder: Path, name: str) -> None:
    spool = Spool.open(folder)
    for number in range(50):
        spool.append(f"{name}{number}", "tags", text="x" * 500)


def test_processes_do_not_write_into_each_others_lines(spool, tmp_path):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_append_many, args=(tmp_path, name)) for name in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    found = keys(spool.read())
    assert len(found) == 150
    for name in "abc":
        assert [key for key in found if key[0] == name] == [f"{name}{i}" for i in range(50)]


def test_a_number_that_is_not_finite_is_not_written(spool):
    with pytest.raises(ValueError, match="not JSON compliant"):
        spool.append("a", "metrics", value=float("nan"))
    assert spool.read() == []


@given(st.lists(st.sampled_from(["metrics", "tags", "file"])))
def test_batches_keep_the_order_and_join_only_metrics(kinds):
    entries = [({"kind": kind, "key": str(number)}, 1) for number, kind in enumerate(kinds)]
    parts = batches(entries)
    assert [pair for part in parts for pair in part] == entries
    for part in parts:
        assert len(part) == 1 or {pair[0]["kind"] for pair in part} == {"metrics"}
    joined = [part[0][0]["kind"] for part in parts]
    assert "metrics metrics" not in " ".join(joined)


def test_what_was_set_aside_is_kept_with_the_reason(spool, tmp_path):
    for key in "ab":
        spool.set_aside({"key": key, "kind": "tags"}, "no")
    first, second = Spool.open(tmp_path).aside()
    assert first == {"key": "a", "kind": "tags", "reason": "no"}
    spool.keep_aside([second])
    assert keys(spool.aside()) == ["b"]


@pytest.mark.parametrize(
    "damaged", [b"\x00\xff\n", b"[1]\n", b'{"key": 1, "kind": "tags"}\n', b"\n"]
)
def test_damaged_lines_are_left_out_and_do_not_stop_what_follows(damaged, spool, tmp_path, caplog):
    spool.append("a", "tags")
    path = tmp_path / "tracking" / "entries.jsonl"
    path.write_bytes(path.read_bytes() + 3 * damaged)
    spool.append("b", "tags")
    again = Spool.open(tmp_path)
    assert caplog.text.count("holds damaged lines, which are left out") == 1
    assert keys(again.read()) == ["a", "b"]
    (_, first), (_, second) = again.unsent()
    assert first + second == path.stat().st_size
    again.acknowledge(2, first + second)
    assert unsent(again) == []


@pytest.mark.parametrize(
    "sent", [b"{", b'{"num_entries": 1, "num_bytes": 7}', b'{"num_bytes": 99999}']
)
def test_all_is_sent_again_if_nothing_says_how_far_it_was_sent(sent, spool, tmp_path):
    spool.append("a", "tags")
    (tmp_path / "tracking" / "sent.json").write_bytes(sent)
    assert unsent(Spool.open(tmp_path)) == ["a"]


def test_a_damaged_header_is_as_none(spool, tmp_path):
    spool.append("a", "tags")
    (tmp_path / "tracking" / "run.json").write_bytes(b'{"uri": "x"')
    assert Spool.open(tmp_path) is None
    assert keys(read_entries(tmp_path)) == ["a"]
