"""Z-Image: latents [B, z, h, w], texts of several lengths, time that runs from noise to image.

Wraps diffusers' ZImagePipeline; the denoising loop is ours.
"""

from typing import ClassVar

import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    ZImagePipeline,
    ZImageTransformer2DModel,
)
from diffusers.models._modeling_parallel import ContextParallelInput as Split
from diffusers.models._modeling_parallel import ContextParallelOutput as Joined
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.functional import pad

from digen_core.gang.context_parallel import Plan
from digen_core.gang.members import Gang
from digen_core.models.chat import as_chats
from digen_core.models.image_size import require_positions
from digen_core.models.pipeline.latents import scaled, unscaled
from digen_core.models.pipeline.policy import PipelinePolicy
from digen_core.models.policy import Condition
from digen_core.models.schedules import dynamic_shift, scheduler_sigmas
from digen_core.models.tiny.sizes import LATENT_CHANNELS, TEXT_WIDTH, VAE_CHANNELS, TransformerSize


class ZImagePolicy(PipelinePolicy):
    """A Z-Image pipeline as a Policy."""

    pipeline_class = ZImagePipeline
    vae_class = AutoencoderKL
    uses_cfg = True
    guides_above = 0.0
    token_plan: ClassVar[Plan | None] = {
        "layers.0": {"x": Split(split_dim=1, expected_dims=3)},
        "layers.*": {"freqs_cis": Split(split_dim=1, expected_dims=3)},
        "all_final_layer.2-1": Joined(gather_dim=1, expected_dims=3),
    }

    @classmethod
    def tiny(cls, size: TransformerSize, kind: str = "") -> ZImagePipeline:
        """Build a pipeline with random weights: latents of 4 channels, 1/8 of the image's sides."""
        from digen_core.models.tiny import encoders, tokenizers, vaes

        tokenizer = tokenizers.qwen3_tokenizer()
        transformer = ZImageTransformer2DModel(
            in_channels=LATENT_CHANNELS,
            dim=size.width,
            n_layers=size.blocks,
            n_refiner_layers=1,
            n_heads=size.heads,
            n_kv_heads=size.heads,
            cap_feat_dim=TEXT_WIDTH,
            axes_dims=list(size.axes),
            axes_lens=[1024, 64, 64],
        )
        for token in (transformer.x_pad_token, transformer.cap_pad_token):
            nn.init.normal_(token, std=0.5)  # of a new transformer they are 0
        return ZImagePipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
            vae=vaes.image_vae(
                VAE_CHANNELS, LATENT_CHANNELS, scaling_factor=0.3611, shift_factor=0.1159
            ),
            text_encoder=encoders.qwen3(tokenizer, TEXT_WIDTH, layers=2),
            tokenizer=tokenizer,
            transformer=transformer,
        )

    def join(self, gang: Gang) -> None:
        """Compute as a member of a gang from now on, dealing tokens and blocks as it does."""
        super().join(gang)
        for transformer in self.transformers:  # what is before the blocks has all of its tokens
            for refiner in (transformer.noise_refiner, transformer.context_refiner):
                for block in refiner:
                    block.attention.processor._parallel_config = None

    def shape_of_latent(self) -> tuple[int, ...]:
        """Return (z, h, w); tables of positions bound h and w."""
        settings = self.transformer.config
        require_positions(self.config, min(settings.axes_lens[1:]) * self.side)
        pixels = self.pipeline.vae_scale_factor
        return settings.in_channels, self.config.height // pixels, self.config.width // pixels

    def wrapped(self, prompts: list[str]) -> tuple[list[str], int]:
        """Return the prompts as a chat's first message; all of its tokens count."""
        return as_chats(self.pipeline.tokenizer, prompts, thinking=True), 0

    def embed(self, prompts: list[str]) -> Condition:
        """Return ``prompt_embeds`` [B, L, D] and ``mask`` [B, L], 1 for tokens and 0 for padding.

        The pipeline has a tensor of each prompt's own length.
        """
        length = self.config.max_sequence_length
        embeds, _ = self.pipeline.encode_prompt(
            prompt=list(prompts),  # the pipeline writes into it
            device=self.device,
            do_classifier_free_guidance=False,  # the negative prompt is embedded once, by itself
            max_sequence_length=length,
        )
        used = torch.tensor([len(own) for own in embeds], device=self.device)
        return {
            "prompt_embeds": torch.stack(
                [pad(own, (0, 0, 0, length - len(own))) for own in embeds]
            ),
            "mask": (torch.arange(length, device=self.device) < used[:, None]).long(),
        }

    def shapes_of_embeddings(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a prompt's ``prompt_embeds`` and ``mask``."""
        length = self.config.max_sequence_length
        return {"prompt_embeds": (length, self.transformer.config.cap_feat_dim), "mask": (length,)}

    def sigmas_of_family(self, num_steps: int) -> Tensor:
        """Return evenly spaced sigmas, shifted as the scheduler says (3 for Turbo, 6 for base).

        A scheduler that shifts by the image's size gets the number of its tokens.
        """
        scheduler = self.pipeline.scheduler
        _, height, width = self.latent_shape
        return scheduler_sigmas(
            scheduler,
            sigmas=torch.linspace(1.0, 1 / num_steps, num_steps).tolist(),
            mu=dynamic_shift(scheduler, (height // 2) * (width // 2)),
        )

    def predict(self, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        """Return the velocities [B, z, h, w].

        The model is told how much of the image is there, and says where it lies: both are turned
        round. Each text has its own length, as images are placed behind it; a batch in which all
        are equally long has no mask.
        """
        embeds = condition["prompt_embeds"].to(self.dtype)
        lengths = lengths_of(embeds, condition.get("mask"))
        to_image: list[Tensor] = self.transformer(
            list(x.to(self.dtype).unsqueeze(2).unbind()),  # one frame
            1 - sigma,
            [text[:length] for text, length in zip(embeds, lengths, strict=True)],
            return_dict=False,
        )[0]
        return -torch.stack(to_image).squeeze(2)

    def guide(self, positive: Tensor, negative: Tensor, scale: float) -> Tensor:
        """Return the guided velocity: at a scale of 0 it is the positive one, at 1 beyond it."""
        return positive + scale * (positive - negative)

    def image_latents(self, images: Tensor) -> Tensor:
        """Return the latents [B, z, h, w] of images."""
        vae = self.pipeline.vae
        return scaled(vae.encode(images).latent_dist.mode(), vae.config)

    def vae_latents(self, x: Tensor) -> Tensor:
        """Return latents [B, z, h, w]."""
        return unscaled(x, self.pipeline.vae.config)


def lengths_of(embeds: Tensor, mask: Tensor | None) -> list[int]:
    """Return how many of its tokens each text of a batch has; a tensor without numbers has all."""
    if mask is None or mask.is_meta or isinstance(mask, FakeTensor):
        return [embeds.shape[1]] * len(embeds)
    lengths: list[int] = mask.sum(dim=1).tolist()
    return lengths
