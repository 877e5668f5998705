"""A job that would run, with what runs it replaced by a stand-in."""

import json
import sys
from types import ModuleType

import pytest

import deployments
from deployments.cli import run
from digen_core.records import EvaluationReport, RunReport

CONFIG = """\
[model]
path = "model"
height = 40
width = 40
[prompts]
train = "train.txt"
evaluation = "evaluation.txt"
[rollout]
prompts_per_iteration = 2
"""
SETTINGS = {"tokenizer": "tokenizer.json", "scheduler": "scheduler_config.json"}
PARTS = ("transformer", "vae", "text_encoder", "tokenizer", "scheduler")


@pytest.fixture
def local(monkeypatch):
    """Stand in for the module that runs things; it notes what it was asked to run."""
    module = ModuleType("deployments.local")
    module.calls = []
    scores = {"shapes/score": 0.25, "reward": 0.5}
    report = EvaluationReport(version=0, num_prompts=1, num_samples=8, rewards=scores)

    def run_training(config, resume=None):
        module.calls.append(config)
        after = report.model_copy(update={"version": 2, "rewards": dict.fromkeys(scores, 0.75)})
        return RunReport(
            run_id="shapes-1",
            run_dir="runs/shapes-1",
            version=2,
            num_iterations=2,
            seconds=61.7,
            before=report,
            after=after,
            view="mlflow ui",
        )

    def run_evaluation(run_dir, asked, warn):
        module.calls.append((run_dir, asked))
        return report

    module.run_training, module.run_evaluation = run_training, run_evaluation
    monkeypatch.setitem(sys.modules, "deployments.local", module)
    monkeypatch.setattr(deployments, "local", module, raising=False)
    return module


@pytest.fixture
def job(tmp_path, monkeypatch, local):
    """A folder with a sound config and all that it names, to be spoilt by each test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "job.toml").write_text(CONFIG)
    (tmp_path / "train.txt").write_text("a red circle\n\na blue square\na green circle\n")
    (tmp_path / "evaluation.txt").write_text("two red squares\n")
    index = {"_class_name": "FluxPipeline", "image_encoder": [None, None]}
    for part in PARTS:
        (tmp_path / "model" / part).mkdir(parents=True)
        name = SETTINGS.get(part, "config.json")
        (tmp_path / "model" / part / name).write_text("{}")
        if name == "config.json":
            (tmp_path / "model" / part / "pytorch_model.bin").touch()  # nobody opens it
        index[part] = ["diffusers", "X"]
    (tmp_path / "model" / "model_index.json").write_text(json.dumps(index))
    return tmp_path


@pytest.fixture
def refused(job, local, capsys):
    """Return a function that runs a command which must be refused; it returns the line it got."""

    def refused_with(arguments):
        before = files(job)
        code = run(arguments)
        out, err = capsys.readouterr()
        assert (code, out) == (2, ""), err
        assert err.startswith("digen: ")
        assert err.count("\n") == 1
        assert files(job) == before
        assert not local.calls
        return err.removeprefix("digen: ").rstrip("\n")

    return refused_with


def files(folder):
    return {p: p.lstat().st_mtime_ns for p in folder.rglob("*") if "__pycache__" not in p.parts}
