"""The forward pass of HunyuanVideo 1.5's transformer, over the modules that diffusers gives it.

diffusers' own asks the device which tokens are padding, sample by sample, moves them to the end,
and gives attention a mask of all pairs of tokens, also where nothing is masked. Here each text
keeps its place, as no text has positions; a mask is of keys, and there is none where no text is
padded; and where there is no image, its tokens, which nobody would attend to, are left out. So the
velocities are the same, attention may be flash attention, and work can be counted without numbers.

Axes: B samples, C channels, F frames, H height, W width, L tokens, D channels of a token.
"""

from types import MethodType
from typing import Any

import torch
from diffusers.models.transformers.transformer_hunyuan_video import HunyuanVideoAttnProcessor2_0
from torch import Tensor
from torch.nn.functional import pad

from digen_core.gang.context_parallel import mask_as_dealt


def compute_so(transformer: Any) -> None:
    """Have a HunyuanVideo15Transformer3DModel compute as this module does.

    Its blocks get the attention of HunyuanVideo, which takes the mask that it is given, or none.
    """
    transformer.dealt_over = 1  # members of a share
    transformer.forward = MethodType(_forward, transformer)
    for block in transformer.transformer_blocks:
        block.attn.set_processor(HunyuanVideoAttnProcessor2_0())


def _forward(
    self: Any,
    hidden_states: Tensor,
    timestep: Tensor,
    text: Tensor,
    mask: Tensor | None,
    glyphs: Tensor,
    glyph_mask: Tensor | None,
    images: Tensor,
    ends: Tensor | None = None,
) -> Tensor:
    """Return velocities [B, C, F, H, W].

    Args:
        self: the transformer.
        hidden_states: latents, and what else the first layer is shown, [B, C', F, H, W].
        timestep: of noise levels, in [0, 1000], [B], in float32 or better.
        text: embeddings of prompts, [B, L, ...].
        mask: of its tokens, [B, L]; None: none is padding.
        glyphs: embeddings of the words to be drawn, [B, L', ...], of none in most prompts.
        glyph_mask: of its tokens, likewise.
        images: embeddings of source images, [B, L'', ...], none where there are none.
        ends: timestep of the noise levels at which steps end, likewise [B]; None: it is not told.
    """
    rotary = self.rope(hidden_states)
    x = self.x_embedder(hidden_states)
    time = self.time_embed
    temb = time.timestep_embedder(time.time_proj(timestep).to(x.dtype))
    if ends is not None:
        temb = temb + time.timestep_embedder_r(time.time_proj_r(ends).to(x.dtype))
    of_text, of_glyphs, of_images = self.cond_type_embed(torch.arange(3, device=x.device))
    streams = [
        self.image_embedder(images) + of_images,
        self.context_embedder_2(glyphs) + of_glyphs,
        self.context_embedder(text, timestep, mask) + of_text,
    ]
    missing = -sum(stream.shape[1] for stream in streams) % self.dealt_over
    joined = pad(torch.cat(streams, dim=1), (0, 0, 0, missing))
    shown = None
    if missing or mask is not None or glyph_mask is not None:
        masks = zip((None, glyph_mask, mask), streams, strict=True)
        shown = torch.cat([_of(own, stream) for own, stream in masks], dim=1)
        shown = pad(shown, (0, missing))
        joined = joined.masked_fill(~shown[..., None], 0)  # as diffusers has it
        shown = torch.cat([_of(None, x), shown], dim=1)[:, None, None]
        shown = mask_as_dealt(shown, joined.shape[1], self.dealt_over)
    is_recomputed = torch.is_grad_enabled() and self.gradient_checkpointing
    for block in self.transformer_blocks:
        arguments = x, joined, temb, shown, rotary
        if is_recomputed:
            x, joined = self._gradient_checkpointing_func(block, *arguments)
        else:
            x, joined = block(*arguments)
    return _as_video(self, self.proj_out(self.norm_out(x, temb)), hidden_states.shape)


def _of(mask: Tensor | None, tokens: Tensor) -> Tensor:
    """Return which of tokens [B, L, D] are some, [B, L]: all, if no mask says otherwise."""
    if mask is None:
        return torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
    return mask.bool()


def _as_video(transformer: Any, tokens: Tensor, shape: torch.Size) -> Tensor:
    """Return what patches say [B, L, D] where they lie, in the shape of latents."""
    depth, side = transformer.config.patch_size_t, transformer.config.patch_size
    count, _, frames, height, width = shape
    patches = tokens.reshape(
        count, frames // depth, height // side, width // side, -1, depth, side, side
    )
    return patches.permute(0, 4, 1, 5, 2, 6, 3, 7).flatten(6, 7).flatten(4, 5).flatten(2, 3)
