"""The folder of a run, written by hand: how far it is, whose it is, what is damaged."""

import errno
import json
import os
from pathlib import Path

import pytest

from digen_core.checkpoints.judging import Judging, judged_config
from digen_core.checkpoints.manifest import LINEAGE_OF_RUN, read_lineage
from digen_core.checkpoints.retention import evaluations_of
from digen_core.checkpoints.run_state import LOCK_OF_RUN, find_run, holder_of, runs_in, state_of
from digen_core.config.load import CONFIG_OF_RUN
from digen_core.config.run import RunConfig
from digen_core.errors import UserError
from digen_core.records import EvaluationReport, IterationRecord
from digen_core.transport.files import try_lock
from digen_core.transport.metrics import METRICS_OF_RUN, write_metrics


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "runs" / "one"
    (folder / "evaluation").mkdir(parents=True)
    config = RunConfig(num_iterations=5)
    (folder / CONFIG_OF_RUN).write_text(config.model_dump_json())
    for index in range(2):
        write_metrics(folder / METRICS_OF_RUN, IterationRecord(index, index + 1, 1.5, {"a": 0.5}))
    return folder


def evaluate(folder, tag, version, reward=0.1):
    report = EvaluationReport(
        version=version, num_prompts=1, num_samples=2, rewards={"reward": reward}
    )
    (folder / "evaluation" / f"{tag}.json").write_text(report.model_dump_json())


def test_how_far_a_run_is(run):
    evaluate(run, "before", 0)
    found = state_of(run)
    assert (found.state, found.num_done, found.num_iterations) == ("stopped", 2, 5)
    assert found.last.version == 2
    assert found.evaluation.version == 0


def test_a_run_is_over_when_its_last_version_is_evaluated(run):
    evaluate(run, "after", 1)  # of an earlier end: it was resumed since
    assert state_of(run).state == "stopped"
    evaluate(run, "after", 2)
    assert state_of(run).state == "finished"


@pytest.mark.parametrize(("last", "state"), [("RUNNING", "stopped"), ("FINISHED", "finished")])
@pytest.mark.parametrize("num_iterations", [2, 5])  # of which two are done
def test_a_run_that_was_killed_when_it_was_evaluated_is_not_over(run, last, state, num_iterations):
    config = RunConfig(num_iterations=num_iterations)
    (run / CONFIG_OF_RUN).write_text(config.model_dump_json())
    evaluate(run, "after", 2)
    (run / "tracking").mkdir()
    told = [
        {"key": f"status {n}", "kind": "status", "status": s}
        for n, s in enumerate(["FINISHED", last])
    ]
    lines = [f"{json.dumps(entry)}\n" for entry in told]
    lines.append('{"key": "status 2", "kind": "status", "status": "FAILED"')  # it is being written
    (run / "tracking" / "entries.jsonl").write_text("".join(lines))
    assert state_of(run).state == state


def test_of_a_long_run_the_last_record_and_evaluation_alone_are_read(run, monkeypatch):
    for tag, version in {"before": 0, "iteration-0090": 90, "iteration-1000": 1000}.items():
        evaluate(run, tag, version)
    (run / "evaluation" / "iteration-0990.json").write_text("{")
    opened, read = [], Path.read_bytes

    def read_bytes(path):
        opened.append(path.stem)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    found = state_of(run)
    assert (found.last.iteration, found.evaluation.version) == (1, 1000)
    assert set(opened).isdisjoint({"iteration-000000", "iteration-0090", "iteration-0990"})


def test_what_was_judged_when_a_run_was_over_does_not_count(run):
    for tag in ("again-1", "geneval-1", "after", "again-2"):
        evaluate(run, tag, 2, 0.25 if tag == "after" else -1.0)
    assert state_of(run).evaluation.rewards == {"reward": 0.25}
    (run / "evaluation" / "after.json").unlink()
    assert state_of(run).evaluation is None


def test_the_last_evaluation_that_is_whole_counts(run):
    for tag, version in {"before": 0, "iteration-0002": 2, "iteration-0010": 10}.items():
        evaluate(run, tag, version)
    (run / "evaluation" / "iteration-0100.json").write_text("{")
    assert state_of(run).evaluation.version == 10


def test_damaged_files_are_left_out(run, caplog):
    evaluate(run, "before", 0)
    (run / "evaluation" / "after.json").write_text("{")
    (run / "evaluation" / "someones.json").write_text("{")
    (run / CONFIG_OF_RUN).write_text("null")
    found = state_of(run)
    assert found.num_iterations is None
    assert found.evaluation.version == 0
    assert evaluations_of(run).keys() == {"before"}
    assert "after.json is damaged and left out: Invalid JSON: EOF" in caplog.text
    assert "pydantic" not in caplog.text
    assert "someones" not in caplog.text


def test_a_run_without_metrics_has_done_nothing(run):
    for path in (run / METRICS_OF_RUN).iterdir():
        path.unlink()
    assert (state_of(run).num_done, state_of(run).last) == (0, None)


def test_who_trains_a_run(run):
    assert holder_of(run) is None
    with try_lock(run / LOCK_OF_RUN) as is_free:
        assert is_free
        (run / LOCK_OF_RUN).write_text(f"{os.getpid()} on {os.uname().nodename}")
        assert holder_of(run).pid == os.getpid()
        assert holder_of(run).is_here
        assert state_of(run).state == "running"
        (run / LOCK_OF_RUN).write_text(f"{os.getpid()} on another-machine")
        assert not holder_of(run).is_here
        (run / LOCK_OF_RUN).write_text(f"{2**22 + 1} on {os.uname().nodename}")
        assert holder_of(run) is None, "no process has that number"
        (run / LOCK_OF_RUN).write_text("nobody")
        assert holder_of(run) is None
    (run / LOCK_OF_RUN).write_text(f"{os.getpid()} on {os.uname().nodename}")
    assert holder_of(run) is None, "the file stays when its holder has let go"


def test_runs_are_found_by_folder_and_by_name(run):
    (run.parent / "no run").mkdir()
    assert runs_in(run.parent) == [run]
    assert find_run("one", run.parent) == run
    assert find_run(str(run), run.parent) == run
    with pytest.raises(UserError, match="two"):
        find_run("two", run.parent)
    with pytest.raises(UserError, match="cannot read"):
        runs_in(run.parent / "absent")


def test_runs_that_one_may_not_look_into_are_left_out(run, monkeypatch):
    theirs, is_file = run.parent / "theirs-1", Path.is_file
    theirs.mkdir()

    def may_not(path):
        if path.parent == theirs:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", may_not)
    assert runs_in(run.parent) == [run]


def test_the_older_run_is_first(run):
    later = run.parent / "a later one"
    (later / "tracking").mkdir(parents=True)
    (later / CONFIG_OF_RUN).write_text("{}")
    begun = later / "tracking" / "run.json"
    begun.write_text("{}")
    os.utime(begun, (2e9, 2e9))
    assert runs_in(run.parent) == [run, later]
    os.utime(begun, (1e9, 1e9))
    assert runs_in(run.parent) == [later, run]


@pytest.mark.parametrize(
    ("name", "began"),
    [
        ("a-20260102-030405", "2026-01-02 03:04:05"),
        ("a-20260102-030405-2", "2026-01-02 03:04:05"),
        ("a-20261302-030405", "2033-05-18"),  # no such month
        ("a", "2033-05-18"),
    ],
)
def test_when_a_run_began_its_name_says(run, name, began):
    """Whatever has copied its folder, resumed it or evaluated it since."""
    folder = run.rename(run.with_name(name))
    os.utime(folder / CONFIG_OF_RUN, (2e9, 2e9))
    assert str(state_of(folder).began).startswith(began)


def test_where_a_run_comes_from(run):
    assert read_lineage(run) is None
    (run / LINEAGE_OF_RUN).write_text(json.dumps({"unknown": 1}))
    with pytest.raises(UserError, match=r"cannot read .*lineage\.json"):
        read_lineage(run)
    (run / LINEAGE_OF_RUN).write_text("{")
    with pytest.raises(UserError, match=r"lineage\.json"):
        read_lineage(run)


def test_a_run_without_a_version_cannot_be_evaluated(run):
    with pytest.raises(UserError, match="holds no trained version yet"):
        judged_config(run, Judging(samples_per_prompt=4))
