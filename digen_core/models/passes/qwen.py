"""The forward pass of Qwen-Image's transformer, over the modules that diffusers gives it.

diffusers' own makes numbers on the host in each pass, which the device waits for and no CUDA graph
allows: how long each text is, which nobody reads, and of Qwen-Image-Edit-2511, which tokens are of
source images. Here they are made on the device, and the velocities are the same.

Axes: B samples, L tokens, D channels of a token.
"""

from math import prod
from types import MethodType
from typing import Any

import torch
from torch import Tensor


def compute_so(transformer: Any) -> None:
    """Have a QwenImageTransformer2DModel compute as this module does."""
    transformer.forward = MethodType(_forward, transformer)


def _forward(
    self: Any,
    hidden_states: Tensor,
    timestep: Tensor,
    text: Tensor,
    mask: Tensor | None,
    grids: list[tuple[int, int, int]],
) -> Tensor:
    """Return velocities [B, L, D], of what follows the sample, too.

    Args:
        self: the transformer.
        hidden_states: packed latents of the sample and of its source images, [B, L, D].
        timestep: noise levels, [B].
        text: embeddings of prompts, [B, L', D'].
        mask: of their tokens, [B, L']; None: none is padding.
        grids: frames, rows and columns of the sample, and of each source image.
    """
    x = self.img_in(hidden_states)
    joined = self.txt_in(self.txt_norm(text))
    shown = None if mask is None else mask.bool()
    levels, is_source = timestep.to(x.dtype), None
    if self.zero_cond_t:  # sources are modulated as without noise
        levels = torch.cat([levels, torch.zeros_like(levels)])
        places = torch.arange(x.shape[1], device=x.device)
        is_source = (places >= prod(grids[0])).int().expand(len(x), -1)
    temb = self.time_text_embed(levels, x)
    rotary = self.pos_embed([grids] * len(x), max_txt_seq_len=text.shape[1], device=x.device)
    is_recomputed = torch.is_grad_enabled() and self.gradient_checkpointing
    for block in self.transformer_blocks:
        arguments = x, joined, shown, temb, rotary, None, is_source
        if is_recomputed:
            joined, x = self._gradient_checkpointing_func(block, *arguments)
        else:
            joined, x = block(*arguments)
    velocities: Tensor = self.proj_out(self.norm_out(x, temb[: len(x)]))
    return velocities
