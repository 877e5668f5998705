"""Tiny pipelines that are shown a source image, and images to show them."""

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from io import BytesIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image

from digen_core.data.images import SourceImage
from digen_core.data.prompts import Prompt
from digen_core.models.families import adapter_of
from digen_core.models.pipeline.policy import PipelinePolicy
from digen_core.models.policy import TRAINER_PARTS, Condition
from digen_core.models.tiny.pipelines import build_tiny
from digen_core.rollout.conditions import encoded


def write_edit_2511(folder: Path) -> str:
    """Write a tiny Qwen-Image-Edit-2511, which shows source images without noise to each block."""
    pipeline = build_tiny("qwen_image", kind="edit-plus")
    usual = dict(pipeline.transformer.config)
    usual.pop("_use_default_values")  # else from_config leaves out what was not named before
    settings = {**usual, "zero_cond_t": True}
    torch.manual_seed(0)
    pipeline.register_modules(transformer=type(pipeline.transformer).from_config(settings))
    assert pipeline.transformer.zero_cond_t
    pipeline.save_pretrained(folder)
    return str(folder)


def picture(seed: int, width: int = 48, height: int = 32) -> bytes:
    """Return a PNG of smooth colours."""
    coarse = np.random.default_rng(seed).integers(0, 255, (3, 4, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    file = BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def source(seed: int, width: int = 48, height: int = 32) -> SourceImage:
    """Return a picture as a source image."""
    return SourceImage.of(picture(seed, width, height))


def condition_of(policy: PipelinePolicy, texts: Sequence[str]) -> Condition:
    """Embed prompts: beside the same picture, if the policy is shown source images."""
    images = (source(0),) * policy.config.num_source_images
    return encoded(policy, [Prompt(text, images=images) for text in texts])


def showing(pipeline: Any, height: int, width: int) -> AbstractContextManager[Any]:
    """Have a stock Qwen-Image-Edit or 2.1 show images in a size, not near 1024 x 1024."""
    own = sys.modules[type(pipeline).__module__]
    usual = own.calculate_dimensions

    def dimensions(area: int, ratio: float) -> tuple[int | None, ...]:
        found: tuple[int | None, ...] = usual(area, ratio)
        return found if area != 1024 * 1024 else (width, height, *found[2:])

    return patch.object(own, "calculate_dimensions", dimensions)


def check_counted_shapes(policy: PipelinePolicy, prompts: Sequence[Prompt]) -> None:
    """Check that embeddings of two prompts have the shapes that are counted, in several sizes."""
    for size in ((64, 96, 5), (32, 64, 9)):
        view = policy.at_size(size)
        blank, condition = view.blank_condition(2), encoded(view, prompts)
        assert {n: (v.shape, v.dtype) for n, v in blank.items()} == {
            n: (v.shape, v.dtype) for n, v in condition.items()
        }
        x = torch.randn(2, *view.latent_shape)
        assert view.velocity(x, torch.tensor([0.3, 0.8]), condition).shape == x.shape


def check_trainer(policy: PipelinePolicy, prompts: Sequence[Prompt]) -> None:
    """Check that a policy that encodes nothing computes the same velocities of two prompts."""
    trainer = adapter_of(policy.config.family).load(policy.config, TRAINER_PARTS)
    x, sigma = torch.randn(2, *policy.latent_shape), torch.tensor([0.3, 0.95])
    condition = encoded(policy, prompts)
    assert torch.equal(trainer.velocity(x, sigma, condition), policy.velocity(x, sigma, condition))
    assert trainer.pipeline.text_encoder is None
    assert getattr(trainer.pipeline, "image_encoder", None) is None
