"""The folder of a run that a stranger made: what is done with it touches nothing outside of it."""

import json
import shutil
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from mlflow import MlflowClient

from deployments.cli import run
from digen_core.config.run import RunConfig
from digen_core.records import IterationRecord
from tasks.tracking.tracker import Tracker

SECRET = "-----BEGIN PRIVATE KEY-----"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder of all runs, with MLflow's file; beside it are files that are in no run's."""
    runs = tmp_path_factory.mktemp("project") / "runs"
    runs.mkdir()
    (runs.parent / "key").write_text(SECRET)
    (runs.parent / "keys").mkdir()
    (runs.parent / "keys" / "id").write_text(SECRET)
    return runs


@pytest.fixture
def stranger(runs, monkeypatch):
    """The folder of a run that is over."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    config = RunConfig.model_validate({"tracking": {"runs_dir": str(runs)}})
    folder = runs / f"stranger-{len(list(runs.iterdir()))}"
    folder.mkdir()
    (folder / "config.json").write_text(config.model_dump_json())
    tracker = Tracker.start(config, folder.name, folder)
    tracker.log_iteration(IterationRecord(0, 1, 1.0, {"reward/mean": 0.5}))
    tracker.finish("FINISHED")
    return folder


def tell(folder: Path, kind: str, path: str) -> None:
    """Add an entry that names a file, as whoever made the folder can."""
    model = {"name": "shapes", "tags": {"a": "b"}, "step": 1, "model_type": "x"}
    entry = {"key": path, "kind": kind, "path": path, "folder": "", **model}
    with (folder / "tracking" / "entries.jsonl").open("a") as file:
        file.write(json.dumps(entry) + "\n")


def everything_in_mlflow(runs: Path) -> str:
    """Return the content of all files that MLflow was given."""
    files = [path for path in (runs / "mlartifacts").rglob("*") if path.is_file()]
    return " ".join(path.read_text() for path in files)


def link(where: Path, target: Path) -> str:
    where.parent.mkdir(exist_ok=True)
    where.symlink_to(target)
    return where.name


OUTSIDE = {
    "an absolute path": lambda folder: str(folder.parents[1] / "key"),
    "a path that leads up": lambda folder: "../../key",
    "a path that leads up and down": lambda folder: f"../../{folder.parent.name}/../key",
    "a link": lambda folder: link(folder / "innocent.txt", folder.parents[1] / "key"),
    "a folder": lambda folder: "../../keys",
    "a link to a folder": lambda folder: link(folder / "innocent", folder.parents[1] / "keys"),
    "a folder with a link": lambda folder: (
        link(folder / "model" / "weights", folder.parents[1] / "key") and "model"
    ),
}


@pytest.mark.parametrize("kind", ["file", "model"])
@pytest.mark.parametrize("case", OUTSIDE)
def test_no_file_outside_the_folder_is_sent(case, kind, stranger, capsys):
    tell(stranger, kind, OUTSIDE[case](stranger))
    assert run(["sync", str(stranger)]) == 2
    err = capsys.readouterr().err
    assert "which is not read or written; was the folder made by somebody else?" in err
    assert err.count("\n") == 1
    assert SECRET not in everything_in_mlflow(stranger.parent)


def test_what_is_inside_is_sent(stranger, capsys):
    (stranger / "notes").mkdir()
    (stranger / "notes" / "a.txt").write_text("note 1")
    link(stranger / "notes" / "again.txt", stranger / "notes" / "a.txt")
    tell(stranger, "file", "notes")
    assert run(["sync", str(stranger)]) == 0
    assert "1 entry sent" in capsys.readouterr().out
    assert everything_in_mlflow(stranger.parent).count("note 1") == 2


@pytest.mark.parametrize("name", ["entries.jsonl", "sent.json", "aside.jsonl", "lock", ""])
def test_nothing_is_written_through_a_link(name, stranger, capsys):
    target = stranger / "tracking" / name
    if name:
        target.unlink(missing_ok=True)
        victim = stranger.parents[1] / "key"
    else:
        victim = stranger.parents[1] / f"{stranger.name}-tracking"
        shutil.move(target, victim)
    target.symlink_to(victim)
    assert run(["sync", str(stranger)]) == 2
    assert "leads out of" in capsys.readouterr().err
    assert (stranger.parents[1] / "key").read_text() == SECRET


def test_a_link_to_itself_is_told_in_one_line(stranger, capsys):
    (stranger / "events.jsonl").symlink_to("events.jsonl")
    assert run(["explain", str(stranger)]) == 2
    error = capsys.readouterr().err
    assert "has no events.jsonl" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("is_folder", [True, False])
def test_a_report_is_not_written_through_a_link(is_folder, stranger, capsys):
    victim = stranger.parents[1] / "keys"
    if is_folder:
        (stranger / "report").symlink_to(victim)
    else:
        link(stranger / "report" / "report.html", victim / "id")
    assert run(["report", str(stranger)]) == 2
    assert "leads out of" in capsys.readouterr().err
    assert (victim / "id").read_text() == SECRET


class Thief:
    """A server that pretends to be MLflow and notes what passwords it is given."""

    def __init__(self):
        self.passwords = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.passwords.append(self.headers.get("Authorization"))
                self.send_error(400)

            def do_POST(self):
                self.do_GET()

            def log_message(self, *arguments):
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def thief():
    thief = Thief()
    yield thief
    thief.server.shutdown()
    thief.server.server_close()


def rename_mlflow(folder: Path, uri: str) -> None:
    header = folder / "tracking" / "run.json"
    header.write_text(json.dumps(json.loads(header.read_text()) | {"uri": uri}))


def test_a_folder_gets_no_password_sent_to_a_server_of_its_choice(
    stranger, thief, capsys, monkeypatch
):
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "s3cret")
    rename_mlflow(stranger, thief.url)
    tell(stranger, "tags", "x")
    assert run(["sync", str(stranger)]) == 2
    err = capsys.readouterr().err
    assert f"if it is meant, say so: --mlflow-uri {thief.url}" in err
    assert not thief.passwords
    assert run(["sync", str(stranger), "--mlflow-uri", thief.url]) == 1
    assert any(thief.passwords)


def test_a_folder_cannot_have_another_database_changed(stranger, tmp_path, capsys):
    other = tmp_path / "other.db"
    rename_mlflow(stranger, f"sqlite:///{other}")
    tell(stranger, "file", "config.json")
    assert run(["sync", str(stranger)]) == 2
    assert f"--mlflow-uri sqlite:///{other}" in capsys.readouterr().err
    assert not other.exists()


def test_a_run_of_a_server_that_moved_is_sent_where_it_is_now(stranger, tmp_path, capsys):
    moved = tmp_path / "moved.db"
    shutil.copy(stranger.parent / "mlflow.db", moved)
    rename_mlflow(stranger, "http://127.0.0.1:9")
    tell(stranger, "file", "config.json")
    assert run(["sync", str(stranger), "--mlflow-uri", f"sqlite:///{moved}"]) == 0
    run_id = json.loads((stranger / "tracking" / "run.json").read_text())["mlflow_run_id"]
    artifacts = MlflowClient(f"sqlite:///{moved}").list_artifacts(run_id)
    assert "config.json" in {artifact.path for artifact in artifacts}


def test_what_a_folder_says_gives_a_terminal_no_orders(stranger, capsys):
    other = stranger.parent / "\x1b[31mother"
    shutil.copytree(stranger, other)
    config = json.loads((other / "config.json").read_text())
    config["name"] = "\x1b]0;owned\x07[bold]x[/nonsense]"
    (other / "config.json").write_text(json.dumps(config))
    assert run(["compare", str(stranger), str(other), "--out", str(stranger.parent / "c")]) == 0
    out = capsys.readouterr().out
    assert "[bold]x[/nonsense]" in out
    assert run(["ls", str(stranger.parent)]) == 0
    out += capsys.readouterr().out
    assert "\x1b" not in out
    assert "\x07" not in out
