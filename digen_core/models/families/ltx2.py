"""LTX-2, 2.3 and 2.5: videos without their audio, of packed latents [B, tokens, channels].

Wraps diffusers' LTX2Pipeline; the denoising loop is ours. Guidance is classifier-free, the timestep
in [0, 1000]. What is newer in LTX-2.3 and 2.5 is in their settings: gates and modulation by the
noise level that the transformer has, and connectors that make texts as wide as each stream is.

The transformer has a stream of video and one of audio, which attend to each other in every block.
Here they do not: ``isolate_modalities``, the transformer's own mode, in which the video depends on
its own latents and the prompt only. Of audio the transformer is given the least that it takes, a
token, and no block computes with it.

Axes: B samples, L tokens of text, F frames, h and w sides of the latent.
"""

import inspect
from typing import Any, ClassVar, Final

import torch
from diffusers import (
    AutoencoderKLLTX2Video,
    FlowMatchEulerDiscreteScheduler,
    LTX2Pipeline,
    LTX2VideoTransformer3DModel,
)
from diffusers.models._modeling_parallel import ContextParallelInput as Split
from diffusers.models._modeling_parallel import ContextParallelOutput as Joined
from torch import Tensor

from digen_core.config.model import ModelConfig
from digen_core.gang.context_parallel import Plan
from digen_core.gang.members import Gang
from digen_core.models.pipeline.latents import video_latent_shape
from digen_core.models.pipeline.policy import PipelinePolicy
from digen_core.models.policy import Condition
from digen_core.models.registers import REGISTERS, require_registers
from digen_core.models.schedules import sigmas_shifted_by_size
from digen_core.models.tiny.sizes import LATENT_CHANNELS, TEXT_WIDTH, TransformerSize

_OF_AUDIO: Final = ("audio_attn1", "audio_attn2")
"""What a block calls the attention of audio to itself and to the text."""


class LTX2Policy(PipelinePolicy):
    """An LTX-2 pipeline as a Policy."""

    pipeline_class = LTX2Pipeline
    vae_class = AutoencoderKLLTX2Video
    unused_parts = ("audio_vae", "vocoder", "processor", "prompt_enhancer", "duration_head")
    uses_cfg = True
    # the text is in cross-attention, whole on every member; diffusers' own plan deals it, too, and
    # knows positions of one of the two types only
    token_plan: ClassVar[Plan | None] = {
        "": {"hidden_states": Split(split_dim=1, expected_dims=3)},
        "rope": {place: Split(split_dim=-2, split_output=True) for place in (0, 1)},
        "proj_out": Joined(gather_dim=1, expected_dims=3),
    }

    @classmethod
    def tiny(cls, size: TransformerSize, kind: str = "") -> LTX2Pipeline:
        """Build a pipeline with random weights: latents of 4 channels, 1/16 of the sides."""
        from digen_core.models.tiny import encoders, ltx2, tokenizers

        tokenizer = tokenizers.gemma_tokenizer()
        encoder = ltx2.gemma4 if kind == "2.5" else encoders.gemma3
        audio_vae, channels = ltx2.audio_vae()
        return LTX2Pipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(
                use_dynamic_shifting=True,
                base_shift=0.95,
                max_shift=2.05,
                base_image_seq_len=1024,
                shift_terminal=0.1,
            ),
            vae=ltx2.video_vae(LATENT_CHANNELS, kind),
            audio_vae=audio_vae,
            text_encoder=encoder(tokenizer, TEXT_WIDTH, layers=2),
            tokenizer=tokenizer,
            connectors=ltx2.connectors(TEXT_WIDTH, size.width, layers=2, kind=kind),
            transformer=LTX2VideoTransformer3DModel(
                **size.settings,
                **ltx2.TRANSFORMERS[kind],
                in_channels=LATENT_CHANNELS,
                out_channels=LATENT_CHANNELS,
                cross_attention_dim=size.width,
                vae_scale_factors=(4, 16, 16),
                audio_in_channels=channels,
                audio_out_channels=channels,
                audio_num_attention_heads=size.heads,
                audio_attention_head_dim=size.head // 2,
                audio_cross_attention_dim=size.width // 2,
                caption_channels=TEXT_WIDTH,
                rope_type="split",
            ),
            vocoder=ltx2.vocoder(kind),
        )

    def __init__(self, pipeline: Any, config: ModelConfig, device: torch.device) -> None:
        super().__init__(pipeline, config, device)
        taken = inspect.signature(pipeline.__call__).parameters
        self._frame_rate = float(taken["frame_rate"].default)
        for block in self.transformer.transformer_blocks:
            for name in _OF_AUDIO:
                getattr(block, name).set_processor(_NoAttention())
            block.register_forward_pre_hook(_without_audio, with_kwargs=True)

    def join(self, gang: Gang) -> None:
        """Compute as a member of a gang from now on, dealing tokens and blocks as it does."""
        super().join(gang)
        if gang.context_parallel > 1:
            for transformer in self.transformers:
                for block in transformer.transformer_blocks:
                    block.attn2.processor._parallel_config = None

    def shape_of_latent(self) -> tuple[int, ...]:
        """Return (tokens, channels), frame by frame and row by row."""
        settings, pipeline = self.transformer.config, self.pipeline
        channels, frames, height, width = video_latent_shape(
            self.config,
            channels=settings.in_channels,
            spatial=pipeline.vae_spatial_compression_ratio * settings.patch_size,
            temporal=pipeline.vae_temporal_compression_ratio,
        )
        self._grid = frames // settings.patch_size_t, height, width
        return frames // settings.patch_size_t * height * width, channels

    def wrapped(self, prompts: list[str]) -> tuple[list[str], int]:
        """Return the prompts as the pipeline strips them."""
        return [prompt.strip() for prompt in prompts], 0

    def embed(self, prompts: list[str]) -> Condition:
        """Return ``prompt_embeds`` [B, L, D] of the connectors, registers in place of padding."""
        pipeline, length = self.pipeline, self.config.max_sequence_length
        require_registers(self.config, pipeline.connectors.config[REGISTERS])
        states, mask, *_ = pipeline.encode_prompt(
            prompt=prompts,
            do_classifier_free_guidance=False,  # the negative prompt is embedded once, by itself
            max_sequence_length=length,
            device=self.device,
        )
        side = pipeline.tokenizer.padding_side
        prompt_embeds, _, _ = pipeline.connectors(states, mask, padding_side=side)
        return {"prompt_embeds": prompt_embeds}

    def shapes_of_embeddings(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of a prompt's ``prompt_embeds``."""
        return {"prompt_embeds": (self.config.max_sequence_length, self._text_width("cross"))}

    def _text_width(self, cross: str) -> int:
        """Return the channels of text that a stream is shown: from LTX-2.3 on those that it has."""
        settings = self.transformer.config
        name = "caption_channels" if settings.use_prompt_embeddings else f"{cross}_attention_dim"
        width: int = settings[name]
        return width

    def sigmas_of_family(self, num_steps: int) -> Tensor:
        """Return sigmas shifted by the number of tokens, down to the scheduler's last before 0."""
        return sigmas_shifted_by_size(self.pipeline.scheduler, num_steps, self.latent_shape[0])

    def predict(self, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        """Return the velocities [B, tokens, channels] of the video by itself."""
        shown, timestep = x.to(self.dtype), 1000 * sigma
        frames, height, width = self._grid
        audio, text = self.transformer.config.audio_in_channels, self._text_width("audio_cross")
        velocity: Tensor = self.transformer(
            hidden_states=shown,
            audio_hidden_states=shown.new_zeros(len(x), 1, audio),
            encoder_hidden_states=condition["prompt_embeds"].to(self.dtype),
            audio_encoder_hidden_states=shown.new_zeros(len(x), 1, text),
            timestep=timestep,
            sigma=timestep,  # LTX-2.3 modulates the text by it
            num_frames=frames,
            height=height,
            width=width,
            video_coords=self._coordinates(len(x)),
            audio_num_frames=1,
            isolate_modalities=True,
            return_dict=False,
        )[0]
        return velocity

    def _coordinates(self, count: int) -> Tensor:
        """Return where tokens begin and end in seconds, rows and columns, [B, 3, tokens, 2].

        They are made on the device, as the transformer's own are not: it computes on while it is
        told. Of the first latent frame there is one frame.
        """
        rope, bounds = self.transformer.rope, []
        sides = rope.patch_size_t, rope.patch_size, rope.patch_size
        for further in (0, 1):
            frames, *others = (
                side * factor * (torch.arange(number, device=self.device).float() + further)
                for number, side, factor in zip(self._grid, sides, rope.scale_factors, strict=True)
            )
            frames = (frames + rope.causal_offset - rope.scale_factors[0]).clamp(min=0)
            bounds.append(torch.cartesian_prod(frames / self._frame_rate, *others).t())
        return torch.stack(bounds, dim=-1).repeat(count, 1, 1, 1)

    def unpacked(self, x: Tensor) -> Tensor:
        """Return latents [B, z, F, h, w] at their own scale."""
        settings = self.transformer.config
        latents: Tensor = LTX2Pipeline._unpack_latents(
            x, *self._grid, settings.patch_size, settings.patch_size_t
        )
        return latents

    def vae_latents(self, x: Tensor) -> Tensor:
        """Return latents [B, z, F, h, w]."""
        vae = self.pipeline.vae
        unscaled: Tensor = LTX2Pipeline._denormalize_latents(
            self.unpacked(x), vae.latents_mean, vae.latents_std, vae.config.scaling_factor
        )
        return unscaled


class _NoAttention:
    """The attention of no tokens: what it is given, which has the shape of what it would return."""

    def __call__(
        self,
        attn: torch.nn.Module,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        query_rotary_emb: Any = None,
        key_rotary_emb: Any = None,
        perturbation_mask: Tensor | None = None,
        all_perturbed: bool | None = None,
    ) -> Tensor:
        return hidden_states


def _without_audio(
    block: torch.nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Leave out the token of audio where a block computes: its layers then have nothing to do.

    diffusers gives streams by position where blocks are computed again for their gradients.
    """
    video, audio, *others = arguments or (None, named["audio_hidden_states"])
    if not arguments:
        return (), named | {"audio_hidden_states": audio[:, :0]}
    return (video, audio[:, :0], *others), named
