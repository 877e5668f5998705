"""Checking a printed command as far as it can be without servers, by the real parser and checks.

What a command of ``digen`` does when all its checks have passed is replaced by `Reached`.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
import yaml
from cyclopts import CycloptsError, MissingArgumentError

from deployments.cli import run
from digen_core.checkpoints.manifest import Lineage
from digen_core.config.load import load_config
from digen_core.config.run import RunConfig
from digen_core.data.prompts import evaluation_prompts, prompts_hash, train_prompts
from digen_core.worlds.shapes import train_prompts as prompts_of_shapes
from support.cli_commands import COMMANDS
from support.pages import Printed, parts_of
from support.paths import ROOT

PREFECT_YAML = ROOT / "deployments" / "prefect.yaml"
SAMPLES = {
    "ADDRESS": "tcp://10.0.0.1:8786",
    "CONFIG": "shapes",
    "DIR": "new-folder",
    "FAMILY": "wan",
    "FILE": "deployments/prefect.yaml",
    "FOLDER": "new-folder",
    "ID": "00000000-0000-0000-0000-000000000000",
    "ITERATION": "3",
    "NAME": "B",
    "RUN": "runs/NAME",
    "SCENARIO": "B",
}
"""What stands for the words in capitals that stand for something of the reader's."""

_PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nG"
    "P4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
)
_PAIRS = [
    {"prompt": text, "chosen": _PIXEL, "rejected": _PIXEL} for text in prompts_of_shapes()[:24]
]
DOWNLOADED = {
    "pairs.jsonl": "\n".join(map(json.dumps, _PAIRS)),
    "HPS_v2.1_compressed.pt": "",
    "DrawBench.csv": "Prompts,Category\nA red car,Colors\n",
    "compbench.jsonl": '{"category": "color", "prompt": "a red cow", "phrases": ["a red cow"]}\n',
    "vbench.json": '[{"prompt_en": "a cow", "dimension": ["temporal_flickering"]}]',
    "ELLA/dpg_bench/dpg_bench.csv": (
        "item_id,text,proposition_id,dependency,tuple,question_natural_language\n"
        "1,a cow,1,0,entity - whole (cow),Is there a cow?\n"
    ),
    "geneval/prompts/evaluation_metadata.jsonl": (
        '{"tag": "single_object", "include": [{"class": "cow", "count": 1}], "prompt": "a cow"}\n'
    ),
}
"""Files that the reader has from somewhere else, or makes."""

PARSED_BY_PIP = """
import json, sys
from pip._internal.commands import create_command
options, targets = create_command(sys.argv[1]).parse_args(sys.argv[2:])
json.dump([options.constraints, targets], sys.stdout)
"""
"""Code for another process: newer pips cannot be imported where pytest's import hooks are."""

STARTS = (
    "deployments.bench.algorithms.main",
    "deployments.bench.compute.main",
    "deployments.bench.controller.bench_controller",
    "deployments.bench.gang.stages.bench_stages",
    "deployments.bench.gang.calls.bench_gang",
    "deployments.bench.golden.main",
    "deployments.bench.layouts.main",
    "deployments.bench.learning.main",
    "deployments.bench.overhead.main",
    "deployments.bench.packs.main",
    "deployments.bench.pictures.main",
    "deployments.bench.push.pulls.bench_push",
    "deployments.bench.recipe.main",
    "deployments.bench.runner.bench_runner",
    "deployments.bench.tracking.bench_tracking",
    "deployments.bench.utilization.main",
    "deployments.soak.main",
    "deployments.chaos.campaign.Campaign",
    "deployments.operation.cancelling.cancel_run",
    "deployments.local.pause_run",
    "deployments.local.run_evaluation",
    "deployments.operation.leaving.leave_cluster",
    "deployments.operation.up.add",
    "deployments.operation.up.down",
    "deployments.views.explain.read_log",
    "deployments.views.memory.needs_of",
    "deployments.views.plans.plan.plans_for",
    "deployments.views.pretraining.pretrain_images",
    "deployments.views.pretraining.pretrain_editor",
    "deployments.views.replay.run_nonfinite",
    "deployments.views.replay.run_replay",
    "deployments.views.report.write_report",
    "deployments.views.simulate.simulate",
    "deployments.views.size.size",
    "deployments.views.stages.beds.compare",
    "deployments.views.stages.blocks.blocks",
    "digen_core.checkpoints.adapter.read_adapter",
    "digen_core.rewards.clip.open_clip.convert_checkpoint",
    "tasks.tracking.history.read_run",
    "tasks.tracking.sync.send_rest",
    "tasks.worker.process.run_worker",
)
"""Where the work of commands begins: a command that gets there has been checked."""


class Reached(BaseException):
    """The command has passed its checks and would begin."""


def _ones(reward: object, samples: Sequence[object], *asked: object) -> dict[str, torch.Tensor]:
    """Stand for what a scorer elsewhere answers."""
    return {"score": torch.ones(len(samples))}


class Reader:
    """Somebody who types the commands of a page, one after the other, in one folder."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        self._capfd = capfd
        for name in ("deployments", "constraints.txt", "pyproject.toml", "Dockerfile"):
            (folder / name).symlink_to(ROOT / name)
        for name, content in DOWNLOADED.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content)
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.setenv("HOME", str(folder))  # --install-completion writes there
        monkeypatch.setenv("SHELL", "/bin/bash")
        monkeypatch.setenv("HF_TOKEN", "that of somebody who is logged in")
        for name in ("DASK_SCHEDULER_ADDRESS", "MLFLOW_TRACKING_URI"):
            monkeypatch.delenv(name, raising=False)
        for place in STARTS:
            monkeypatch.setattr(place, _reached)
        monkeypatch.setattr("deployments.local.run_training", _train)
        monkeypatch.setattr("deployments.operation.up.up", _up)
        # Hubs, servers and scorers are elsewhere.
        # So may be libraries that only some have.
        monkeypatch.setattr("digen_core.preflight.run.find_spec", lambda name: name)
        monkeypatch.setattr("digen_core.preflight.hub.check_available", lambda *arguments: None)
        monkeypatch.setattr("digen_core.preflight.network.check_server", lambda label, url: None)
        for name in ("remote.Remote", "judge.judge.Judge"):
            monkeypatch.setattr(f"digen_core.rewards.{name}.__call__", _ones)

    def type(self, command: Printed) -> None:
        """Check a command line, with all that stands between ``;``, ``|`` and ``>``."""
        out = ""
        for words in parts_of(command.text):
            if words[:1] == [">"]:
                (target,) = words[1:]
                Path(target).parent.mkdir(parents=True, exist_ok=True)
                Path(target).write_text(out)
                continue
            words = words[1:] if set(words[0]) <= set(";|&") else words
            out = self._check(words, command) if words else out

    def _check(self, words: list[str], command: Printed) -> str:
        while re.fullmatch(r"[A-Z_]+=.*", words[0]):
            assert Path(words[0].partition("=")[2]).exists(), f"{words[0]} is no place"
            words = words[1:]
        name = words[0].removeprefix(".venv/bin/")
        check: Callable[..., str | None] | None = getattr(self, f"_{name.replace('-', '_')}", None)
        assert check, f"nothing checks {name}: add a method for it to {Path(__file__).name}"
        return check([*words[1:]], command) or ""

    def _digen(self, words: list[str], command: Printed) -> str:
        words = [SAMPLES.get(word, word) for word in words]
        path = next((name for name in COMMANDS if words[: name.count(" ") + 1] == name.split()), "")
        if command.is_mention and _is_only_named(path, words):
            return ""
        for word in words:
            is_run = word.startswith("runs/") and path.split()[:1] != ["make-tiny"]
            if is_run and not Path(word).exists() and "--out" not in words:
                leave_run(load_config(ROOT / "deployments/configs/shapes.toml"), Path(word))
        code, out, err = self._run(words)
        refusals = re.findall(r"digen: .*", command.answer)
        if refusals:
            assert code != 0
            assert _like(refusals[0], err), err
        else:
            assert code in (0, None), err
        return out

    def _run(self, words: list[str]) -> tuple[int | None, str, str]:
        self._capfd.readouterr()
        code = None
        with suppress(Reached):
            code = run(words)
        out, err = self._capfd.readouterr()
        if words == ["status"]:
            code = 0  # nothing is up, and it says so
        return code, out, " ".join(err.split())

    def _make(self, words: list[str], command: Printed) -> None:
        makefile = (ROOT / "Makefile").read_text()
        for word in words:
            variable, equals, value = word.partition("=")
            if not equals:
                assert re.search(rf"^{word}:.*## ", makefile, re.MULTILINE), f"no target {word}"
            elif variable == "ARGS":
                self._digen(["train", "shapes", *parts_of(value)[0]], command)
            else:
                assert re.search(rf"\b{variable}\b", makefile), f"no variable {variable}"

    def _prefect(self, words: list[str], command: Printed) -> None:
        from prefect.cli._app import _app

        words = [SAMPLES.get(word, word) for word in words]
        if "--no-prompt" in words:  # of the program, not of a command
            words.remove("--no-prompt")
        try:
            _, bound, _ = _app.parse_args(words, exit_on_error=False, print_error=False)
        except MissingArgumentError:
            assert command.is_mention
            return
        if words[:2] == ["deployment", "run"]:
            _check_deployment(bound.arguments, command.answer)

    def _mlflow(self, words: list[str], command: Printed) -> None:
        from mlflow.cli import cli

        with cli.make_context("mlflow", list(words)) as context:
            name, found, rest = cli.resolve_command(context, words)
            assert found is not None
            found.make_context(name, list(rest), parent=context)

    def _dask(self, words: list[str], command: Printed) -> None:
        from distributed.cli.dask_worker import main

        assert words.pop(0) == "worker"
        main.make_context("worker", [word for word in words if word != "..."])

    _python3 = lambda self, words, command: self._python(words, command)  # noqa: E731

    def _python(self, words: list[str], command: Printed) -> None:
        option, *rest = words
        if option == "-m":
            assert find_spec(rest[0]), f"there is no module {rest[0]}"
            return
        code = rest[0] if option == "-c" else Path(option).read_text()
        compile(code, option, "exec")

    def _pip(self, words: list[str], command: Printed) -> None:
        if words == ["freeze"]:
            return
        said = subprocess.check_output([sys.executable, "-c", PARSED_BY_PIP, *words], text=True)
        constraints, targets = json.loads(said)
        for name in constraints:
            assert Path(name).is_file(), name
        own = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        for target in targets:
            if extra := re.fullmatch(r"(?:\.|digen)\[(\w+)\]", target):
                assert extra[1] in own["optional-dependencies"]

    def _uv(self, words: list[str], command: Printed) -> None:
        if words[0] == "pip":
            self._pip(words[1:], command)
        else:
            assert words == ["venv", "--python", "3.12"]

    def _docker(self, words: list[str], command: Printed) -> None:
        if words[0] == "build":
            assert words[1:] == ["-t", "digen", "."]
            _check_dockerfile()
        else:  # docker run OPTIONS digen COMMAND
            assert words[0] == "run"
            image = words.index("digen")
            self._check(words[image + 1 :], command)

    def _source(self, words: list[str], command: Printed) -> None:
        assert words in ([".venv/bin/activate"], ["runs/up/env"])

    def _set(self, words: list[str], command: Printed) -> None:
        assert words in (["-a"], ["+a"])

    def __getattr__(self, name: str) -> Any:
        if name == "_.":  # the shell's word for source
            return self._source
        if name in {
            "_apt_get",
            "_bash",
            "_hf",
            "_ssh",
            "_tensorboard",
            "_wandb",
        }:  # not digen's business
            return lambda words, command: None
        raise AttributeError(name)


def leave_run(config: RunConfig, folder: Path) -> None:
    """Leave a folder as a run of a config leaves it, as far as checks look at it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(config.model_dump_json())
    lineage = Lineage(
        run_id=folder.name,
        mlflow_run_id="0",
        flow_run_ids=(SAMPLES["ID"],),
        prompts_hash=prompts_hash(train_prompts(config)),
        evaluation_prompts_hash=prompts_hash(evaluation_prompts(config)),
    )
    (folder / "lineage.json").write_text(lineage.model_dump_json())


def _reached(*arguments: object, **settings: object) -> NoReturn:
    raise Reached


def _train(config: RunConfig, resume: Path | None = None) -> NoReturn:
    """Stand for the training of a config: it leaves the run of which a page goes on to speak."""
    leave_run(config, resume or Path("runs/NAME"))
    raise Reached


def _up(options: Any, say: object) -> NoReturn:
    """Stand for what ``digen up`` starts; the files that it takes are looked at."""
    from deployments.shipped import find_cluster

    assert find_cluster(options.cluster)
    assert yaml.safe_load(Path(options.deployments).read_text())["deployments"]
    raise Reached


def _is_only_named(path: str, words: list[str]) -> bool:
    """Say whether prose names a command, perhaps with some options and without what it needs."""
    if path and words == path.split():
        return True
    if not path:
        return any(name.startswith(" ".join(words) + " ") for name in COMMANDS)
    from deployments.cli import app

    try:
        app.parse_args(words, exit_on_error=False, print_error=False)
    except MissingArgumentError:
        return True
    except CycloptsError as error:
        pytest.fail(str(error))
    return False


def _like(printed: str, said: str) -> bool:
    """Compare an answer with what was said; ``...`` stands for what is left out."""
    parts = [re.escape(part.strip()) for part in printed.split("...")]
    return re.search(r".*".join(parts), said) is not None


def _check_deployment(arguments: dict[str, Any], answer: str) -> None:
    """Check that a deployment is there, and takes the parameters, or refuses them as is printed."""
    from prefect.flows import load_flow_from_entrypoint
    from prefect.utilities.callables import parameter_schema
    from prefect.utilities.schema_tools.validation import ValidationError, validate

    from digen_core.config.load import config_of_tree
    from digen_core.config.merge import merge_configs

    deployed = {}
    for tree in yaml.safe_load(PREFECT_YAML.read_text())["deployments"]:
        flow: Any = load_flow_from_entrypoint(tree["entrypoint"], use_placeholder_flow=False)
        deployed[f"{flow.name}/{tree['name']}"] = flow, tree["parameters"]
    flow, parameters = deployed[arguments["name"]]
    given = {}
    for pair in arguments.get("params") or []:
        name, _, value = pair.partition("=")
        given[name] = json.loads(value) if value[:1] in "{[" else value
    schema = parameter_schema(flow).model_dump_for_openapi()
    refused = ""
    try:
        validate({**parameters, **given}, schema, raise_on_error=True)
    except ValidationError as error:
        refused = " ".join(str(error).split())
    assert answer.removeprefix("Error creating flow run: ") == refused
    if refused:
        return
    if "config" in given:
        config_of_tree(merge_configs(parameters["config"], given["config"]), "the page")


def _check_dockerfile() -> None:
    lines = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    kept = (ROOT / ".dockerignore").read_text().split()
    for words in (line.split() for line in lines):
        for source in words[1:-1] if words[:1] == ["COPY"] else []:
            assert (ROOT / source).exists()
            assert f"!{source}" in kept, f"{source} is left out by .dockerignore"
    assert os.access(ROOT / "Dockerfile", os.R_OK)
