"""The shipped recipes: each loads, is complete, and trains a tiny model of its family."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from deployments.bench.recipe import changes_of, rewards_of, tiny_model
from deployments.levels import TARGET, digest_of, level_of, proof_file, proof_of
from deployments.shipped import recipe_files
from digen_core.config.families import FAMILIES
from digen_core.config.load import load_config
from digen_core.config.run import RunConfig
from digen_core.data.prompts import Prompt
from digen_core.models.trainable import initial_weights, make_trainable, trainable_parameters
from digen_core.planning.model_settings import settings_folder
from digen_core.preflight.run import check_inputs
from digen_core.reference.loop import post_train_serially
from support.edits import source
from support.paths import ROOT
from support.tiny_policies import load

DOCS = ROOT / "docs/recipes.md"
LEVELS_HEADING = "## How far they are verified"
FILES = {path.stem: path for path in recipe_files()}


@pytest.fixture(params=FILES)
def recipe(request) -> str:
    return request.param


def one_of_each_family() -> list:
    """All recipes, of which those of a family that another one has are for a slice."""
    found, seen = [], set[str]()
    for name, path in FILES.items():
        family = tomllib.loads(path.read_text())["model"]["family"]
        found.append(pytest.param(name, marks=[pytest.mark.families] * (family in seen)))
        seen.add(family)
    return found


@pytest.fixture(scope="module")
def tiny_model_of(tmp_path_factory) -> Callable[[RunConfig], str]:
    """Folder of a tiny model of what a recipe is for, as 'digen bench recipe' takes it."""
    folders: dict[tuple, str] = {}

    def folder_of(config: RunConfig) -> str:
        model = config.model
        kind = model.family, model.guidance_scale_2, model.source_image
        if kind not in folders:
            folders[kind] = str(tmp_path_factory.mktemp(model.family))
            tiny_model(config).save_pretrained(folders[kind])
        return folders[kind]

    return folder_of


def test_the_tiny_model_of_a_recipe_has_what_the_published_one_has():
    """Of kinds of one pipeline: LTX-2.3's gates, no biases less."""
    config = load_config(FILES["flow_factory_ltx2"])
    for path, gated, biased in (
        (config.model.path, True, True),
        ("Lightricks/LTX-2", False, True),
        ("Lightricks/LTX-2.5-Diffusers", True, False),
    ):
        model = config.model.model_copy(update={"path": path})
        tiny = tiny_model(config.model_copy(update={"model": model})).transformer.config
        assert (tiny.gated_attn, tiny.ff_bias) == (gated, biased), path


def shrunk(path: Path, folder: str) -> RunConfig:
    """The recipe at the size of a tiny model; algorithm, steps' structure and rewards are kept."""
    changes = changes_of(load_config(path), folder, iterations=1)
    return load_config(path, changes | {"rollout.prompts_per_iteration": 2})


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


@pytest.mark.ci_but_one
@pytest.mark.parametrize("recipe", one_of_each_family())
def test_a_recipe_trains_a_tiny_model_of_its_family(recipe, tiny_model_of):
    published = load_config(FILES[recipe])
    config = shrunk(FILES[recipe], tiny_model_of(published))
    assert config.algorithm.type == published.algorithm.type
    policy = load(config.model.path, **model_of(config))
    make_trainable(
        policy,
        config.train.lora,
        keep_reference=config.keeps_reference,
        gradient_checkpointing=config.train.gradient_checkpointing,
    )
    start = initial_weights(policy, config.train.lora, seed=config.seed)
    rewards = rewards_of(config, policy.device)
    images = [(source(seed),) * config.model.num_source_images for seed in range(2)]
    texts = "a red circle", "a blue square"
    prompts = [Prompt(text, images=own) for text, own in zip(texts, images, strict=True)]
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


@pytest.mark.ci_but_one
def test_every_target_of_a_recipe_is_a_module(recipe, tiny_model_of):
    config = load_config(FILES[recipe])
    if config.train.lora is None:
        return
    model = config.model
    policy = load(
        tiny_model_of(config), "float32", family=model.family, source_image=model.source_image
    )
    make_trainable(policy, config.train.lora)
    names = trainable_parameters(policy)
    for target in config.train.lora.targets:
        assert any(f".{target}.lora_A" in name for name in names), target
    assert not any("attn2.add" in name for name in names)


@pytest.mark.parametrize(
    ("recipe", "boundary", "wanted"),
    [
        ("flow_factory_wan22", 0.875, ["0.964", "0.923", "0.875"]),
        ("flow_factory_wan22_i2v", 0.9, ["0.955"]),
    ],
)
def test_the_steps_of_wan22_are_those_of_the_expert_for_high_noise(
    recipe, boundary, wanted, tiny_model_of
):
    """Their heads say so; the tiny models have the schedule of the published ones."""
    config = load_config(FILES[recipe])
    size, low, high = config.algorithm.window
    shown = {"source_image": config.model.source_image}
    policy = load(tiny_model_of(config), "float32", family="wan", num_frames=5, **shown)
    levels = policy.sigmas(config.rollout.num_steps)[low:high]
    settings = settings_folder(config.model.path) / "model_index.json"
    assert json.loads(settings.read_text())["boundary_ratio"] == boundary
    assert (levels >= boundary).all()
    assert (size, [f"{level:.3f}" for level in levels]) == (1, wanted)


@pytest.mark.parametrize(
    ("recipe", "images", "kind"),
    [
        ("flow_factory_flux_kontext", 1, "FluxKontextPipeline"),
        ("flow_factory_flux2_klein", 2, "Flux2KleinPipeline"),
        ("flow_factory_qwen_image_edit", 1, "QwenImageEditPlusPipeline"),
        ("flow_grpo_qwen_image_fast", 0, "QwenImagePipeline"),
        ("flow_grpo_qwen_image_fast", 1, "QwenImageEditPipeline"),
        ("flow_grpo_qwen_image_fast", 2, "QwenImageEditPlusPipeline"),
    ],
)
def test_a_tiny_model_is_shown_the_images_that_prompts_come_with(recipe, images, kind):
    shown = {"prompts.image_column": "image", "model.max_source_images": images}
    config = load_config(FILES[recipe], shown if images else {})
    assert type(tiny_model(config)).__name__ == kind


def table_of(page: str) -> dict[str, list[str]]:
    """The cells of the rows that begin with a name, by that."""
    lines = [line for line in page.splitlines() if line.startswith("| `")]
    return {cells[0].strip("`"): cells[1:] for line in lines if (cells := line[2:-2].split(" | "))}


def test_the_table_of_recipes_is_that_of_the_files():
    page, _, _ = DOCS.read_text().partition(LEVELS_HEADING)
    assert table_of(page) == {
        name: row_of(load_config(path), level_of(path)) for name, path in FILES.items()
    }


def test_the_table_of_levels_is_that_of_the_artifacts():
    _, _, page = DOCS.read_text().partition(LEVELS_HEADING)
    proofs = {name: proof for name, path in FILES.items() if (proof := proof_of(path))}
    assert table_of(page) == {
        name: [
            f"{proof.before:.5f}",
            f"{proof.after:.5f}",
            f"{proof.standard_errors:.1f}",
            str(proof.changes["num_iterations"]),
            f"{proof.seconds:.0f}",
            f"`{proof.command}`",
        ]
        for name, proof in proofs.items()
    }


NONE_TRAINED = "None has been trained here on the model that it is for"


def test_the_readme_claims_nothing_above_the_levels_of_the_recipes():
    readme = " ".join((ROOT / "README.md").read_text().split())
    reached = {level_of(path) for path in FILES.values()}
    assert (NONE_TRAINED in readme) == ("V" not in reached)
    _, _, page = DOCS.read_text().partition(LEVELS_HEADING)
    assert ("None is [V]" in page) == ("V" not in reached)
    without = FAMILIES.keys() - {load_config(own).model.family for own in FILES.values()}
    assert without == {"sana", "hunyuan_video15"}
    assert "every family but Sana and HunyuanVideo 1.5 has some" in readme


def row_of(config: RunConfig, level: str) -> list[str]:
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
        f"[{level}]",
    ]


def test_a_level_is_what_its_artifact_shows(recipe):
    """An artifact that is there counts: it is of the settings that the recipe has now."""
    path = FILES[recipe]
    assert (proof_of(path) is not None) == proof_file(recipe).exists()
    if proof := proof_of(path):
        assert proof.level == level_of(path)
        assert proof.standard_errors >= TARGET
        assert f"bench recipe {recipe} " in proof.command


def test_every_artifact_is_of_a_recipe():
    assert {path.stem for path in proof_file("x").parent.glob("*.json")} <= set(FILES)


def test_an_artifact_of_other_settings_counts_no_longer(tmp_path, monkeypatch):
    monkeypatch.setattr("deployments.levels.LEVELS", tmp_path)
    recipe = tmp_path / "mine.toml"
    recipe.write_text("[train]\nlearning_rate = 1e-4\n")
    assert level_of(recipe) == "D"
    proof = {
        **{"level": "T", "recipe": "mine", "settings": digest_of(recipe), "date": "2026-11-26"},
        **{"command": "digen bench recipe mine", "reward": "warmth", "changes": {}},
        **{"before": 0.5, "before_error": 0.01, "after": 0.6, "after_error": 0.01},
        **{"change_error": 0.01, "prompts": 12, "seconds": 60.0, "machine": "1 CPU thread"},
    }
    (tmp_path / "mine.json").write_text(json.dumps(proof))
    assert level_of(recipe) == "T"
    recipe.write_text("[train]\nlearning_rate = 1e-3\n")
    assert level_of(recipe) == "D"
    recipe.write_text("[train]\nlearning_rate = 1e-4\n")
    (tmp_path / "mine.json").write_text(json.dumps(proof | {"after": 0.54}))
    assert level_of(recipe) == "D"  # below the target
