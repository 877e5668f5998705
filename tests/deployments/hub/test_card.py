"""The card's lines on loading an adapter do what they say, of every kind of pipeline."""

import dataclasses
import re

import diffusers
import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard

from deployments.hub.card import write_hub_folder
from digen_core.checkpoints.adapter import read_adapter
from digen_core.checkpoints.tensors import write_checkpoint
from digen_core.config.families import FAMILIES, VIDEO_FAMILIES
from digen_core.config.run import RunConfig
from digen_core.config.train import LoraConfig
from digen_core.models.families import adapter_of
from digen_core.models.trainable import FIRST_ADAPTER, make_trainable, set_weights
from digen_core.training.train_state import initial_state
from support.checkpoints import position_of
from support.families import HEIGHT, WIDTH, family_of, frames_of, load_tiny
from support.tiny_policies import moved_weights

LORA = LoraConfig(rank=3, alpha=10)  # a strength that is lost if alpha is
HERE = "this folder, or its name on the hub"
MADE_BY = {  # a pipeline that loads LoRAs, one of two experts, one that loads none itself
    "sd3": "load_lora_weights",
    "wan-a14b": "load_lora_weights",
    "hunyuan_video15": "transformer.load_lora_adapter",
}


@torch.no_grad()
def velocity_of(policy, embeds):
    x = torch.randn(2, *policy.latent_shape, generator=torch.Generator().manual_seed(0))
    return policy.velocity(x, torch.tensor([0.3, 0.95]), embeds)


def config_of(model: str, folder: str) -> RunConfig:
    return RunConfig.model_validate(
        {
            "model": {
                "family": family_of(model),
                "path": folder,
                "height": HEIGHT,
                "width": WIDTH,
                "num_frames": frames_of(model),
            },
            "train": {"lora": LORA.model_dump()},
        }
    )


def lines_of(card: ModelCard) -> str:
    """The Python that a card shows."""
    (found,) = re.findall(r"```python\n(.*?)\n```", card.text, re.DOTALL)
    return found


@pytest.mark.parametrize(("model", "call"), MADE_BY.items())
def test_what_the_card_says_loads_the_adapter(model, call, tiny_families, tmp_path):
    policy = load_tiny(tiny_families[model], model)
    embeds = policy.encode(["a red circle"] * 2)
    base = velocity_of(policy, embeds)
    make_trainable(policy, LORA)
    weights = moved_weights(policy, seed=1)
    run, hub = tmp_path / "run-1", tmp_path / "hub"
    hub.mkdir()
    run.mkdir()
    config = config_of(model, tiny_families[model])
    state = dataclasses.replace(initial_state(weights), version=1)
    write_checkpoint(run / "checkpoints", state, position_of(1, config))
    write_hub_folder(run, read_adapter(run, pytest.fail), hub)
    set_weights(policy, weights)

    card = ModelCard.load(hub / "README.md")
    assert card.data.pipeline_tag.endswith(
        "video" if family_of(model) in VIDEO_FAMILIES else "image"
    )
    family = family_of(model)
    assert f"A LoRA adapter of a `{family}` model of the maker's own, trained by" in card.text
    text = lines_of(card)
    assert f"pipeline.{call}(" in text
    with_base = re.sub(r"from_pretrained\(.*\)", f"from_pretrained({tiny_families[model]!r})", text)
    names: dict = {}
    exec(with_base.replace(HERE, str(hub)), names)
    loaded = type(policy)(names["pipeline"], policy.config, policy.device)
    found = velocity_of(loaded, embeds)
    torch.testing.assert_close(found, velocity_of(policy, embeds), rtol=1e-5, atol=1e-6)
    assert (found - base).abs().max() > 1e-3


def test_the_card_loads_the_base_model_as_the_run_did(tmp_path):
    """Of its revision, and as the pipeline that is shown images, which its index does not name."""
    model = {"family": "wan", "path": "org/name", "revision": "v2", "height": 64, "width": 96}
    tree = {
        "model": model,
        "prompts": {"train": "a.jsonl", "image_column": "image", "evaluation_fraction": 0.5},
        "train": {"lora": LORA.model_dump()},
    }
    weights = {
        f"blocks.0.attn1.to_q.lora_{matrix}.{FIRST_ADAPTER}.weight": np.zeros(shape, np.float32)
        for matrix, shape in {"A": (3, 8), "B": (8, 3)}.items()
    }
    run, hub = tmp_path / "run-1", tmp_path / "hub"
    hub.mkdir()
    run.mkdir()
    state = dataclasses.replace(initial_state(weights), version=1)
    config = RunConfig.model_validate(tree)
    write_checkpoint(run / "checkpoints", state, position_of(1, config))
    write_hub_folder(run, read_adapter(run, pytest.fail), hub)
    first, _, second, _ = lines_of(ModelCard.load(hub / "README.md")).split("\n")
    assert first == "from diffusers import WanImageToVideoPipeline"
    loading = "WanImageToVideoPipeline.from_pretrained('org/name', revision='v2')"
    assert second == f"pipeline = {loading}"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_call_is_one_that_the_pipelines_of_diffusers_have(family):
    """Diffusers' own, not what digen loads starting adapters with."""
    row = FAMILIES[family]
    for name in (row.pipeline, *row.other_pipelines):
        assert hasattr(getattr(diffusers, name), "load_lora_weights") == row.loads_lora
    assert hasattr(adapter_of(family).pipeline_class, "load_lora_weights")
