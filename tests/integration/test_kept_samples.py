"""Prompts of a table with metadata, weights and steps; images, trajectories; replays of them."""

import json
from pathlib import Path

import numpy as np
import pyarrow.dataset as ds
import pytest
from PIL import Image

from deployments.cli import run as digen
from digen_core.checkpoints.manifest import CHECKPOINTS_OF_RUN, checkpoints_in
from digen_core.checkpoints.tensors import read_checkpoint
from digen_core.config.run import RunConfig
from digen_core.reference.replay import kept_iteration, replay_config
from digen_core.transport.samples import read_samples
from support.architecture import entries_of_a_run
from support.layout_runs import train_only
from support.runs import HELD_OUT, PROMPTS, TOLERANCE, distance, merged, reference
from tasks.replay import replay

pytestmark = pytest.mark.ci

CHANGES = {
    "model.dtype": "float64",
    "rewards": {"smooth_rewards:targeted": 1.0},
    "prompts": {
        "train": "train.jsonl",
        "column": "caption",
        "metadata_columns": ["target"],
        "weight_column": "share",
        "steps_column": "steps",
        "split_column": "part",
        "evaluation_split": "held out",
    },
    "rollout.fragment_size": 2,
    "checkpoints.keep_every": 1,
    "tracking.keep_images": "extremes",
    "tracking.keep_trajectories": 2,
    "schedule.layout": "tsp",
    "algorithm.kl_coefficient": 0.1,
    "schedule.reference": "generation",  # which a replay asks again
}


def write_table(path: Path) -> None:
    rows = [
        {
            "caption": text,
            "target": {"red": number / 10},
            "share": 1 + number % 2,
            "steps": (3, 2, None)[number % 3],
            "part": part,
        }
        for part, texts in (("train", PROMPTS), ("held out", HELD_OUT))
        for number, text in enumerate(texts)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))


@pytest.fixture(scope="module")
def trained(tiny_flux, cluster_address, prefect_backend, tmp_path_factory):
    """A run of three iterations: its config and folder. Its workers were started in another one."""
    from support.runs import tree_of

    folder = tmp_path_factory.mktemp("kept")
    write_table(folder / "train.jsonl")
    address = {"cluster.scheduler_address": cluster_address(1, 1)}
    tree = merged(tree_of(tiny_flux, folder), {**CHANGES, **address})
    tree["prompts"]["train"] = str(folder / "train.jsonl")
    tree["tracking"]["runs_dir"] = "runs"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        config = RunConfig.model_validate(tree)
        return config, train_only(config).absolute()


def test_it_equals_the_serial_loop_with_the_same_table(trained):
    config, run_dir = trained
    found = read_checkpoint(checkpoints_in(run_dir / CHECKPOINTS_OF_RUN)[-1]).weights
    assert distance(found, reference(config).weights) < TOLERANCE["float64"]


def test_its_folder_holds_what_the_page_says(trained):
    entries = {path.name for path in trained[1].iterdir()}
    assert {"images", "trajectories"} < entries <= entries_of_a_run()


def test_rows_keep_what_their_prompts_came_with(trained):
    for row in read_samples(trained[1] / "samples").to_pylist():
        assert json.loads(row["metadata"]) == {"target": {"red": PROMPTS.index(row["prompt"]) / 10}}


def test_the_best_and_the_worst_image_of_each_group_are_kept(trained):
    run_dir, named = trained[1], set()
    table = ds.dataset(run_dir / "samples").to_table().to_pandas()
    for _, group in table.groupby(["iteration", "group"]):
        kept = group[group["image"].notna()]
        assert set(kept["sample"]) == {
            group.loc[group["reward"].idxmax(), "sample"],
            group.loc[group["reward"].idxmin(), "sample"],
        }
        named |= set(kept["image"])
    files = {path.relative_to(run_dir).as_posix() for path in run_dir.glob("images/*/*")}
    assert files == named
    row = table[table["image"].notna()].iloc[0]
    pixels = np.asarray(Image.open(run_dir / row["image"])) / 255
    brightness = (pixels[..., 0] - pixels[..., 2] / 2).mean()
    target = json.loads(row["metadata"])["target"]["red"]
    assert -((brightness - target) ** 2) == pytest.approx(row["reward"], abs=0.01)


def test_the_trajectories_of_the_last_iterations_are_kept(trained):
    folders = sorted(path.name for path in (trained[1] / "trajectories").iterdir())
    assert folders == ["iteration-000001", "iteration-000002"]


@pytest.mark.parametrize("iteration", [1, 2])
def test_a_replay_makes_the_version_that_the_run_made(trained, iteration):
    run_dir = trained[1]
    kept = kept_iteration(run_dir, replay_config(run_dir, {}), iteration)
    found = replay(run_dir, kept)
    assert found.state.version == iteration + 1
    assert found.difference < TOLERANCE["float64"]
    for name, value in found.metrics.items():
        assert value == pytest.approx(kept.record.metrics[name], rel=1e-6, abs=1e-9), name


def test_a_replay_with_other_settings_is_told_apart(trained, capsys):
    run_dir = str(trained[1])
    assert digen(["replay", run_dir, "3", "--train.learning-rate", "1e-2"]) == 0
    out = capsys.readouterr().out
    # One prompt of three steps, of which two are trained, and one of two: 4 x 2 + 4 x 1.
    assert "iteration 3: version 2 trained on 12 pairs" in out
    (line,) = (line for line in out.splitlines() if "train/learning_rate" in line)
    assert ("0.001" in line, "0.01" in line) == (True, True)
    changes = {"train.learning_rate": 1e-2, "algorithm.kl_coefficient": 0.0}
    kept = kept_iteration(trained[1], replay_config(trained[1], changes), 2)
    assert replay(trained[1], kept).difference > 1e-4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "1",
            "keeps no trajectories of iteration 1, as tracking.keep_trajectories, of the newest ",
        ),
        ("7", "has finished no iteration 7; it has 1 to 3"),
        ("2 --rollout.num-steps 4", "rollout.num_steps cannot be changed in a replay"),
        ("2 --train.lora.rank 8", "train.lora.rank cannot be changed in a replay"),
        ("2 --algorithm.window [2,1,3]", "these settings train step 2, whose latents"),
        ("2 --algorithm.clip 1", "unknown key algorithm.clip"),
        ("2 x.toml", "unexpected argument 'x.toml'; it takes RUN ITERATION"),
        ("x", "Invalid value"),
    ],
)
def test_what_cannot_be_replayed_is_refused_in_one_line(trained, arguments, message, capsys):
    assert digen(["replay", str(trained[1]), *arguments.split()]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_a_version_that_cannot_be_loaded_ends_a_replay_in_one_line(trained, monkeypatch, capsys):
    """As where it is let go of before it is loaded: a replay has nowhere to pull it from."""
    from tasks import replay as replaying
    from tasks.worker.engine import engine_of

    publish = replaying.publish

    def forgetting(*arguments):
        pushed, facts = publish(*arguments)
        engine_of(replaying.REPLAY).shelf.drop(pushed.version)
        return pushed, facts

    monkeypatch.setattr(replaying, "publish", forgetting)
    assert digen(["replay", str(trained[1]), "2"]) == 1
    err = capsys.readouterr().err
    assert "version 1 could not be loaded: " in err
    assert err.count("\n") == 1


REPLAYED = {
    "clean latents and a lagging old policy": {
        "rollout.solver": "dpmpp_2m",
        "algorithm": {"type": "diffusion_nft", "old_policy_decay": "ramp", "own_levels": True},
    },
    "fewer steps, of second order, after a window": {
        "rollout.num_steps": 7,
        "rollout.solver": "dpmpp_2m",
        "algorithm": {
            "type": "mix_grpo",
            "window_size": 2,
            "iterations_per_window": 1,
            "tail_fraction": 0.5,
        },
    },
    "branches at steps of their groups": {
        "rollout.branches": 2,
        "algorithm": {"window": [1, 0, 3], "window_drawn_for": "group"},
    },
    "samples of candidates, some of which others took the place of": {
        "rollout.screening": {"candidates": 7, "num_steps": 2},
        "rollout.refill": 2,
        "rewards": {"smooth_rewards:partly_equal": 1.0},
        "algorithm.advantage_scale": "batch",  # where rows of the others would count
        "schedule.layout": "disaggregated",
    },
}


@pytest.mark.operation
@pytest.mark.parametrize("what", REPLAYED)
def test_others_are_replayed_too(what, tree, cluster_address, prefect_backend):
    changes = {
        **REPLAYED[what],
        "num_iterations": 2,
        "cluster.scheduler_address": cluster_address(1, 1),
        "tracking.keep_trajectories": "all",
        "checkpoints.keep_every": 1,
    }
    run_dir = train_only(RunConfig.model_validate(merged(tree, changes)))
    for iteration in (0, 1):  # version 0 has no checkpoint: it follows from the seed
        found = replay(run_dir, kept_iteration(run_dir, replay_config(run_dir, {}), iteration))
        assert found.difference < TOLERANCE["float64"]
