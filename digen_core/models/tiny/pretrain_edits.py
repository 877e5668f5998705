"""Pretraining of the tiny FLUX.1 Kontext on edits of the world ``shapes``.

Its VAE is that of the embedded FLUX of that world; transformer and text encoders learn the velocity
between noise and the latents of edited images, shown those of the images before, on changes for
training only.
"""

from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import torch
from diffusers import FluxKontextPipeline, FluxPipeline

from digen_core.config.model import EMBEDDED
from digen_core.inputs.shipped import located
from digen_core.models.tiny.flux import build_tiny_flux
from digen_core.models.tiny.pretrain import (
    Data,
    OnProgress,
    PretrainConfig,
    as_model_sees,
    save_half,
    scaled_latents,
    train_flow,
)
from digen_core.worlds.shape_edits import all_changes, draw_pair, train_changes

EDITS: Final = PretrainConfig(flow_steps=200)
"""The steps of the committed editor: few, so that it half knows the edits."""


def pretrain_edits(
    out_dir: Path,
    *,
    seed: int = 0,
    config: PretrainConfig | None = None,
    num_threads: int = 2,
    on_progress: OnProgress | None = None,
) -> FluxKontextPipeline:
    """Train a tiny FLUX.1 Kontext and save it in half precision.

    Sets the process's number of torch threads and its global seed. Returns the float32 pipeline.

    Args:
        out_dir: that gets the pipeline.
        seed: of weights and images.
        config: lengths and sizes; those of the VAE do not matter.
        num_threads: of torch.
        on_progress: is called now and then.
    """
    config = config or EDITS
    torch.set_num_threads(num_threads)
    pipe = build_tiny_flux(
        shift=config.shift, prompts=[change.edit.text for change in all_changes()], seed=seed
    )
    vae = FluxPipeline.from_pretrained(located(EMBEDDED), dtype=torch.float32).vae
    pipe.vae.load_state_dict(vae.state_dict())
    pipe.vae.register_to_config(
        shift_factor=vae.config.shift_factor, scaling_factor=vae.config.scaling_factor
    )
    pipe.vae.requires_grad_(requires_grad=False)
    editor = FluxKontextPipeline(**pipe.components)
    torch.manual_seed(seed)
    before, after = _render_pairs(config.num_images, np.random.default_rng(seed))
    latents, sources = (scaled_latents(editor, data.images) for data in (after, before))
    on_progress = on_progress or (lambda phase, step, loss: None)
    for _ in train_flow(editor, after, latents, config, on_progress, sources):
        pass
    save_half(editor, out_dir)
    return editor


def _render_pairs(num_images: int, rng: np.random.Generator) -> tuple[Data, Data]:
    """Render images before and after random changes."""
    changes = train_changes()
    index = rng.integers(len(changes), size=num_images)
    pairs = [draw_pair(changes[place], rng) for place in index]
    before, after = (as_model_sees(np.stack(images)) for images in zip(*pairs, strict=True))
    data = Data([change.edit.text for change in changes], torch.from_numpy(index), before)
    return data, replace(data, images=after)
