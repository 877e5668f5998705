"""'digen init', 'recipes', 'ls' and 'cancel', and what words of other programs are answered."""

import json
import os
import shlex
import subprocess
import sys
import tomllib

import pytest

from deployments.cli import OTHER_WORDS, app, run
from deployments.levels import LEGEND, level_of
from deployments.shipped import recipe_files, shipped_configs
from deployments.views.run_list import first_sentence
from digen_core.checkpoints.run_state import holder_of, state_of
from digen_core.config.keys import OTHER_NAMES, known_keys
from digen_core.config.load import load_config
from digen_core.config.run import RunConfig
from digen_core.preflight.run import check_inputs
from digen_core.records import EvaluationReport, IterationRecord
from digen_core.transport.metrics import write_metrics
from flows.reopen import locked
from support.small_disk import small_disk


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_config_is_written_that_a_run_takes(here, capsys):
    assert run(["init", "mine.toml", "--model", "digen:models/shapes", "--gpus", "0"]) == 0
    out = capsys.readouterr().out
    assert "digen train mine.toml" in out
    config = load_config(here / "mine.toml")
    check_inputs(config)
    assert (config.name, config.reward_weights) == ("mine", {"shapes": 1.0})
    assert config.prompts.evaluation == "digen:prompts/shapes_evaluation.txt"
    assert config.train.lora is not None
    assert run(["config", "show", "mine.toml"]) == 0
    assert load_config(here / "mine.toml") == config


def test_a_single_gpu_holds_one_model(here, capsys):
    assert run(["init", "mine.toml", "--model", "digen:models/shapes", "--gpus", "1"]) == 0
    config = load_config(here / "mine.toml")
    assert (config.cluster.rollout_workers, config.cluster.trainer_workers) == (1, 0)
    check_inputs(config)


@pytest.mark.parametrize(
    ("file", "name"), [("my run é.toml", "my-run"), ("_v1.5.toml", "v1.5"), ("é.toml", "run")]
)
def test_a_config_of_any_name_gives_its_runs_one_that_they_may_have(here, file, name, capsys):
    assert run(["init", file, "--gpus", "0"]) == 0
    assert load_config(here / file).name == name


def test_samples_are_as_large_as_is_said(here, capsys):
    assert run(["make-tiny", "wan", "tiny"]) == 0
    (here / "prompts.txt").write_text("\n".join(f"a cat {n}" for n in range(40)))
    model = ["--model", "tiny", "--family", "wan", "--prompts", "prompts.txt"]
    more = ["--reward", "jpeg_compressibility", "--gpus", "0", "--size"]
    assert run(["init", "own.toml", *model, *more, "48x32x9"]) == 0
    assert load_config(here / "own.toml").model.size == (48, 32, 9)
    assert run(["init", "image.toml", *model, *more, "48x33"]) == 2
    assert "model.width" in capsys.readouterr().err
    assert not (here / "image.toml").exists()


def test_commands_to_copy_quote_names_with_blanks(here, capsys):
    """Run as they are printed, they find the file."""
    (here / "my runs").mkdir()
    arguments = ["--model", "digen:models/shapes", "--gpus", "0"]
    assert run(["init", "my runs/mine.toml", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    printed = [shlex.split(line[line.index("digen ") :]) for line in lines if "digen " in line]
    assert [own[-1] for own in printed] == ["my runs/mine.toml"] * 2
    assert run(printed[0][1:]) == 0


def test_prompts_of_your_own_keep_a_part_for_evaluations_and_gpus_get_a_cluster(here, capsys):
    (here / "prompts.txt").write_text("\n".join(f"a red circle {n}" for n in range(40)))
    arguments = ["--model", "digen:models/shapes", "--prompts", "prompts.txt"]
    rewards = ["--reward", "jpeg_compressibility", "--reward", "clip_score:score"]
    (here / "clip_score.py").write_text(
        "def score(images, prompts):\n    return [0.0] * len(images)\n"
    )
    sys.path.insert(0, str(here))
    try:
        assert run(["init", "own.toml", *arguments, *rewards, "--gpus", "4"]) == 0
    finally:
        sys.path.remove(str(here))
    tree = tomllib.loads((here / "own.toml").read_text())
    assert tree["prompts"] == {"train": "prompts.txt", "evaluation_fraction": 0.1}
    assert list(tree["rewards"]) == ["jpeg_compressibility", "clip_score:score"]
    assert tree["schedule"]["layout"] == "auto"
    capsys.readouterr()
    assert run(["cluster", "show", "own-cluster.toml"]) == 0
    assert "gpu" in capsys.readouterr().out


@pytest.mark.parametrize("gpus", ["1", "2"])
def test_what_init_says_to_start_with_can_be_started(here, gpus, capsys):
    assert run(["init", "mine.toml", "--model", "digen:models/shapes", "--gpus", gpus]) == 0
    told = [line.split() for line in capsys.readouterr().out.splitlines()]
    clusters = [words[-1] for words in told if "up" in words]
    assert clusters == ([] if gpus == "1" else ["mine-cluster.toml"])
    assert all(run(["cluster", "show", cluster]) == 0 for cluster in clusters)
    assert (["train", "digen", "train", "mine.toml"] in told) == (gpus == "1")
    assert [path.name for path in sorted(here.glob("*.toml"))] == [*clusters, "mine.toml"]


def test_on_a_full_disk_no_half_config_is_left(here, capsys):
    with small_disk(100):
        assert run(["init"]) == 2
    err = capsys.readouterr().err
    assert (err.count("\n"), "cannot write mine.toml: File too large" in err) == (1, True)
    assert not (here / "mine.toml").exists()
    assert run(["init"]) == 0


def test_on_a_full_disk_no_half_pipeline_is_left(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty"):
        with small_disk(20_000):
            assert run(["make-tiny", "flux", str(tmp_path / name)]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert f"cannot write {tmp_path / name}: " in err
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
    assert not list((tmp_path / "empty").iterdir())


@pytest.mark.parametrize("arguments", [["make-tiny", "flux"], ["convert-hps", "x.pt"]])
def test_the_folder_one_is_in_is_none_to_be_made(here, arguments, capsys):
    assert run([*arguments, "."]) == 2
    told = "digen: . is a folder that is there; give the name of one that is made\n"
    assert capsys.readouterr().err == told


def test_in_a_terminal_it_asks_what_no_option_says(here, monkeypatch, capsys):
    from rich.prompt import Prompt

    asked = []

    def answer(question, default=None):
        asked.append(question)
        return default

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(Prompt, "ask", answer)
    assert run(["init", "asked.toml", "--gpus", "0"]) == 0
    assert [question.split()[0] for question in asked] == ["Model", "File", "Reward"]
    assert load_config(here / "asked.toml").model.path == "digen:models/shapes"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["there.toml"], "there.toml is there already; name another file, or remove it"),
        (["--family", "x"], "--family is x; use one of flux, sd3, qwen_image, qwen_image21"),
        (["--gpus", "-1"], "--gpus is -1; use 0 to 16384"),
        (["--gpus", "1000000"], "--gpus is 1000000; use 0 to 16384"),
        (["--size", "512"], "--size is 512; use HEIGHTxWIDTH such as 512x512, of videos 480x832x"),
        (["--reward", "ocrr"], "did you mean ocr"),
        (["--prompts", "none.txt", "--evaluation", "x.txt"], "none.txt"),
        (["--model", "nowhere/at/all", "--prompts", "p.txt", "--reward", "ocr"], "p.txt"),
        (["--model", "somebody/model"], "There is nobody to ask here; say so by --prompts"),
    ],
)
def test_what_a_run_would_refuse_is_not_written(here, arguments, message, capsys):
    (here / "there.toml").touch()
    assert run(["init", *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert [path.name for path in here.iterdir()] == ["there.toml"]


def test_every_shipped_config_has_a_line(capsys):
    assert run(["recipes"]) == 0
    out = capsys.readouterr().out
    for name, path in shipped_configs().items():
        assert name in out
        assert len(first_sentence(path.read_text())) > 20
    assert LEGEND in out
    for recipe in recipe_files():
        line = next(line for line in out.splitlines() if line.startswith(f"{recipe.stem} "))
        assert f" {level_of(recipe)} " in line
    assert first_sentence("# FLUX.1-dev\n# again. More.\nx = 1\n") == "FLUX.1-dev again"


def leave_run(folder, num_done, rewards=(), version=None):
    """Leave what a run of four iterations leaves after some of them."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(RunConfig(num_iterations=4).model_dump_json())
    for index in range(num_done):
        metrics = {"reward/mean": 0.5, "standard_error/reward/mean": 0.125}
        write_metrics(folder / "metrics", IterationRecord(index, index + 1, 1.0, metrics))
    if rewards:
        (folder / "evaluation").mkdir()
        mean = sum(rewards) / len(rewards)
        report = EvaluationReport(
            version=num_done if version is None else version,
            num_prompts=len(rewards),
            num_samples=len(rewards),
            rewards={"reward": mean},
            by_prompt={"reward": list(rewards)},
        )
        (folder / "evaluation" / "after.json").write_text(report.model_dump_json())
    return folder


def test_runs_are_listed_with_how_far_and_good_they_are(here, capsys):
    leave_run(here / "runs" / "done-run-with-a-long-name-20260101-120000", 4, (0.0, 1.0))
    leave_run(here / "runs" / "longer", 3, (0.0, 1.0), version=2)  # it was resumed, and killed
    damaged = leave_run(here / "runs" / "damaged", 1)
    for path in (damaged / "config.json", *damaged.glob("metrics/*")):
        path.write_text("{")
    with locked(leave_run(here / "runs" / "busy", 2)):
        assert run(["ls"]) == 0
    rows = {line.split()[0]: line.split()[3:] for line in capsys.readouterr().out.splitlines()[1:]}
    long_name = "done-run-with-a-long-name-20260101-120000"
    assert " ".join(rows[long_name]) == "finished 4 of 4 0.500 ± 0.125 0.500 ± 0.500"
    assert rows["longer"][:4] == ["stopped", "3", "of", "4"]
    assert rows["busy"] == ["running", "2", "of", "4", "0.500", "±", "0.125", "-"]
    assert rows["damaged"] == ["stopped", "0", "of", "?", "-", "-"]
    assert run(["ls", "runs", "--json"]) == 0
    trees = {tree["run"]: tree for tree in json.loads(capsys.readouterr().out)}
    assert trees["longer"]["evaluation_standard_error"] == 0.5
    assert trees["busy"]["state"] == "stopped"


def test_brackets_and_colons_in_the_name_of_a_run_are_text(here, capsys):
    names = {"best [red] of", "a[", ":cat:"}
    for name in names:
        leave_run(here / "runs" / name, 1)
    assert run(["ls"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in names)


def test_a_folder_without_runs(here, capsys):
    assert run(["ls"]) == 2
    assert "there is no folder runs" in capsys.readouterr().err
    (here / "runs").mkdir()
    assert run(["ls"]) == 0
    assert "holds no runs yet" in capsys.readouterr().out


HOLD = """
import signal, sys, time
from pathlib import Path
from flows.reopen import locked
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
with locked(Path(sys.argv[1])):
    try:
        print("holds", flush=True)
        time.sleep(600)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@pytest.mark.ci
@pytest.mark.slow
# of four, after which it is evaluated and exported
@pytest.mark.parametrize("num_done", [3, pytest.param(4, marks=pytest.mark.ci)])
def test_a_run_is_cancelled_by_its_name(num_done, here, capsys):
    """The process that holds it gets what Ctrl-C sends, and the command waits for its end."""
    folder = leave_run(here / "runs" / "shapes-1", num_done)
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "holds\n"
        assert state_of(folder).state == "running"
        assert holder_of(folder).pid == process.pid
        assert run(["cancel", "shapes-1"]) == 0
        assert process.stdout.readline() == "interrupted\n"
        assert process.wait(timeout=60) == 0
    out = capsys.readouterr().out
    assert out == (
        f"shapes-1 ended after {num_done} iterations; resume it with: "
        "digen train --resume runs/shapes-1\n"
    )
    assert state_of(folder).state == "stopped"
    assert run(["cancel", "runs/shapes-1"]) == 2
    assert "runs/shapes-1 is not being trained" in capsys.readouterr().err


def test_the_lock_of_a_process_that_is_gone_holds_nothing(here):
    folder = leave_run(here / "runs" / "shapes-1", 1)
    (folder / ".lock").write_text(f"{os.getpid()} on {os.uname().nodename}")
    assert holder_of(folder) is None
    (folder / ".lock").write_text("")
    assert holder_of(folder) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["resume", "runs/x"], "there is no command resume; use: digen train --resume runs/x"),
        (["stop", "x"], "there is no command stop; use: digen cancel x"),
        (["list"], "there is no command list; use: digen ls"),
        (["train", "shapes", "--lr", "1e-4"], "unknown key lr; did you mean train.learning_rate?"),
        (["train", "shapes", "--optimizer.lr", "1"], "did you mean train.learning_rate?"),
        (["train", "shapes", "--algorithm.type", "grpo"], "did you mean 'flow_grpo'?"),
        (["train", "shapes", "--algorithm.type", "ddop"], "did you mean 'ddpo'?"),
    ],
)
def test_words_of_other_programs_get_a_hint(here, arguments, message, capsys):
    assert run(arguments) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_hints_name_what_there_is():
    assert all(key in known_keys() or key.startswith("--") for key in OTHER_NAMES.values())
    assert all(command.split()[1] in app for command in OTHER_WORDS.values())
