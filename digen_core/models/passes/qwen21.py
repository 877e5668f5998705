"""The forward pass of Qwen-Image 2.1's transformer for texts, over the modules diffusers gives it.

diffusers' own has one layout for a batch, asks the device for it, and places images behind the
padding of texts. Here each image stands behind the tokens that its own text has, as it does where
a prompt is alone, so a velocity does not depend on the texts beside it, and half of a batch may be
what guidance steers away from. A text's tokens see what stands before them, so padding behind them
is no matter to them: only the image's attention has a mask, of keys, and none where no text is
padded. So attention of most passes may be flash attention, and work can be counted without numbers.

Axes: B samples, L tokens of text, N of an image, D channels of a token.
"""

from types import MethodType
from typing import Any

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from torch import Tensor

from digen_core.gang.context_parallel import mask_as_dealt


def compute_so(transformer: Any) -> None:
    """Have a QwenImage21Transformer2DModel compute as this module does."""
    transformer.dealt_over = 1  # members of a share
    transformer.forward = MethodType(_forward, transformer)
    transformer.pos_embed.forward = MethodType(_rotary, transformer.pos_embed)
    norm = transformer.txt_in.text_norm
    norm.forward = MethodType(_normed, norm)
    for block in transformer.transformer_blocks:
        block.attn.set_processor(TextsThenImages())


def _forward(
    self: Any,
    hidden_states: Tensor,
    timestep: Tensor,
    text: Tensor,
    mask: Tensor | None,
    grid: tuple[int, int],
) -> Tensor:
    """Return velocities [B, N, C].

    Args:
        self: the transformer.
        hidden_states: packed latents [B, N, C].
        timestep: noise levels [B], in float32 or better.
        text: embeddings of prompts, [B, L, ...].
        mask: of its tokens, [B, L], those of padding last; None: none is padding.
        grid: rows and columns of an image.
    """
    shown = causal = None
    if self.dealt_over > 1:  # diffusers deals no attention that is causal by its name
        causal = text.new_ones(text.shape[1], text.shape[1], dtype=torch.bool).tril()
    if mask is not None:
        keys = torch.cat([mask.new_ones(hidden_states.shape[:2]), mask], dim=1).bool()
        shown = mask_as_dealt(keys[:, None, None], mask.shape[1], self.dealt_over)
    lengths = None if mask is None else mask.sum(dim=1)
    rotary = self.pos_embed(text.shape[1], lengths, grid, hidden_states.device)
    image, text = self.img_in(hidden_states), self.txt_in(text)
    # Text is modulated as at the noise level 0, whichever the image's is: by the last row.
    temb = self.time_text_embed(torch.cat([timestep, timestep.new_zeros(1)]), image)
    modulation = self.modulation(temb)
    num_text, x = text.shape[1], torch.cat([text, image], dim=1)
    is_image = torch.arange(x.shape[1], device=x.device) >= num_text
    is_recomputed = torch.is_grad_enabled() and self.gradient_checkpointing
    for block in self.transformer_blocks:
        arguments = x, modulation, rotary, (causal, shown), is_image
        if is_recomputed:
            x = self._gradient_checkpointing_func(block, *arguments)
        else:
            x = block(*arguments)
    velocity: Tensor = self.proj_out(self.norm_out(x[:, num_text:], temb[:-1]))
    return velocity


def _rotary(
    self: Any, num_text: int, lengths: Tensor | None, grid: tuple[int, int], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the rotations of texts [1, L, D / 2] and of images [1 or B, N, D / 2], complex.

    A text's tokens count on all three axes. Of an image the first stays where its text ends, and
    the others are rows and columns around 0; behind a table of numbers from 0 on are those below.

    Args:
        self: diffusers' module, with a table for each axis.
        num_text: L.
        lengths: of texts without their padding, [B]; None: none is padded.
        grid: rows and columns of an image.
        device: where it computes.
    """
    self.freqs = [table.to(device) for table in self.freqs]
    frames, *sides = self.freqs
    place = frames[num_text : num_text + 1] if lengths is None else frames[lengths]
    of_rows, of_columns = (
        torch.cat([table[number // 2 - number :], table[: number // 2]])
        for table, number in zip(sides, grid, strict=True)
    )
    shape = len(place), *grid, -1
    image = [place[:, None, None], of_rows[None, :, None], of_columns[None, None]]
    text = torch.cat([table[:num_text] for table in self.freqs], dim=-1)
    return text[None], torch.cat([own.expand(shape) for own in image], dim=-1).flatten(1, 2)


def _normed(self: Any, x: Tensor) -> Tensor:
    """Return states of texts [B, L, ...] scaled to length 1, times 1 + weight.

    diffusers' own does so in float32 where the model is float64, too, and sums up gradients so.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
    normed: Tensor = wide * scale * (self.weight.to(wide) + 1)
    return normed.to(x)


class TextsThenImages:
    """Attention of a block: tokens of text to those before them, those of the image to all."""

    _attention_backend: Any = None  # diffusers sets both
    _parallel_config: Any = None

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        attention_mask: tuple[Tensor | None, Tensor | None],
        rotary_emb: tuple[Tensor, Tensor],
        **_: Any,
    ) -> Tensor:
        """Return [B, L + N, D].

        Args:
            attn: the module with the layers.
            hidden_states: [B, L + N, D], text first.
            attention_mask: of text, [L, L], where it is dealt; and of all keys, those of images
                first, [B, 1, 1, N + L]; None masks none.
            rotary_emb: of text and image, as `_rotary` makes them.
            _: of diffusers' own way.
        """
        causal, shown = attention_mask
        query, key, value = (
            layer(hidden_states).unflatten(-1, (attn.heads, -1))
            for layer in (attn.to_q, attn.to_k, attn.to_v)
        )
        queries, keys = (
            _turned(norm(x).to(x), rotary_emb)
            for norm, x in ((attn.norm_q, query), (attn.norm_k, key))
        )
        values = value.split([own.shape[1] for own in keys], dim=1)
        of_text = self._attend(
            queries[0], keys[0], values[0], attn_mask=causal, is_causal=causal is None
        )
        image, num_image = queries[1], keys[1].shape[1]
        if causal is not None:  # diffusers deals as many queries as keys
            image = torch.cat([image, queries[0]], dim=1)
        whole = (torch.cat([own[1], own[0]], dim=1) for own in (keys, values))
        of_image = self._attend(image, *whole, attn_mask=shown)[:, :num_image]
        # Each by itself, as attention's gradient would have gaps else: see `make_gradients_dense`.
        both = [attn.to_out[0](own.flatten(2).to(query)) for own in (of_text, of_image)]
        found: Tensor = attn.to_out[1](torch.cat(both, dim=1))
        return found

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, **how: Any) -> Tensor:
        found: Tensor = dispatch_attention_fn(
            query,
            key,
            value,
            backend=self._attention_backend,
            parallel_config=self._parallel_config,
            **how,
        )
        return found


def _turned(x: Tensor, rotary: tuple[Tensor, Tensor]) -> list[Tensor]:
    """Return texts [B, L, heads, D] and images [B, N, heads, D] of both, pairs of channels turned.

    Args:
        x: [B, L + N, heads, D].
        rotary: of text and image, as `_rotary` makes them.
    """
    pairs = x.to(torch.promote_types(x.dtype, torch.float32)).unflatten(-1, (-1, 2))
    parts = torch.view_as_complex(pairs).split([own.shape[1] for own in rotary], dim=1)
    turned = (own * angles[:, :, None] for own, angles in zip(parts, rotary, strict=True))
    return [torch.view_as_real(own).flatten(-2).to(x) for own in turned]
