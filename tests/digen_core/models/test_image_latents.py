"""Latents of image files in place of samples: what each family's VAE makes of them, and back."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from diffusers import (
    FluxImg2ImgPipeline,
    QwenImageImg2ImgPipeline,
    StableDiffusion3Img2ImgPipeline,
    ZImageImg2ImgPipeline,
)
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution

from digen_core.config.families import FAMILIES, VIDEO_FAMILIES
from support.edits import source
from support.families import HEIGHT, WIDTH, load_tiny, tolerance_of

IMAGES = [source(0, WIDTH, HEIGHT), source(1, 60, 60)]
OF_IMAGES = [name for name in FAMILIES if name not in VIDEO_FAMILIES]
STOCK = {
    "flux": FluxImg2ImgPipeline,
    "sd3": StableDiffusion3Img2ImgPipeline,
    "qwen_image": QwenImageImg2ImgPipeline,
    "z_image": ZImageImg2ImgPipeline,
}
"""Stock pipelines that begin with the latents of an image."""


def shown(policy):
    """Return the images as the VAE is shown them, [2, 3, H, W] in [-1, 1]."""
    height, width, _ = policy.config.size
    pixels = np.stack([image.pixels(height, width) for image in IMAGES])
    return torch.from_numpy(pixels).movedim(-1, 1).to(policy.pipeline.vae.dtype) / 127.5 - 1


@pytest.fixture(scope="module", params=OF_IMAGES)
def policy(request, tiny_families):
    return load_tiny(tiny_families[request.param], request.param, "float64")


@torch.no_grad()
def test_what_is_decoded_is_what_the_vae_made_of_the_images(policy):
    x = policy.encode_samples(IMAGES)
    assert x.shape == (2, *policy.latent_shape)
    assert x.dtype == policy.latent_dtype
    vae, images = policy.pipeline.vae, shown(policy)
    if policy.config.family == "qwen_image21":  # whose pixels have an opacity: all of it
        images = torch.cat([images, torch.ones_like(images[:, :1])], dim=1)
    if policy.config.family.startswith("qwen_image"):
        images = images.unsqueeze(2)
    encoded = [vae.encode(images[row : row + 1]) for row in range(2)]
    own = torch.cat([e.latent if hasattr(e, "latent") else e.latent_dist.mode() for e in encoded])
    tolerance = tolerance_of(policy.config.family)
    torch.testing.assert_close(policy.vae_latents(x), own, rtol=0, atol=tolerance)
    assert own.std() > 1e-3


@torch.no_grad()
def test_every_latent_comes_back(policy, monkeypatch):
    """The inverse of ``vae_latents`` for any latents, not only those of some image."""
    x = torch.randn(3, *policy.latent_shape, dtype=policy.latent_dtype)
    own = policy.vae_latents(x)
    found = SimpleNamespace(latent=own, latent_dist=SimpleNamespace(mode=lambda: own))
    monkeypatch.setattr(policy.pipeline.vae, "encode", lambda images: found)
    again = policy.image_latents(torch.zeros(3, 3, 8, 8))
    torch.testing.assert_close(again, x, rtol=0, atol=1e-12)


def test_latents_do_not_depend_on_the_images_beside_them(policy):
    both = policy.encode_samples(IMAGES)
    assert torch.equal(policy.encode_samples(IMAGES[1:]), both[1:])
    assert not torch.equal(both[0], both[1])


def test_images_have_the_size_of_the_samples(policy):
    side = policy.side
    view = policy.at_size((2 * side, 4 * side, 1))
    assert view.encode_samples(IMAGES).shape == (2, *view.latent_shape)


@pytest.mark.parametrize("name", STOCK)
def test_latents_are_those_that_stock_pipelines_begin_with(name, tiny_families, monkeypatch):
    """Theirs are drawn from the VAE's distribution, ours are its mode."""
    policy = load_tiny(tiny_families[name], name)
    monkeypatch.setattr(DiagonalGaussianDistribution, "sample", lambda self, *_: self.mode())
    pipeline = STOCK[name](**policy.pipeline.components)
    monkeypatch.setattr(pipeline.scheduler, "scale_noise", lambda x, timestep, noise: x)
    taken = {
        "image": shown(policy),
        "timestep": torch.tensor([500.0]),
        "dtype": torch.float32,
        "device": policy.device,
        "generator": torch.Generator().manual_seed(0),
    }
    if name == "sd3":
        found = pipeline.prepare_latents(batch_size=2, num_images_per_prompt=1, **taken)
    else:
        channels = policy.pipeline.vae.config.get("latent_channels", 4)
        size = {"height": policy.config.height, "width": policy.config.width}
        found = pipeline.prepare_latents(
            batch_size=2, num_channels_latents=channels, **size, **taken
        )
    found = found[0] if isinstance(found, tuple) else found
    torch.testing.assert_close(policy.encode_samples(IMAGES), found, rtol=0, atol=1e-5)


def test_scale_and_shift_by_hand(tiny_families, monkeypatch):
    """With a shift of 0.1 and a scale of 1.5 a latent of 2.1 of the VAE is 3 of the policy's."""
    policy = load_tiny(tiny_families["sd3"], "sd3")
    config = SimpleNamespace(scaling_factor=1.5, shift_factor=0.1)
    mode = torch.full((1, *policy.latent_shape), 2.1)
    vae = SimpleNamespace(
        config=config,
        encode=lambda images: SimpleNamespace(latent_dist=SimpleNamespace(mode=lambda: mode)),
    )
    monkeypatch.setattr(policy, "pipeline", SimpleNamespace(vae=vae))
    found = policy.image_latents(torch.zeros(1, 3, 8, 8))
    torch.testing.assert_close(found, torch.full_like(mode, 3.0))


def test_families_of_videos_have_none(tiny_families):
    policy = load_tiny(tiny_families["wan"], "wan")
    with pytest.raises(TypeError, match="WanPolicy makes no latents of images"):
        policy.encode_samples(IMAGES)
