"""Wan 2.2: timesteps per token of TI2V-5B."""

import pytest
import torch

from digen_core.config.model import ModelConfig
from digen_core.errors import UserError
from digen_core.models.families import adapter_of
from digen_core.planning.model_settings import MODEL_CONFIGS
from digen_core.rollout.sampler import initial_latent
from support.families import load_tiny, stock

TI2V = MODEL_CONFIGS / "Wan2.2-TI2V-5B-Diffusers"


def test_one_timestep_per_sample_is_one_per_token(tiny_families):
    """Where all tokens of a sample have the same, as without an image they have."""
    policy = load_tiny(tiny_families["wan-ti2v"], "wan-ti2v", "float64", guidance_scale=1.0)
    assert stock(tiny_families["wan-ti2v"]).config.expand_timesteps
    x = initial_latent(policy, seed=5, group=(0, 0), samples=range(3))
    sigma, condition = torch.tensor([0.2, 0.5, 0.9]), policy.encode(["a red circle"] * 3)
    _, frames, height, width = policy.latent_shape
    tokens = frames * (height // 2) * (width // 2)
    (expected,) = policy.transformer(
        hidden_states=x,
        timestep=(1000 * sigma)[:, None].expand(-1, tokens),
        encoder_hidden_states=condition["prompt_embeds"],
        return_dict=False,
    )
    torch.testing.assert_close(
        policy.velocity(x, sigma, condition), expected, rtol=0, atol=1e-6
    )  # some modules are float32


def test_the_published_vae_has_a_sixteenth_of_the_sides():
    def policy_at(height: int):
        size = {"height": height, "width": 1280, "num_frames": 121}
        config = ModelConfig(family="wan", path="a/b", **size)
        return adapter_of("wan").without_weights(config, TI2V)

    policy = policy_at(704)
    assert (policy.side, policy.latent_shape) == (32, (48, 31, 44, 80))
    latent = torch.empty(1, *policy.at_size((64, 96, 5)).latent_shape, device="meta")
    made = policy.pipeline.vae.decode(policy.vae_latents(latent), return_dict=False)[0]
    assert made.shape == (1, 3, 5, 64, 96)
    with pytest.raises(UserError, match="is 720 x 1280; this wan model needs multiples of 32"):
        policy_at(720)
