import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from deployments.cli import run
from deployments.overrides import config_of
from digen_core.algorithms.flow_grpo import FlowGrpo
from digen_core.config.cuts import CutConfig
from digen_core.config.keys import NAME, known_keys
from digen_core.config.load import load_config
from digen_core.config.model import AdapterConfig, ModelConfig
from digen_core.config.rewards import REWARD_TYPES
from digen_core.config.rewards.verifiers import ShapesConfig
from digen_core.config.run import RunConfig
from digen_core.config.schedule import ClusterConfig
from digen_core.config.toml import as_toml
from digen_core.config.train import LoraConfig, TrainConfig
from digen_core.errors import ConfigError
from digen_core.inputs.shipped import located
from digen_core.planning.job import workload_of
from support.paths import ROOT

COMMITTED = sorted((ROOT / "deployments" / "configs").glob("*.toml"))

REWARDS = {
    "quality": {"type": "remote", "url": "http://127.0.0.1:1/a?b=c", "token_variable": "TOKEN"},
    "pickscore": {"weight": 0.5, "on_failure": "neutral", "processor": "a/b"},
    "mine.own:Judge": {"options": {"path": "x y", "size": 8, "bias": 0.5, "flag": True}},
}
ADAPTERS = {
    "my-style": AdapterConfig(path="a/b"),
    "turbo": AdapterConfig(path="c", weight=0.5, file="d.safetensors", revision="main"),
}


def modules_after(code):
    """Names of heavy packages that a fresh process has imported after running ``code``."""
    heavy = "{'torch', 'diffusers', 'transformers', 'prefect', 'mlflow', 'distributed', 'scipy'}"
    script = f"import sys\n{code}\nsys.stdout.write('\\n' + ' '.join({heavy} & set(sys.modules)))"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.splitlines()[-1].split()


def test_configs_load_without_torch():
    assert modules_after("import digen_core.config.run, digen_core.config.load") == []


def test_plans_from_known_costs_load_no_torch():
    views = (
        "from deployments.views import simulate; from deployments.views.plans import plan, table"
    )
    assert modules_after(views) == ["scipy"]  # of the lower bounds


def test_help_and_mistakes_cost_nothing_heavy(tmp_path):
    (tmp_path / "few.txt").write_text("a red circle\n")
    config = "deployments/configs/shapes.toml"
    calls = [
        [],
        ["--help"],
        ["train", "--help"],
        ["config", "show", config],
        ["train", "missing.toml"],
        ["train", config, "--rollout.group-size", "1"],
        ["train", config, "--model.adapters.style.path", str(tmp_path / "missing")],
        ["train", config, "--prompts.train", str(tmp_path / "missing.txt")],
        ["train", config, "--prompts.train", str(tmp_path / "few.txt")],
        ["train", config, "--model.path", str(tmp_path)],
        ["train", config, "--resume", "missing"],
        ["evaluate", "missing"],
        ["trian"],
    ]
    code = f"from deployments.cli import run\ncodes = [run(call) for call in {calls!r}]\n"
    assert modules_after(code + "assert codes == [0] * 4 + [2] * 9, codes") == []


def test_there_are_committed_configs():
    assert {path.name for path in COMMITTED} >= {"shapes.toml", "shapes_smoke.toml"}


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.name)
def test_every_committed_config_loads_and_names_files_that_exist(path, tmp_path, monkeypatch):
    config = load_config(path)
    monkeypatch.chdir(tmp_path)
    made = re.findall(r"^# .*: digen (make-tiny .*)", path.read_text(), re.MULTILINE)
    for command in made:  # it says how its model is made
        assert run(command.split()) == 0
    assert Path(located(config.prompts.train)).is_file()
    assert Path(located(config.prompts.evaluation)).is_file()
    assert Path(config.model.source).is_dir()


def test_the_deployment_is_the_main_job():
    text = (ROOT / "deployments" / "prefect.yaml").read_text()
    parameters = [deployment["parameters"] for deployment in yaml.safe_load(text)["deployments"]]
    configs = [RunConfig.model_validate(own["config"]) for own in parameters if "config" in own]
    assert configs == [load_config(ROOT / "deployments" / "configs" / "shapes.toml")] * 3


def test_every_key_has_help():
    without = {key for key, field in known_keys().items() if not field.description}
    tables = {key for key in known_keys() if any(k.startswith(f"{key}.") for k in known_keys())}
    assert without - tables == {"algorithm.type"}


def test_every_option_of_a_reward_has_help():
    for kind in REWARD_TYPES.values():
        without = {name for name, field in kind.model_fields.items() if not field.description}
        assert without == {"type"}


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ({}, 24),  # one worker denoises a group at once
        ({"cluster.rollout_workers": 2}, 12),
        ({"cluster.rollout_workers": 5}, 4),  # the largest divisor up to 24 / 5
        ({"cluster.rollout_workers": 25}, 1),  # there are more workers than samples
        ({"rollout.group_size": 32}, 32),
        ({"rollout.group_size": 7, "cluster.rollout_workers": 2}, 1),
        ({"model.height": 512, "model.width": 512}, 8),  # 8 x 1024 tokens
        ({"model.height": 512, "model.width": 512, "model.num_frames": 5, "model.path": "a/b",
          "model.family": "wan"}, 4),
        ({"model.sizes": [[32, 32, 1], [1024, 1024, 1]]}, 2),  # the largest size counts
        ({"model.height": 2048, "model.width": 2048}, 1),
        ({"rollout.fragment_size": 6, "cluster.rollout_workers": 24}, 6),
    ],
)  # fmt: skip
def test_what_a_fragment_size_of_auto_comes_to(changes, size):
    config = load_config(
        ROOT / "deployments/configs/shapes.toml", {"rollout.group_size": 24, **changes}
    )
    assert config.fragment_size == size
    assert config.rollout.group_size % size == 0
    assert workload_of(config).fragment_size == size


@pytest.mark.parametrize(
    ("batch_size", "fragment_size", "fragments"),
    [(None, 8, 1), (8, 8, 1), (15, 8, 1), (16, 8, 2), (24, 2, 12)],
)
def test_a_batch_is_of_whole_fragments(batch_size, fragment_size, fragments):
    changes = {"rollout.batch_size": batch_size, "rollout.fragment_size": fragment_size}
    config = load_config(ROOT / "deployments/configs/shapes.toml", changes)
    assert config.batch_size == fragments * fragment_size
    assert workload_of(config).fragments_per_batch == fragments


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rollout.batch_size": 4}, r"4, fewer samples than a fragment has \(8\); use more, or"),
        (
            {
                "rollout.batch_size": 8,
                "prompts.sample_columns": ["a", "b", "c", "d", "e", "f", "g", "h"],
                "algorithm": {"type": "dpo"},
            },
            "names samples that are not denoised",
        ),
        ({"rollout.batch_size": 0}, "rollout.batch_size: must be greater"),
    ],
)
def test_batches_that_hold_nothing_are_refused(changes, message):
    sizes = {"rollout.fragment_size": 8, "rollout.group_size": 8}
    with pytest.raises(ConfigError, match=message):
        load_config(ROOT / "deployments/configs/shapes.toml", {**sizes, **changes})


def test_config_show_says_what_auto_comes_to(capsys):
    assert run(["config", "show", "--model.family", "wan", "--model.path", "a/b"]) == 0
    out = capsys.readouterr().out
    assert "\nheight = 240\n" in out
    assert '\nfragment_size = "auto" # now 2\n' in out
    assert '\nnum_steps = "auto" # now 50\n' in out


def test_a_mistake_in_a_table_with_defaults_of_its_own_is_told_alone():
    with pytest.raises(ConfigError, match=r"^the command line: model\.dtype: must [^:]*$"):
        config_of(["--model.dtype", "float8"])


def test_nothing_in_a_config_can_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        RunConfig().seed = 1


@pytest.mark.parametrize(
    "config",
    [
        RunConfig(),
        RunConfig(train=TrainConfig(lora=None), max_minutes=1.5),
        RunConfig(cluster=ClusterConfig(price_per_hour={"NVIDIA L40S": 0.8}), max_cost=20.0),
        RunConfig(algorithm=FlowGrpo(window=(2, 0, 4))),
        RunConfig(rewards={"my.module:fn": 0.1, "shapes": -2.0, "größe.my-own:f": 1e-30}),
        RunConfig(rewards=REWARDS),
        RunConfig(model=ModelConfig(adapters=ADAPTERS)),
        RunConfig(train=TrainConfig(lora=LoraConfig(targets=("ä\x7f",)), betas=(0.0, 0.95))),
        *(load_config(path) for path in COMMITTED),
    ],
)
def test_config_show_writes_what_load_config_reads(config, tmp_path):
    path = tmp_path / "shown.toml"
    path.write_text(as_toml(config), encoding="utf-8")
    assert load_config(path) == config


@pytest.mark.parametrize(
    ("prices", "message"),
    [({}, "max_cost is 3, but .* has no price"), ({"cpu": 0.0}, "has only 0, so it would never")],
)
def test_a_budget_without_prices_is_refused(prices, message):
    with pytest.raises(ValidationError, match=message):
        RunConfig(cluster=ClusterConfig(price_per_hour=prices), max_cost=3.0)


def test_config_show_prints_every_key_with_its_help(capsys):
    assert run(["config", "show"]) == 0
    lines = capsys.readouterr().out.splitlines()
    place = lines.index("group_size = 16")
    assert lines[place - 1] == "# " + known_keys()["rollout.group_size"].description
    names = {line.split(" = ")[0] for line in lines if " = " in line and line[0] != "#"}
    tables = {line.strip("[]").rpartition(".")[2] for line in lines if line.startswith("[")}
    options = set(ShapesConfig.model_fields) | set(FlowGrpo.model_fields)
    # tables of which a config has some
    chosen = ("algorithm.", "model.adapters.", "model.cuts.", "rollout.screening.")
    keys = {key.rpartition(".")[2] for key in known_keys() if not key.startswith(chosen)}
    assert names | tables == (keys - {NAME}) | {"shapes"} | options


def test_config_show_shows_overrides(capsys, tmp_path):
    source = str(ROOT / "deployments" / "configs" / "shapes.toml")
    cuts = '[{block = 2, backward = "int4"}]'
    options = ["--rollout.group-size", "48", "--train.lora=null", "--model.cuts", cuts]
    assert run(["config", "show", source, *options]) == 0
    path = tmp_path / "shown.toml"
    path.write_text(capsys.readouterr().out)
    shown = load_config(path)
    assert shown.rollout.group_size == 48
    assert shown.train.lora is None
    assert shown.model.cuts == (CutConfig(block=2, backward="int4"),)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ("--rollout.group-size 32", {"rollout": {"group_size": 32}}),
        ("--rollout.group_size=32", {"rollout": {"group_size": 32}}),
        ("--rollout.steps-per-task auto", {"rollout": {"steps_per_task": "auto"}}),
        ("--rollout.steps-per-task 4", {"rollout": {"steps_per_task": 4}}),
        ("--train.learning-rate 1e-5 --seed 3", {"train": {"learning_rate": 1e-5}, "seed": 3}),
        ("--seed 3 --seed 4", {"seed": 4}),
        ("--train.betas [0.5,0.6]", {"train": {"betas": (0.5, 0.6)}}),
        ("--train.lora.rank 4", {"train": {"lora": {"rank": 4}}}),
        ("--train.lora null", {"train": {"lora": None}}),
        ("--train.lora null --train.lora.rank 4", {"train": {"lora": {"rank": 4}}}),
        ("--algorithm.window [2,0,4]", {"algorithm": {"window": (2, 0, 4)}}),
        ("--algorithm.advantage-ddof 1", {"algorithm": {"advantage_ddof": 1}}),
        ("--name 8", {"name": "8"}),
        ("--model.revision 2024-01-01", {"model": {"revision": "2024-01-01"}}),
        ("--model.revision null", {"model": {"revision": None}}),
        ("--prompts.evaluation 2024-01-01", {"prompts": {"evaluation": "2024-01-01"}}),
        ("--schedule.profile 8", {"schedule": {"profile": "8"}}),
        ("--schedule.profile null", {"schedule": {"profile": None}}),
        (
            "--rewards.clipscore.processor 8",
            {"rewards": {"shapes": 1.0, "clipscore": {"processor": "8"}}},
        ),
        ("--rewards.my-mod.sub:f 0.5", {"rewards": {"shapes": 1.0, "my-mod.sub:f": 0.5}}),
        ('--rewards {"m:f"=2}', {"rewards": {"m:f": 2.0}}),
        ("--rewards.shapes.weight 2", {"rewards": {"shapes": {"weight": 2.0}}}),
        (
            "--rewards.m.n:f.on_failure neutral",
            {"rewards": {"shapes": 1.0, "m.n:f": {"on_failure": "neutral"}}},
        ),
        (
            "--rewards.m:C 2 --rewards.m:C.options.size 8",
            {"rewards": {"shapes": 1.0, "m:C": {"weight": 2.0, "options": {"size": 8}}}},
        ),
        (
            "--rewards.pickscore.path 7 --rewards.pickscore 0.5",
            {"rewards": {"shapes": 1.0, "pickscore": {"path": "7", "weight": 0.5}}},
        ),
        (
            "--rewards.clipscore.processor null",
            {"rewards": {"shapes": 1.0, "clipscore": {"processor": None}}},
        ),
    ],
)
def test_overrides_lie_over_the_defaults(tokens, expected):
    assert config_of(tokens.split()) == RunConfig.model_validate(expected)


def test_overrides_lie_over_the_file_and_may_come_before_it(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("seed = 5\n[rollout]\ngroup_size = 32\nnum_steps = 4\n")
    config = config_of(["--rollout.num-steps", "6", str(path)])
    assert (config.seed, config.rollout.group_size, config.rollout.num_steps) == (5, 32, 6)


def test_an_error_names_every_wrong_key_with_its_value(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("seed = -1\nnum_iteration = 3\n[rollout]\nsteps_per_task = 'x'\n")
    with pytest.raises(ConfigError) as error:
        load_config(path)
    assert str(error.value) == (
        f"{path}: seed: must be greater than or equal to 0 (got -1); "
        "rollout.steps_per_task: must be a valid integer, unable to parse string as an integer or "
        "must be 'auto' (got 'x'); "
        "unknown key num_iteration: did you mean num_iterations?"
    )


@pytest.mark.parametrize(
    ("key", "answer"),
    [
        ("rollout.gruop_size", "did you mean rollout.group_size?"),
        ("group_size", "did you mean rollout.group_size?"),
        ("num_steps", "rollout.num_steps or rollout.screening.num_steps or evaluation.num_steps?"),
        ("rolout.group_size", "did you mean rollout.group_size?"),
        ("train.lora.rnk", "did you mean train.lora.rank?"),
        ("xyzzy", "'digen config show' lists all keys"),
    ],
)
def test_a_typo_gets_a_suggestion(key, answer):
    with pytest.raises(ConfigError, match=f"unknown key {key}") as error:
        config_of([f"--{key}", "1"])
    assert str(error.value).endswith(answer)


@pytest.mark.parametrize(
    ("algorithm", "screening"),
    [
        ({"window": [1, 0, 7], "window_drawn_for": "group"}, None),  # noisy: one of a group
        ({}, {"candidates": 20, "num_steps": 4}),  # these have no noise
    ],
)
def test_a_solver_is_taken_where_it_takes_some_step_of_a_group(algorithm, screening):
    rollout = {"num_steps": 8, "solver": "dpmpp_2m", "screening": screening}
    config = RunConfig.model_validate({"rollout": rollout, "algorithm": algorithm})
    assert config.rollout.solver == "dpmpp_2m"


def test_the_last_cps_step_cannot_be_trained():
    with pytest.raises(ConfigError, match=r"the last cps step \(8\) is noiseless"):
        config_of(["--rollout.transition", "cps", "--algorithm.trained-fraction", "1"])
    with pytest.raises(ConfigError, match="a window with high <= 7"):
        config_of(["--rollout.transition", "cps", "--algorithm.window", "[2,0,8]"])
    config_of(["--rollout.transition", "cps", "--algorithm.window", "[2,0,7]"])
