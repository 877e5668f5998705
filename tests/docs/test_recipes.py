"""The shipped recipes: each loads, is complete, and trains a tiny model of its family."""

from pathlib import Path

import numpy as np
import pytest

from deployments.shipped import recipe_files
from digen_core.config.load import load_config
from digen_core.config.run import RunConfig
from digen_core.data.prompts import Prompt
from digen_core.models.trainable import initial_weights, make_trainable, trainable_parameters
from digen_core.planning.model_settings import settings_folder
from digen_core.preflight.run import check_inputs
from digen_core.reference.loop import post_train_serially
from digen_core.rewards import reward_functions
from support.paths import ROOT
from support.tiny_policies import load

DOCS = ROOT / "docs/recipes.md"
FILES = {path.stem: path for path in recipe_files()}
SHRUNK = {
    "model.dtype": "float32",
    "model.height": 32,
    "model.width": 32,
    "model.max_sequence_length": 24,
    "rollout.prompts_per_iteration": 2,
    "rollout.group_size": 6,  # of 2 x 6 samples each of 2, 3 or 4 updates has as many
    "rollout.fragment_size": 6,
    "num_iterations": 1,
}


@pytest.fixture(params=FILES)
def recipe(request) -> str:
    return request.param


def shrunk(config: RunConfig, path: Path, folder: str) -> RunConfig:
    """The recipe at the size of a tiny model; algorithm, steps' structure and rewards are kept."""
    changes = {**SHRUNK, "model.path": folder}
    changes["model.num_frames"] = min(config.model.num_frames, 5)
    changes["rollout.num_steps"] = min(config.rollout.num_steps, 6)  # the longest window and tail
    if config.algorithm.type == "awm":
        changes["algorithm.num_levels"] = 3
    if config.algorithm.best_of:
        changes["algorithm.best_of"] = 2
    if config.train.lora:
        changes["train.lora.rank"] = 4
    return load_config(path, changes)


def brightness(images, prompts):
    """Stands for scorers whose models are not here."""
    return (images[:, 0] - images[:, 2] / 2).mean(dim=(1, 2))


def test_a_recipe_is_ready_to_run(recipe, monkeypatch):
    """Prompts, rewards and devices are checked as before a run, as if a hub had the rest."""
    asked = set()
    name = "digen_core.preflight.hub.check_available"
    monkeypatch.setattr(name, lambda label, repo, files, revision: asked.add(repo))
    config = load_config(FILES[recipe])
    check_inputs(config)
    assert config.model.path in asked
    assert config.name == recipe.replace("_", "-")
    assert settings_folder(config.model.path).name == Path(config.model.path).name
    assert config.train.pack_size == config.rollout.fragment_size  # one batch size, exact replay
    assert config.train.updates_per_iteration == 1 or config.train.dealt_by == "samples"


def test_a_recipe_says_where_it_is_from(recipe):
    text = FILES[recipe].read_text()
    comment = text[: text.index("\nname = ")]
    assert all(line.startswith("#") for line in comment.strip().splitlines())
    for word in ("Source: ", "arXiv:", "github ", "Published on ", "Deviations:"):
        assert word in comment


def test_a_recipe_trains_a_tiny_model_of_its_family(recipe, tiny_families):
    published = load_config(FILES[recipe])
    config = shrunk(published, FILES[recipe], tiny_families[published.model.family])
    assert config.algorithm.type == published.algorithm.type
    policy = load(config.model.path, **model_of(config))
    make_trainable(
        policy,
        config.train.lora,
        keep_reference=config.keeps_reference,
        gradient_checkpointing=config.train.gradient_checkpointing,
    )
    start = initial_weights(policy, config.train.lora, seed=config.seed)
    rewards = {
        name: reward_functions({name: reward}, policy.device)[name]
        if reward.type == "motion"
        else brightness
        for name, reward in config.rewards.items()
    }
    prompts = [Prompt("a red circle"), Prompt("a blue square")]
    run = post_train_serially(config, policy, prompts, rewards)
    (row,) = run.metrics
    assert all(np.isfinite(value) for value in row.values())
    assert row["train/grad_norm"] > 0
    assert {f"reward/{name}/score" for name in rewards} <= row.keys()
    assert all(np.isfinite(value).all() for value in run.weights.values())
    assert any((value != start[name]).any() for name, value in run.weights.items())


def model_of(config: RunConfig) -> dict:
    left_out = {"path", "device", "revision"}
    return config.model.model_dump(exclude=left_out)


def test_every_target_of_a_recipe_is_a_module(recipe, tiny_families):
    config = load_config(FILES[recipe])
    if config.train.lora is None:
        return
    policy = load(tiny_families[config.model.family], "float32", family=config.model.family)
    make_trainable(policy, config.train.lora)
    names = trainable_parameters(policy)
    for target in config.train.lora.targets:
        assert any(f".{target}.lora_A" in name for name in names), target
    assert not any("attn2.add" in name for name in names)


def test_the_table_of_recipes_is_that_of_the_files():
    lines = [line for line in DOCS.read_text().splitlines() if line.startswith("| `")]
    written = {cells[0]: cells[1:] for line in lines if (cells := line.strip("| ").split(" | "))}
    assert written == {f"`{name}`": row_of(load_config(path)) for name, path in FILES.items()}


def row_of(config: RunConfig) -> list[str]:
    """What docs/recipes.md says of a recipe."""
    model, rollout, lora = config.model, config.rollout, config.train.lora
    size = f"{model.width} x {model.height}"
    return [
        Path(model.path).name,
        config.algorithm.type,
        ", ".join(config.rewards),
        size if model.num_frames == 1 else f"{size}, {model.num_frames} frames",
        f"{rollout.num_steps}, {config.num_trained_steps} trained",
        f"{rollout.prompts_per_iteration} x {rollout.group_size}",
        str(config.train.updates_per_iteration),
        "all weights" if lora is None else f"LoRA {lora.rank}/{lora.alpha:g}",
    ]
