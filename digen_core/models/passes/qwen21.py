"""The forward pass of Qwen-Image 2.1's transformer, over the modules that diffusers gives it.

Text and images are one sequence: a text and an image that it comes with in turn, then the prompt,
and last the image that is made. diffusers' own takes one layout for a batch, asks the device for
it, and places images behind the padding of texts. Here the image that is made stands behind the
tokens that its own text has, as it does where a prompt is alone, so a velocity does not depend on
the texts beside it, and half of a batch may be what guidance steers away from. A text's tokens see
what stands before them, so padding behind them is no matter to them: only the attention of the
image that is made has a mask, of keys, and none where no text is padded. So work can be counted
without numbers, and that attention may be flash attention.

Members of a gang that deal tokens have each a part of the sequence, wherever its pieces end. For
attention each has all tokens of some heads, so what it masks and turns is as on one device.

Axes: B samples, L tokens of text, N of an image, S of all, D channels of a token.
"""

from collections.abc import Sequence
from types import MethodType
from typing import Any

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from torch import Tensor

from digen_core.gang.context_parallel import (
    all_tokens,
    dealing_mesh,
    heads_of_own_tokens,
    own_tokens,
    tokens_of_own_heads,
)


def compute_so(transformer: Any) -> None:
    """Have a QwenImage21Transformer2DModel compute as this module does."""
    transformer.forward = MethodType(_forward, transformer)
    transformer.pos_embed.forward = MethodType(_rotary, transformer.pos_embed)
    norm = transformer.txt_in.text_norm
    norm.forward = MethodType(_normed, norm)
    for block in transformer.transformer_blocks:
        block.attn.set_processor(InTurn())


def _forward(
    self: Any,
    hidden_states: Tensor,
    timestep: Tensor,
    text: Tensor,
    mask: Tensor | None,
    grid: tuple[int, int],
    before: Sequence[Tensor] = (),
) -> Tensor:
    """Return velocities [B, N, C].

    Args:
        self: the transformer.
        hidden_states: packed latents [B, N, C], before them those of n source images.
        timestep: noise levels [B], in float32 or better.
        text: embeddings of prompts, [B, L, ...].
        mask: of its tokens, [B, L], those of padding last; None: none is padding.
        grid: rows and columns of an image.
        before: embeddings of what stands before each source image, n times [B, P, ...].
    """
    lengths = None if mask is None else mask.sum(dim=1)
    places = [own.shape[1] for own in before], text.shape[1]
    rotary = self.pos_embed(*places, lengths, grid, hidden_states.device)
    images = self.img_in(hidden_states).chunk(len(before) + 1, dim=1)
    texts = [self.txt_in(own) for own in (*before, text)]
    pieces = [piece for pair in zip(texts, images, strict=True) for piece in pair]
    x = torch.cat(pieces, dim=1)
    # All but the image that is made is modulated as at the noise level 0: by the last row.
    temb = self.time_text_embed(torch.cat([timestep, timestep.new_zeros(1)]), x)
    modulation = self.modulation(temb)
    num_tokens = x.shape[1]
    num_before = num_tokens - images[-1].shape[1]
    is_made = torch.arange(num_tokens, device=x.device) >= num_before
    masks = _masks(pieces, mask)
    mesh = dealing_mesh(self)
    if mesh is not None:
        x, is_made = own_tokens(x, mesh), own_tokens(is_made[None], mesh)[0]
    is_recomputed = torch.is_grad_enabled() and self.gradient_checkpointing
    for block in self.transformer_blocks:
        arguments = x, modulation, rotary, masks, is_made
        if is_recomputed:
            x = self._gradient_checkpointing_func(block, *arguments)
        else:
            x = block(*arguments)
    if mesh is None:
        x = x[:, num_before:]
    velocity: Tensor = self.proj_out(self.norm_out(x, temb[:-1]))
    return velocity if mesh is None else all_tokens(velocity, mesh, num_tokens)[:, num_before:]


def _masks(pieces: Sequence[Tensor], mask: Tensor | None) -> tuple[Tensor | None, ...]:
    """Return what the attention of each piece of a sequence masks; None: nothing.

    That of the first text is causal by its name, of others by a mask [L, S] up to their ends. Keys
    are masked [B, 1, 1, S] for the image that is made.

    Args:
        pieces: texts and images in turn, [B, ..., D].
        mask: of the last text's tokens.
    """
    masks: list[Tensor | None] = [None] * len(pieces)
    end = 0
    for place, piece in enumerate(pieces):
        start, end = end, end + piece.shape[1]
        if place and not place % 2:
            masks[place] = piece.new_ones(end - start, end, dtype=torch.bool).tril(start)
    if mask is not None:
        ones = mask.new_ones(len(mask), 1)
        first, last = end - pieces[-1].shape[1] - pieces[-2].shape[1], pieces[-1].shape[1]
        keys = [ones.expand(-1, first), mask, ones.expand(-1, last)]
        masks[-1] = torch.cat(keys, dim=1).bool()[:, None, None]
    return tuple(masks)


def _rotary(
    self: Any,
    before: Sequence[int],
    num_text: int,
    lengths: Tensor | None,
    grid: tuple[int, int],
    device: torch.device,
) -> tuple[Tensor, ...]:
    """Return the rotations of each text [1, L, D / 2] and image [1 or B, N, D / 2], complex.

    A text's tokens count on all three axes. Of an image the first stays where the text before it
    ends, and the others are rows and columns around 0; a text behind it goes on as behind a text as
    long as its longer side. Behind a table of numbers from 0 on are those below 0.

    Args:
        self: diffusers' module, with a table for each axis.
        before: tokens of the text before each source image.
        num_text: L, of the prompt.
        lengths: of prompts without their padding, [B]; None: none is padded.
        grid: rows and columns of an image.
        device: where it computes.
    """
    self.freqs = [table.to(device) for table in self.freqs]
    frames, *sides = self.freqs
    of_rows, of_columns = (
        torch.cat([table[number // 2 - number :], table[: number // 2]])
        for table, number in zip(sides, grid, strict=True)
    )
    found, start = [], 0
    for place, number in enumerate((*before, num_text)):
        end = start + number
        is_last = place == len(before)
        frame = frames[start + lengths] if is_last and lengths is not None else frames[end][None]
        image = [frame[:, None, None], of_rows[None, :, None], of_columns[None, None]]
        shape = len(frame), *grid, -1
        found += [
            torch.cat([table[start:end] for table in self.freqs], dim=-1)[None],
            torch.cat([own.expand(shape) for own in image], dim=-1).flatten(1, 2),
        ]
        start = end + max(grid)
    return tuple(found)


def _normed(self: Any, x: Tensor) -> Tensor:
    """Return states of texts [B, L, ...] scaled to length 1, times 1 + weight.

    diffusers' own does so in float32 where the model is float64, too, and sums up gradients so.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
    normed: Tensor = wide * scale * (self.weight.to(wide) + 1)
    return normed.to(x)


class InTurn:
    """Attention of a block: a piece's tokens to those of all before and to its own.

    Of a text to those before in it, of an image to all of it.
    """

    _attention_backend: Any = None  # diffusers sets both
    _parallel_config: Any = None

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        attention_mask: Sequence[Tensor | None],
        rotary_emb: Sequence[Tensor],
        **_: Any,
    ) -> Tensor:
        """Return [B, S, D].

        Args:
            attn: the module with the layers.
            hidden_states: [B, S, D].
            attention_mask: of each piece, as `_masks` makes them.
            rotary_emb: of each piece, as `_rotary` makes them.
            _: of diffusers' own way.
        """
        query, key, value = (
            layer(hidden_states).unflatten(-1, (attn.heads, -1))
            for layer in (attn.to_q, attn.to_k, attn.to_v)
        )
        query, key = attn.norm_q(query).to(value), attn.norm_k(key).to(value)
        mesh = dealing_mesh(self)
        if mesh is not None:
            number = sum(own.shape[1] for own in rotary_emb)
            query, key, value = (
                tokens_of_own_heads(own, mesh, number) for own in (query, key, value)
            )
        queries, keys = _turned(query, rotary_emb), torch.cat(_turned(key, rotary_emb), dim=1)
        attended = self._attended(queries, keys, value, attention_mask)
        if mesh is not None:
            attended = [heads_of_own_tokens(torch.cat(attended, dim=1), mesh)]
        # Each by itself, as attention's gradient would have gaps else: see `make_gradients_dense`.
        both = torch.cat([attn.to_out[0](own.flatten(2)) for own in attended], dim=1)
        result: Tensor = attn.to_out[1](both)
        return result

    def _attended(
        self,
        queries: Sequence[Tensor],
        key: Tensor,
        value: Tensor,
        masks: Sequence[Tensor | None],
    ) -> list[Tensor]:
        """Return what each piece attends to, [B, ..., heads, D], of keys and values of all."""
        attended, end = [], 0
        for place, (own, mask) in enumerate(zip(queries, masks, strict=True)):
            end += own.shape[1]
            found = dispatch_attention_fn(
                own,
                key[:, :end],
                value[:, :end],
                attn_mask=mask,
                is_causal=place == 0,
                backend=self._attention_backend,
            )
            attended.append(found.to(value))
        return attended


def _turned(x: Tensor, rotary: Sequence[Tensor]) -> list[Tensor]:
    """Return the pieces [B, ..., heads, D] of a sequence, pairs of their channels turned.

    Args:
        x: [B, S, heads, D].
        rotary: of each piece, as `_rotary` makes them.
    """
    pairs = x.to(torch.promote_types(x.dtype, torch.float32)).unflatten(-1, (-1, 2))
    parts = torch.view_as_complex(pairs).split([own.shape[1] for own in rotary], dim=1)
    turned = (own * angles[:, :, None] for own, angles in zip(parts, rotary, strict=True))
    return [torch.view_as_real(own).flatten(-2).to(x) for own in turned]
