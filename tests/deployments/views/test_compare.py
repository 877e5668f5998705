"""What differs between two runs, from their folders and from MLflow, and 'digen sync'."""

import shutil

import pytest
from PIL import Image
from rich.console import Console

from deployments.cli import run
from deployments.views.compare import change_of, draw_curves, print_comparison
from digen_core.config.run import RunConfig
from digen_core.maths.statistics import Change, error_of
from digen_core.records import EvaluationReport, IterationRecord
from support.small_disk import small_disk
from tasks.tracking.history import RunData, read_run
from tasks.tracking.tracker import Tracker


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs, the second with a higher learning rate and an iteration more."""
    runs_dir = tmp_path_factory.mktemp("runs")
    for name, rate, count in (("slow", 1e-4, 3), ("fast", 3e-4, 4)):
        tree = {"train": {"learning_rate": rate}, "tracking": {"runs_dir": str(runs_dir)}}
        config = RunConfig.model_validate(tree)
        (runs_dir / name).mkdir()
        (runs_dir / name / "config.json").write_text(config.model_dump_json())
        tracker = Tracker.start(config, name, runs_dir / name)
        for index in range(count):
            metrics = {"reward/mean": 0.25 + index * rate, "idle/tail": 0.5}
            tracker.log_iteration(IterationRecord(index, index + 1, 1.0, metrics))
        report = EvaluationReport(
            version=count,
            num_prompts=2,
            num_samples=4,
            rewards={"reward": 1000 * rate, "shapes/score": 0.5},
            by_sample={"reward": [[1000 * rate, 0.2], [rate, 0.3]], "shapes/score": [[0.5]] * 2},
            judged_by={"reward": "both", "shapes/score": name},
            prompts_hash="both",
            sampled_as="both",
        )
        tracker.log_evaluation("after", report)
        tracker.finish("FINISHED")
    return runs_dir


def words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_a_last_value_without_a_standard_error_has_not_that_of_an_iteration_before(capsys):
    error = "standard_error/reward/mean"
    before = RunData("a", {}, {}, {"reward/mean": [(1, 0.5)], error: [(1, 0.125)]}, None)
    metrics = {"reward/mean": [(1, 0.25), (2, 0.75)], error: [(1, 0.125)]}
    after = RunData("b", {}, {}, metrics, None)  # one group had all its numbers
    assert change_of(before, after, "reward/mean") == Change(0.25, None)
    print_comparison([before, after], ["reward/mean"], Console(width=100))
    assert ["reward/mean", "0.5", "±", "0.12", "0.75", "+0.25"] in words(capsys.readouterr().out)


def test_it_shows_what_differs_and_nothing_else(runs, tmp_path, capsys):
    arguments = ["compare", str(runs / "slow"), str(runs / "fast"), "--out", str(tmp_path / "o")]
    assert run(arguments) == 0
    lines = words(capsys.readouterr().out)
    assert ["train.learning_rate", "0.0001", "0.0003"] in lines
    assert ["environment:", "nothing", "differs"] in lines
    assert ["evaluation/reward", "0.1", "0.3", "+0.2"] in lines
    assert ["reward/mean", "▁▅█", "0.2502", "▁▃▆█", "0.2509", "+0.0007"] in lines
    (title,) = (at for at, line in enumerate(lines) if line[:3] == ["wins", "of", "fast"])
    # both samples of a prompt: a win and a tie
    assert lines[title + 2] == ["evaluation/reward", "75%", "±", "0%", "100%", "±", "0%"]
    assert lines[title + 3][0] == "curves:"  # shapes is judged otherwise
    keys = [line[0] for line in lines if line]
    assert "seed" not in keys
    assert "idle/tail" not in keys
    with Image.open(tmp_path / "o" / "compare.png") as picture:
        assert picture.width > 900


def test_copies_of_a_run_are_told_apart(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(runs / "slow", tmp_path / "copies" / "slow")
    shutil.copytree(runs / "slow", tmp_path / r"a $\frac$ b")  # no formula of the picture's
    shutil.copytree(runs / "slow", tmp_path / "slow")
    assert run(["compare", "slow", "copies/slow", "--metric", "idle/tail"]) == 0
    lines = words(capsys.readouterr().out)
    assert ["slow", "copies/slow", "difference"] in lines
    assert run(["compare", "slow", r"a $\frac$ b", "--metric", "idle/tail"]) == 0


def test_a_run_that_keeps_no_environment_differs_in_no_package(runs, tmp_path, capsys):
    for name in ("slow", "fast"):
        shutil.copytree(runs / name, tmp_path / name)
    (tmp_path / "slow" / "environment.txt").unlink()
    arguments = [str(tmp_path / "slow"), str(tmp_path / "fast"), "--out", str(tmp_path / "o")]
    assert run(["compare", *arguments]) == 0
    out = capsys.readouterr().out
    assert "environment: not known of slow\n" in out
    assert "torch" not in out


@pytest.mark.parametrize("value", ["null", '"x"', "[1]", "NaN", "true", "1" + "0" * 400])
def test_what_is_no_number_is_left_out(runs, tmp_path, capsys, value):
    shutil.copytree(runs / "slow", tmp_path / "slow")
    with (tmp_path / "slow" / "tracking" / "entries.jsonl").open("a") as file:
        metrics = f'{{"reward/mean": {value}, "idle/tail": 0.25}}'
        file.write(f'{{"key": "k", "kind": "metrics", "step": 4, "metrics": {metrics}}}\n')
    own, whole = (read_run(str(folder), "") for folder in (tmp_path / "slow", runs / "slow"))
    assert own.metrics == whole.metrics


def test_values_stay_whole_in_80_columns_with_curves_above_them(capsys):
    name = "evaluation/shapes/relation"
    metrics = {
        name: [(n, 0.8119) for n in range(1, 17)],
        error_of(name): [(n, 0.025) for n in range(1, 17)],
    }
    runs = [RunData(f"run-{n}", {}, {"a": "b"}, metrics, None) for n in (1, 2)]
    print_comparison(runs, [name], Console(width=80))
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "0.8119 ± 0.025 0.8119 ± 0.025" in lines
    assert any(line.endswith("+0 ± 0.035 noise") for line in lines)
    print_comparison(runs, [name], Console(width=160))
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert any(line.endswith("0.8119 ± 0.025 +0 ± 0.035 noise") for line in lines)


def test_no_two_curves_of_many_runs_look_alike():
    runs = [
        RunData(f"run-{n}", {}, {}, {"reward/mean": [(1, 0.5), (2, n / 99)]}, None)
        for n in range(99)
    ]
    (axes, *_) = draw_curves(runs, ["reward/mean"]).axes
    looks = {(own.get_color(), own.get_linestyle(), own.get_marker()) for own in axes.lines}
    assert len(looks) == len(runs)


def test_curves_say_what_they_are_over():
    """Versions and iterations are other numbers, as with several updates an iteration."""
    names = ["evaluation/reward", "wins/evaluation/reward", "reward/mean"]
    metrics = {name: [(0, 1.0), (4, 2.0)] for name in names}
    figure = draw_curves([RunData("a", {}, {}, metrics, None)], names)
    over = [axes.get_xlabel() for axes in figure.axes]
    assert over == ["policy version", "policy version", "iteration"]


def test_curves_are_written_whole_or_not_at_all(runs, tmp_path, capsys):
    arguments = [str(runs / "slow"), str(runs / "fast"), "--out", str(tmp_path)]
    with small_disk(4096):
        assert run(["compare", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.endswith("cannot write the curves to " + f"{tmp_path}/compare.png: File too large\n")
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_runs_without_an_iteration_are_compared_by_their_configs(runs, tmp_path, capsys):
    for name, rate in (("a", 1e-4), ("b", 3e-4)):
        tree = {"train": {"learning_rate": rate}, "tracking": {"runs_dir": str(tmp_path)}}
        (tmp_path / name).mkdir()
        config = RunConfig.model_validate(tree)
        (tmp_path / name / "config.json").write_text(config.model_dump_json())
        Tracker.start(config, name, tmp_path / name).finish("FAILED")
    out = str(tmp_path / "o")
    assert run(["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--out", out]) == 0
    lines = words(capsys.readouterr().out)
    assert ["train.learning_rate", "0.0001", "0.0003"] in lines
    assert lines[-1][:3] == ["metrics:", "none", "yet;"]
    assert not (tmp_path / "o").exists()


def test_folders_and_mlflow_tell_the_same(runs):
    uri = f"sqlite:///{runs}/mlflow.db"
    for name in ("slow", "fast"):
        by_folder = read_run(str(runs / name), uri)
        by_name = read_run(name, uri)
        assert by_name == by_folder
        assert by_folder.metrics["evaluation/reward"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "slow"], "what is slow to be compared with?"),
        (["compare", "slow", "none"], "there is no run none, neither as a folder nor in MLflow"),
        (["compare", "slow", "."], ". is no run: it has no readable config.json"),
        (["compare", "slow", "fast", "--metric", "x"], "no run has a metric x; there are eval"),
        (
            ["sync", "slow", "--mlflow-uri", "sqlite:///none.db"],
            "--mlflow-uri is sqlite:///none.db, but MLflow has no file none.db; correct it",
        ),
        (["sync", "slow", "--mlflow-uri", "ftp://x"], "--mlflow-uri begins with 'ftp':, which"),
        (["sync", "nowhere"], "nowhere holds nothing for MLflow; give the folder of a run"),
    ],
)
def test_wrong_input_is_one_line(runs, arguments, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{runs}/mlflow.db")
    assert run(arguments) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_run_that_is_nowhere_leaves_nothing_behind(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert run(["compare", "slow", "fast"]) == 2
    expected = (
        "there is no run slow: no folder has that name, and MLflow has no file runs/mlflow.db"
    )
    assert expected in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_sync_says_what_it_sent(runs, capsys):
    (runs / "slow" / "tracking" / "sent.json").unlink()
    assert run(["sync", str(runs / "slow"), str(runs / "fast")]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("slow: 8 entries sent to sqlite:///")
    assert second.startswith("fast: 0 entries sent to sqlite:///")
