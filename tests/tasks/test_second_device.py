"""The bodies of the tasks on a device that is not the CPU: no operator mixes tensors of the two."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
import torch

from digen_core.config.run import RunConfig
from digen_core.models.pipeline.policy import PipelinePolicy
from support.edits import picture
from support.families import (
    DISTILLED,
    EDITORS,
    FLF2V,
    KONTEXT,
    MODELS,
    NEGATIVE,
    OF_KIND,
    TOKENS,
    family_of,
    frames_of,
    sliced,
)
from support.in_process import train_in_process
from support.runs import distance, merged, tree_of
from support.second_device import MixedDevicesError, second_device, told

SHOWN = {model: 2 if model == FLF2V else 1 for model in (*EDITORS, KONTEXT, FLF2V, DISTILLED)}
"""How many images the prompts of a model have."""
FEATURES = {
    "all weights": {"train.lora": None, "train.ema_decay": 0.9},
    "checkpointing": {"train.gradient_checkpointing": True, "algorithm.kl_coefficient": 0.1},
    "half precision": {"model.dtype": "bfloat16", "rollout.storage": "float16"},
    "updates": {"train.updates_per_iteration": 2, "algorithm.best_of": 2},
    "screening": {"rollout.screening": {"candidates": 8, "num_steps": 2}},
    **{
        name: {"algorithm.type": name}
        for name in ("dance_grpo", "grpo_guard", "flow_dppo", "diffusion_nft", "ddpo", "longcat")
    },
}


@pytest.fixture
def config_of(tiny_families, tmp_path):
    def make(model: str, device: str, **changes) -> RunConfig:
        tree = tree_of(tiny_families[model], tmp_path)
        tree["model"] |= {
            "family": family_of(model),
            "device": device,
            "guidance_scale": 3.0,
            "negative_prompt": NEGATIVE,
            "num_frames": frames_of(model),
            "max_sequence_length": TOKENS,
            **OF_KIND.get(model, {}),
        }
        if count := SHOWN.get(model):
            image = "data:image/png;base64," + base64.b64encode(picture(0)).decode()
            rows = [{"prompt": text, "image": [image] * count} for text in ("a circle", "a square")]
            (tmp_path / "edits.jsonl").write_text("\n".join(map(json.dumps, rows)))
            tree["prompts"] = {"train": str(tmp_path / "edits.jsonl"), "image_column": "image"}
            tree["prompts"]["evaluation_fraction"] = 0.5
            tree["model"]["max_source_images"] = count
            tree["rollout"]["prompts_per_iteration"] = 1
        tree["num_iterations"] = 1
        tree["rollout"]["num_steps"] = tree["evaluation"]["num_steps"] = 4
        return RunConfig.model_validate(merged(tree, {"train.adam_eps": 1e-6, **changes}))

    return make


@contextmanager
def passes_told() -> Iterator[list[str]]:
    """Yield a list of what the host waits for, and of passes: forward ones, when they end."""
    velocity, grad = PipelinePolicy.velocity, torch.autograd.grad

    def forward(*arguments):
        found = velocity(*arguments)
        waits.append("forward")
        return found

    def backward(*arguments, **settings):
        waits.append("backward")
        return grad(*arguments, **settings)

    patched = patch.object(PipelinePolicy, "velocity", forward)
    with told() as waits, patched, patch.object(torch.autograd, "grad", backward):
        yield waits


def check(config_of, folder, model: str, within: float, **changes) -> None:
    expected, _ = train_in_process(config_of(model, "cpu", **changes), folder)
    with second_device() as device, passes_told() as waits:
        weights, _ = train_in_process(config_of(model, device, **changes), folder)
    assert distance(weights, expected) < within
    before = [waits[place - 1] for place, what in enumerate(waits) if what == "backward"]
    assert before, "nothing was trained"
    assert not {"read", "sent"} & set(before), "a device waits between the passes of a pack"


def test_a_mix_is_an_error():
    with second_device() as device:
        there = torch.ones(3, device=device)
        assert (there + there).device.type == device
        assert (there + torch.ones(())).tolist() == [2, 2, 2], "GPUs take single numbers, too"
        assert (there + there.new_tensor([1.0, 2.0, 3.0])).tolist() == [2, 3, 4]
        with pytest.raises(MixedDevicesError):
            there + torch.ones(3)


@pytest.mark.ci
@pytest.mark.parametrize("model", sliced((*MODELS, *SHOWN), often=["sd3"]))
def test_every_model_trains_there(model, config_of, tmp_path):
    check(config_of, tmp_path, model, 1e-6)


@pytest.mark.ci
@pytest.mark.parametrize("feature", sliced(FEATURES, often=("all weights", "half precision")))
def test_what_else_is_computed_is_there(feature, config_of, tmp_path):
    within = 5e-3 if feature == "half precision" else 1e-6
    check(config_of, tmp_path, "sd3", within, **FEATURES[feature])
