"""Clean latents as rewards take them: where the VAE has them, at the scale of the transformer."""

import re

import pytest
import torch

from digen_core.config.families import FAMILIES, VIDEO_FAMILIES
from digen_core.config.model import ModelConfig
from digen_core.models.families import adapter_of
from digen_core.planning.model_settings import settings_folder
from support.families import (
    HEIGHT,
    MODELS,
    PUBLISHED,
    WIDTH,
    family_of,
    frames_of,
    load_tiny,
)
from support.paths import ROOT

COUNT = 3


def noise(policy, dtype=torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(COUNT, *policy.latent_shape, generator=generator, dtype=dtype)


@pytest.mark.ci_but_one
@pytest.mark.parametrize("model", MODELS)
def test_they_are_the_same_numbers_where_the_vae_has_them(model, tiny_families):
    policy = load_tiny(tiny_families[model], model)
    x = noise(policy)
    found = policy.latents(x)
    assert torch.equal(found.flatten(1).sort().values, x.flatten(1).sort().values)
    frames = frames_of(model)
    pixels = torch.rand(1, 3, *[frames] * (family_of(model) in VIDEO_FAMILIES), HEIGHT, WIDTH)
    is_qwen = family_of(model) in ("qwen_image", "qwen_image21")
    if is_qwen:
        pixels = pixels[:, :, None]
    if family_of(model) == "qwen_image21":  # with an opacity
        pixels = torch.cat([pixels, pixels[:, :1]], dim=1)
    encoded = policy.pipeline.vae.encode(pixels)
    grid = encoded.latent if hasattr(encoded, "latent") else encoded.latent_dist.mode()
    grid = grid[:, :, 0] if is_qwen else grid
    assert found.shape == (COUNT, *grid.shape[1:])


@pytest.mark.parametrize("model", MODELS)
def test_the_vae_gets_each_of_them_on_a_line(model, tiny_families):
    """Only scale and shift lie between: one for all, by channel, or by channel in 2 x 2 places."""
    policy = load_tiny(tiny_families[model], model, "float64")
    x = noise(policy, torch.float64)
    found, given = policy.unpacked(x), policy.vae_latents(x)
    assert found.shape == given.shape
    for row in range(2):
        for column in range(2):
            one, other = (
                v[..., row::2, column::2].movedim(1, 0).flatten(1) for v in (found, given)
            )
            slope = ((one - one.mean(1, True)) * other).sum(1) / one.var(1, correction=0)
            slope = slope[:, None] / one.shape[1]
            shift = other.mean(1, True) - slope * one.mean(1, True)
            assert (slope > 0).all()
            torch.testing.assert_close(other, slope * one + shift, rtol=0, atol=1e-9)


def test_what_comes_from_a_store_of_half_precision_is_decoded_as_what_was_put_there(tiny_families):
    policy = load_tiny(tiny_families["sd3"], "sd3", "float64")
    x = noise(policy).half().float()
    assert torch.equal(policy.decode(x), policy.decode(x.double()))


@pytest.mark.parametrize("model", ["flux", "flux2", "qwen_image"])
def test_where_a_number_of_a_token_belongs(model, tiny_families):
    """Token r of 2 x 3, its number 4 c + 2 i + j: channel c, row 2 r // 3 + i."""
    policy = load_tiny(tiny_families[model], model)
    x = noise(policy)
    found, columns = policy.latents(x), WIDTH // 16
    token, channel, row, column = columns + 2, 1, 1, 0
    assert found.ndim == 4
    place = 2 * (token // columns) + row, 2 * (token % columns) + column
    assert found[(2, channel, *place)] == x[2, token, 4 * channel + 2 * row + column]


def test_of_one_frame_there_is_no_axis_of_frames(tiny_families):
    policy = load_tiny(tiny_families["wan"], "wan", num_frames=1)
    x = noise(policy)
    assert x.shape[2] == 1
    assert torch.equal(policy.latents(x), x[:, :, 0])


def test_they_are_float32_whatever_the_model_is(tiny_families):
    policy = load_tiny(tiny_families["flux"], "flux", "float64")
    assert policy.latents(noise(policy, torch.float64)).dtype == torch.float32


def _documented() -> dict[str, str]:
    page = (ROOT / "docs/rewards.md").read_text()
    return dict(re.findall(r"^\| `(\w+)` \| (C = \d.*?) \|$", page, re.MULTILINE))


def test_every_familys_latents_are_documented():
    assert _documented().keys() == FAMILIES.keys()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_documented_shapes_are_those_of_published_models(family):
    frames = 1 if family not in VIDEO_FAMILIES else 81
    size = {"height": 512, "width": 768, "num_frames": frames}
    config = ModelConfig(family=family, path=f"a/{PUBLISHED[family]}", **size)
    policy = adapter_of(family).without_weights(config, settings_folder(config.path))
    shape = policy.latents(torch.empty(1, *policy.latent_shape, device="meta")).shape[1:]
    text = _documented()[family]
    channels, side = (int(re.search(rf"{name}(\d+)", text)[1]) for name in ("C = ", "H / "))
    times = re.search(r"\(F - 1\) / (\d+)", text)
    expected = [1 + 80 // int(times[1])] if times else []
    assert [*shape] == [channels, *expected, 512 // side, 768 // side]
