"""W&B and TensorBoard, beside MLflow: each point once, whatever happened before."""

import json
import multiprocessing
import os
import signal
import struct
import subprocess
import sys
import time
from importlib import import_module
from types import SimpleNamespace

import pytest
from PIL import Image

from digen_core.config.load import load_config
from digen_core.config.run import RunConfig
from digen_core.errors import ConfigError
from digen_core.preflight import run as preflight
from digen_core.records import EvaluationReport, IterationRecord
from support.imports import imported_with
from tasks.cluster.start_method import import_ahead
from tasks.tracking.also import teller as telling
from tasks.tracking.also.teller import Teller
from tasks.tracking.spool import RunOfSpool, Spool
from tasks.tracking.sync import send_rest
from tasks.tracking.tracker import Tracker

RUN = RunOfSpool(uri="http://x", experiment_id="1", mlflow_run_id="0123abcd", name="run")
CONFIG = RunConfig.model_validate({"seed": 17, "tracking": {"experiment": "a/b"}})


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("WANDB_PROJECT", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def spool(tmp_path):
    return Spool.create(tmp_path, RUN)


def add_iteration(spool, step, **metrics):
    values = metrics or {"reward/mean": step / 4, "train/kl": 0.5}
    spool.append(f"iteration {step}", "metrics", metrics=values, step=step, time=1000 * step)


def add_evaluation(spool, name, version):
    spool.append(
        f"evaluation {name}",
        "evaluation",
        evaluation=name,
        in_training=True,
        params={},
        metrics={"evaluation/reward": version / 8},
        step=version,
        time=500,
    )
    path = spool.run_dir / "grids" / f"{name}.png"
    path.parent.mkdir(exist_ok=True)
    Image.new("RGB", (6, 4), (255, 0, 0)).save(path)
    own = {"path": f"grids/{name}.png", "folder": "grids", "evaluation": name}
    spool.append(own["path"], "file", in_training=True, **own)


def tell(name, spool, status="FINISHED"):
    teller = Teller(name, CONFIG, spool)
    teller.end(status)
    assert teller.join()


def next_second():
    """Wait until W&B calls its folder otherwise."""
    time.sleep(1.1)


def scalars_of(folder):
    """Tag -> (step, value, seconds) of each point that TensorBoard shows."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    tags = found.Tags()
    points = {
        tag: [(point.step, point.value, point.wall_time) for point in found.Scalars(tag)]
        for tag in tags["scalars"]
    }
    return points, {tag: found.Images(tag) for tag in tags["images"]}, tags["tensors"]


def records_in(path):
    """The records in an offline file of W&B: LevelDB's log format behind a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, place, parts = path.read_bytes(), 7, b""
    assert b":W&B".startswith(content[:4])  # it may be just begun
    while place + 7 <= len(content):
        if 32768 - place % 32768 < 7:  # no header fits into the rest of a block
            place += 32768 - place % 32768
            continue
        length, kind = struct.unpack_from("<HB", content, place + 4)
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if place > len(content):  # it is being written
            return
        if kind in (1, 4):  # whole, or its last part
            record = Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def history_of(folder, num_rows):
    """The rows of the history in the one offline file of W&B, and the run.

    Its own process writes it, also after the run is finished there.
    """
    pytest.importorskip("wandb")
    ends = time.monotonic() + 30
    while time.monotonic() < ends:
        rows, run = [], None
        paths = list(folder.glob("wandb/offline-run-*/run-*.wandb"))
        assert len(paths) <= 1
        for record in (record for path in paths for record in records_in(path)):
            kind = record.WhichOneof("record_type")
            if kind == "history":
                items = record.history.item
                named = {"/".join(item.nested_key) or item.key: item.value_json for item in items}
                rows.append({name: json.loads(value) for name, value in named.items()})
            elif kind == "run":
                run = record.run
        if len(rows) >= num_rows and run is not None:
            break
        time.sleep(0.2)
    assert len(rows) == num_rows
    return rows, run


def test_tensorboard_gets_curves_pictures_and_config(spool):
    pytest.importorskip("tensorboard")
    add_evaluation(spool, "before", 0)
    for step in (1, 2):
        add_iteration(spool, step)
    tell("tensorboard", spool)
    points, images, texts = scalars_of(spool.run_dir / "tensorboard")
    assert points == {
        "reward/mean": [(1, 0.25, 1.0), (2, 0.5, 2.0)],
        "train/kl": [(1, 0.5, 1.0), (2, 0.5, 2.0)],
        "evaluation/reward": [(0, 0.0, 0.5)],
    }
    ((tag, (image,)),) = images.items()
    assert (tag, image.step, image.width, image.height) == ("samples/before", 0, 6, 4)
    assert texts == ["config/text_summary"]


def test_a_picture_that_is_a_later_evaluation_s_by_now_is_not_shown_at_the_step_before(spool):
    """As the grid of a run that ended, went on and ended again."""
    add_evaluation(spool, "after", 6)
    spool.append("evaluation again", "evaluation", evaluation="after-v60", in_training=True,
                 metrics={"evaluation/reward": 1.0}, step=60, time=900)  # fmt: skip
    own = {"path": "grids/after.png", "folder": "grids", "evaluation": "after-v60"}
    spool.append("grids/after.png of after-v60", "file", in_training=True, **own)
    tell("tensorboard", spool)
    points, images, _ = scalars_of(spool.run_dir / "tensorboard")
    assert [step for step, _, _ in points["evaluation/reward"]] == [6, 60]
    assert [image.step for image in images["samples/after"]] == [60]


def test_tensorboard_has_each_step_once_after_a_resume(spool):
    pytest.importorskip("tensorboard")
    folder = spool.run_dir / "tensorboard"
    for step in (1, 2):
        add_iteration(spool, step)
    tell("tensorboard", spool)
    (folder / "mine.txt").touch()
    (first,) = folder.glob("events*")
    first.write_bytes(first.read_bytes()[:-7])  # of a process that was killed
    add_iteration(spool, 3)
    tell("tensorboard", Spool.open(spool.run_dir))
    points, _, _ = scalars_of(folder)
    assert [step for step, _, _ in points["reward/mean"]] == [1, 2, 3]
    assert (folder / "mine.txt").exists()


def test_wandb_gets_curves_pictures_and_config(spool):
    pytest.importorskip("wandb")
    add_evaluation(spool, "before", 0)
    add_iteration(spool, 1)
    tell("wandb", spool)
    (evaluation, image, iteration), run = history_of(spool.run_dir, 3)
    assert (run.run_id, run.display_name, run.project) == ("0123abcd", "run", "a-b")
    assert {item.key: item.value_json for item in run.config.update}["seed"] == "17"
    own = {"evaluation/reward": 0.0, "policy_version": 0, "_step": 0, "_timestamp": 0.5}
    assert own.items() <= evaluation.items()
    assert image["_step"] == 1
    assert any(key.startswith("samples/before") for key in image)
    own = {"reward/mean": 0.25, "train/kl": 0.5, "iteration": 1, "_step": 2, "_timestamp": 1.0}
    assert own.items() <= iteration.items()


def test_the_file_of_wandb_is_made_anew_after_a_resume(spool):
    pytest.importorskip("wandb")
    add_iteration(spool, 1)
    tell("wandb", spool, "KILLED")
    next_second()
    add_iteration(spool, 2)
    tell("wandb", Spool.open(spool.run_dir))
    rows, run = history_of(spool.run_dir, 2)
    assert run.run_id == RUN.mlflow_run_id
    assert [(row["iteration"], row["_step"]) for row in rows] == [(1, 0), (2, 1)]


def test_wandb_online_says_itself_what_it_has(spool, monkeypatch):
    pytest.importorskip("wandb")
    weights_and_biases = import_module("tasks.tracking.also.weights_and_biases")
    told = []
    run = SimpleNamespace(
        offline=False,
        step=1,
        define_metric=lambda *names, **settings: None,
        log=lambda values, **at: told.append((values["iteration"], at["step"])),
        finish=lambda exit_code: told.append(exit_code),
    )
    monkeypatch.setattr(weights_and_biases.wandb, "init", lambda **settings: run)
    for step in (1, 2, 3):
        add_iteration(spool, step)
    tell("wandb", spool)
    assert told == [(2, 1), (3, 2), 0]


@pytest.mark.nightly
def test_of_wandb_that_cannot_be_reached_nothing_stays(config, tmp_path):
    away = {
        "WANDB_BASE_URL": "http://127.0.0.1:9",
        "WANDB_API_KEY": "0" * 40,
        "WANDB_MODE": "online",
    }
    with called(AWAY, str(tmp_path), **away) as process:
        assert "CommError" in process.stdout.read()
    assert not list(tmp_path.glob("wandb/*run-*"))


AWAY = """
import sys
from pathlib import Path
from digen_core.config.run import RunConfig
from tasks.tracking.also import places, weights_and_biases
from tasks.tracking.spool import RunOfSpool, Spool

run = RunOfSpool(uri="", experiment_id="1", mlflow_run_id="0123", name="run")
settings = weights_and_biases._settings().model_copy(update={"init_timeout": 3})
weights_and_biases._settings = lambda: settings
try:
    places.open_place("wandb", RunConfig(), Spool.create(Path(sys.argv[1]), run))
except Exception as error:
    print(type(error).__name__)
"""


class Recorded:
    """A place that notes what it is told, and fails when it is asked to."""

    first = 0
    failures = 0

    def __init__(self, config, spool):
        self.told = []
        if Recorded.failures:
            Recorded.failures -= 1
            raise ConnectionError("no route\nto it")
        Recorded.last = self

    def log(self, point, values):
        self.told.append((point.number, point.step, values))

    def show(self, point, name, picture):
        self.told.append((point.number, name))

    def flush(self, number):
        self.told.append(number)

    def close(self, status):
        self.told.append(status)


@pytest.fixture
def recorded(monkeypatch):
    monkeypatch.setattr(telling, "open_place", lambda name, config, spool: Recorded(config, spool))
    monkeypatch.setattr(Recorded, "failures", 0)
    monkeypatch.setattr(Recorded, "last", SimpleNamespace(told=[]), raising=False)
    return Recorded


def test_what_is_damaged_is_left_out(spool, recorded, caplog):
    add_iteration(spool, 1, **{"reward/mean": 0.5})
    spool.append("a", "metrics", metrics={"x": "y"}, step=2, time=1)
    spool.append("b", "metrics", metrics=[1], step=2, time=1)
    spool.append("c", "metrics", step=None)
    spool.append("d", "file", path="grids/d.png", in_training=True, evaluation="d")
    spool.append("e", "file", path=7)
    spool.append("f", "evaluation", in_training=True, evaluation=[], metrics={}, step=1, time=1)
    spool.append("g", "tags", tags={})
    add_evaluation(spool, "before", 0)
    (spool.run_dir / "grids" / "before.png").write_bytes(b"no picture")
    add_iteration(spool, 2, **{"reward/mean": 0.75})
    tell("wandb", spool)
    values = [{"reward/mean": 0.5}, {"reward/mean": 0.75}]
    evaluation = (8, 0, {"evaluation/reward": 0.0})
    told = [(0, 1, values[0]), evaluation, (10, 2, values[1]), 11, "FINISHED"]
    assert recorded.last.told == told
    named = [record.getMessage().split(": ")[0] for record in caplog.records]
    left_out = ("a", "b", "c", "d", "f", "grids/before.png")
    assert named == [f"wandb is not told {key}" for key in left_out]


def test_a_picture_that_leads_out_is_not_shown(spool, recorded, caplog, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "secret.png"
    outside.touch()
    add_evaluation(spool, "before", 0)
    (spool.run_dir / "grids/before.png").unlink()
    (spool.run_dir / "grids/before.png").symlink_to(outside)
    tell("wandb", spool)
    assert [told for told in recorded.last.told if told == (1, "before")] == []
    assert "leads out of" in caplog.text


def test_a_place_that_was_away_is_told_all_later(spool, recorded, caplog, monkeypatch):
    monkeypatch.setattr(telling, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(Recorded, "failures", 3)
    add_iteration(spool, 1)
    teller = Teller("wandb", CONFIG, spool)
    while not recorded.last.told:
        time.sleep(0.01)
    teller.end("FINISHED")
    assert teller.join()
    assert [told[1] for told in recorded.last.told[:1]] == [1]
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning == (
        "wandb does not take what run logs; the run goes on, and tells it later: no route"
    )


def test_a_place_that_stays_away_ends_with_a_warning(spool, recorded, caplog, monkeypatch):
    monkeypatch.setattr(Recorded, "failures", 99)
    began = time.monotonic()
    teller = Teller("wandb", CONFIG, spool)
    add_iteration(spool, 1)
    teller.end("FINISHED")
    assert not teller.join()
    assert time.monotonic() - began < 5
    assert "wandb has not taken all of run; 'digen sync" in caplog.records[-1].getMessage()


def test_a_folder_that_cannot_be_written_ends_nothing(spool, caplog):
    pytest.importorskip("tensorboard")
    (spool.run_dir / "tensorboard").touch()
    add_iteration(spool, 1)
    teller = Teller("tensorboard", CONFIG, spool)
    teller.end("FINISHED")
    assert not teller.join()
    first, last = (record.getMessage() for record in caplog.records)
    assert first.startswith("tensorboard does not take what run logs; the run goes on")
    assert "'digen sync" in last


@pytest.fixture
def config(tmp_path):
    pytest.importorskip("wandb")
    pytest.importorskip("tensorboard")
    tracking = {"runs_dir": str(tmp_path), "also": ["wandb", "tensorboard"]}
    return RunConfig.model_validate({"tracking": tracking})


def record_of(step):
    return IterationRecord(iteration=step - 1, version=step, seconds=1.0, metrics={"x": step})


def test_a_tracker_tells_all_places_and_a_resumed_one_the_rest(config, tmp_path):
    run_dir = tmp_path / "run-1"
    run_dir.mkdir()
    (run_dir / "config.json").write_text(config.model_dump_json())
    report = EvaluationReport(version=0, num_prompts=1, num_samples=1, rewards={"reward": 0.5})
    tracker = Tracker.start(config, "run-1", run_dir)
    tracker.log_evaluation("before", report)
    tracker.log_iteration(record_of(1))
    tracker.finish("KILLED")
    next_second()
    tracker = Tracker.resume(config, run_dir)
    for step in (1, 2):  # the first is logged already
        tracker.log_iteration(record_of(step))
    tracker.finish("FINISHED")
    points, _, _ = scalars_of(run_dir / "tensorboard")
    assert [(step, value) for step, value, _ in points["x"]] == [(1, 1), (2, 2)]
    assert [value for _, value, _ in points["evaluation/reward"]] == [0.5]
    rows, run = history_of(run_dir, 3)
    assert run.run_id == tracker.mlflow_run_id
    assert [row["iteration"] for row in rows if "x" in row] == [1, 2]
    # A later evaluation is a run of MLflow's own.
    again = Tracker.reopen(config, run_dir)
    again.log_evaluation("again", report)
    again.finish("FINISHED")
    assert history_of(run_dir, 3) == (rows, run)
    next_second()
    sent = send_rest(run_dir)
    assert (sent.num_left, sent.also, sent.not_yet) == (0, ("wandb", "tensorboard"), ())
    again, _ = history_of(run_dir, 3)
    assert [row["_step"] for row in again] == [row["_step"] for row in rows]


def called(code, *arguments, **variables):
    """Start Python in a process that has nothing of this one's W&B."""
    own = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}
    own |= {"PYTHONPATH": os.pathsep.join(sys.path), **variables}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=own)


KILLED = """
import sys, time
from pathlib import Path
from digen_core.config.run import RunConfig
from digen_core.records import IterationRecord
from tasks.tracking.tracker import Tracker

config = RunConfig.model_validate_json(Path(sys.argv[1], "config.json").read_text())
tracker = Tracker.start(config, "run-1", Path(sys.argv[1]))
for step in range(1, 1000):
    tracker.log_iteration(IterationRecord(step - 1, step, 1.0, {"x": step}))
    print(step, flush=True)
    time.sleep(0.05)
"""


@pytest.mark.operation
def test_a_killed_run_loses_nothing_and_tells_nothing_twice(config, tmp_path):
    run_dir = tmp_path / "run-1"
    run_dir.mkdir()
    (run_dir / "config.json").write_text(config.model_dump_json())
    with called(KILLED, str(run_dir)) as process:
        for line in process.stdout:
            if int(line) >= 60 and list(run_dir.glob("wandb/offline-run-*/*.wandb")):
                break
        process.send_signal(signal.SIGKILL)
    next_second()
    tracker = Tracker.resume(config, run_dir)
    tracker.finish("FINISHED")
    logged = [e["step"] for e in Spool.open(run_dir).read() if e["kind"] == "metrics"]
    assert len(logged) > 50
    points, _, _ = scalars_of(run_dir / "tensorboard")
    assert [step for step, _, _ in points["x"]] == logged
    rows, _ = history_of(run_dir, len(logged))
    assert [row["iteration"] for row in rows] == logged


def test_nobody_is_imported_unless_asked_for():
    """By a process that imports what a worker and a run do, or is a copy of one that has."""
    import_ahead(1)
    with multiprocessing.get_context("forkserver").Pool(1) as pool:
        found = pool.apply(imported_with, [("tasks.tracking.sync", "flows.launch")])
    assert "tasks.tracking.also.teller" in found
    assert not found & {"wandb", "tensorboard", "torch.utils.tensorboard"}


@pytest.mark.parametrize(
    ("also", "message"),
    [
        (["mlflow"], "tracking.also: must be 'wandb' or 'tensorboard' "),
        ("wandb", r"tracking.also: must be a list"),
        (["wandb", "wandb"], "tracking.also: must name each place once"),
    ],
)
def test_what_is_no_place_is_refused(also, message):
    with pytest.raises(ConfigError, match=message):
        load_config(None, {"tracking.also": also})


@pytest.mark.parametrize("name", ["wandb", "tensorboard"])
def test_a_library_that_is_missing_is_said_before_the_start(name, tmp_path, monkeypatch):
    monkeypatch.setattr(preflight, "find_spec", lambda package: None)
    config = load_config("deployments/configs/shapes.toml", {"tracking.also": [name]})
    with pytest.raises(
        ConfigError, match=rf"tracking.also names {name}, but its .* 'digen\[{name}"
    ):
        preflight.check_run(config)


CHECKED = """
import os
import wandb
from digen_core.config.run import RunConfig
from tasks.tracking.also.places import check_places

config = RunConfig.model_validate({"tracking": {"also": ["wandb"]}})
for mode in ("offline", "online", "x"):
    wandb.teardown()
    os.environ["WANDB_MODE"] = mode
    try:
        check_places(config)
        print("fine")
    except ValueError as error:
        print(error)
"""


@pytest.mark.nightly
def test_who_is_not_logged_in_is_told_before_the_start(tmp_path):
    pytest.importorskip("wandb")
    home = {"HOME": str(tmp_path), "NETRC": str(tmp_path / "netrc")}
    with called(CHECKED, **home) as process:
        fine, nobody, wrong = process.stdout.read().splitlines()
    assert fine == "fine"
    assert nobody == (
        "tracking.also names wandb, but nobody is logged in: call 'wandb login', or set "
        "WANDB_API_KEY, or WANDB_MODE=offline"
    )
    assert wrong.startswith("tracking.also names wandb, which cannot be used: ")
