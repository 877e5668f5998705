"""Source images: what FLUX.1 Kontext and FLUX.2 make of them, as their stock pipelines do."""

from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

from digen_core.config.model import ModelConfig
from digen_core.data.prompts import Prompt
from digen_core.errors import ConfigError
from digen_core.models.families import adapter_of
from digen_core.models.policy import TRAINER_PARTS
from digen_core.preflight.model import check_model_folder
from digen_core.rollout.conditions import encoded
from digen_core.rollout.evaluation import sample_images
from digen_core.rollout.sampler import initial_latent
from digen_core.seeding import EVALUATION_NOISE
from support.edits import picture, source, write_kontext
from support.families import NEGATIVE, load_tiny, stock
from support.flux2 import BEFORE_IN_DEV, write_dev

TEXTS = ("a red circle", "two blue squares")
SIZE = {"height": 64, "width": 80}
PROMPTS = [Prompt(text, image=source(seed, 80, 64)) for seed, text in enumerate(TEXTS)]


@pytest.fixture(scope="module")
def editors(tiny_families, tmp_path_factory) -> dict[str, tuple[str, str]]:
    """Family and folder of each pipeline that is shown source images."""
    folder = tmp_path_factory.mktemp("edits")
    klein = tiny_families["flux2"]
    return {
        "kontext": ("flux", write_kontext(tiny_families["flux"], folder / "kontext")),
        "klein": ("flux2", klein),
        "dev": ("flux2", write_dev(klein, folder / "dev")),
    }


def load_editor(editors, name, **changes):
    family, path = editors[name]
    length = BEFORE_IN_DEV + 24 if name == "dev" else 24 + 25
    settings = {"source_image": True, "max_sequence_length": length, **SIZE, **changes}
    return load_tiny(path, family, **settings)


def noise_of_samples(policy):
    return torch.cat(
        [
            initial_latent(
                policy, seed=11, group=(0, i), samples=range(1), purpose=EVALUATION_NOISE
            )
            for i in range(2)
        ]
    )


@pytest.mark.parametrize("name", ["kontext", "klein", "dev"])
def test_noiseless_edits_are_the_stock_pipelines(editors, name):
    policy = load_editor(editors, name)
    made = sample_images(policy, PROMPTS, range(2), num_samples=1, num_steps=3, seed=11)
    noise, pipeline = noise_of_samples(policy), stock(editors[name][1])
    settings = {
        "guidance_scale": policy.config.guidance_scale,
        "num_inference_steps": 3,
        "max_sequence_length": policy.config.max_sequence_length,
        "output_type": "pt",
        **SIZE,
    }
    if name == "kontext":
        settings |= {"_auto_resize": False, "max_area": 64 * 80}
    if name == "klein":
        embeds, _ = pipeline.encode_prompt([NEGATIVE], max_sequence_length=49)
        settings |= {"negative_prompt_embeds": embeds}
    for index, (latent, prompt) in enumerate(zip(noise, PROMPTS, strict=True)):
        packed = latent[None]
        if name != "kontext":
            packed = packed.transpose(1, 2).reshape(1, -1, 4, 5)
        image = Image.open(BytesIO(prompt.image.content()))
        expected = pipeline(prompt=[prompt.text], image=image, latents=packed, **settings).images
        assert expected.std() > 0.03
        torch.testing.assert_close(made[index : index + 1], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["kontext", "klein"])
def test_another_image_makes_another_edit(editors, name):
    policy = load_editor(editors, name)
    others = [Prompt(own.text, image=source(9 + n, 80, 64)) for n, own in enumerate(PROMPTS)]
    one, two = (
        sample_images(policy, prompts, range(2), num_samples=1, num_steps=2, seed=11)
        for prompts in (PROMPTS, others)
    )
    assert ((one - two).flatten(1).abs().amax(1) > 1e-3).all()


@pytest.mark.parametrize("name", ["kontext", "klein"])
def test_the_image_is_shown_in_the_size_of_the_samples(editors, name):
    policy = load_editor(editors, name)
    size = 32, 48, 1
    view = policy.at_size(size)
    condition = encoded(view, PROMPTS)
    assert condition["source_latents"].shape == (2, *view.latent_shape)
    blank = view.blank_condition(2)
    assert {n: (v.shape, v.dtype) for n, v in blank.items()} == {
        n: (v.shape, v.dtype) for n, v in condition.items()
    }
    x = torch.randn(2, *view.latent_shape)
    assert view.velocity(x, torch.tensor([0.3, 0.8]), condition).shape == x.shape


def test_a_larger_image_is_scaled_to_cover_and_cut_at_its_edges():
    image = source(3, width=200, height=64)
    shown = image.pixels(32, 32)
    whole = Image.open(BytesIO(image.content())).resize((100, 32), Image.Resampling.LANCZOS)
    middle = np.asarray(whole.crop((34, 0, 66, 32))).astype(float)
    assert shown.shape == (32, 32, 3)
    assert abs(shown - middle).mean() < 2


@pytest.mark.parametrize("name", ["kontext", "klein"])
def test_a_trainer_that_encodes_nothing_computes_the_same_velocity(editors, name):
    policy = load_editor(editors, name)
    trainer = adapter_of(policy.config.family).load(policy.config, TRAINER_PARTS)
    x, sigma = torch.randn(2, *policy.latent_shape), torch.tensor([0.3, 0.8])
    condition = encoded(policy, PROMPTS)
    assert torch.equal(trainer.velocity(x, sigma, condition), policy.velocity(x, sigma, condition))


def test_a_pipeline_that_is_shown_none_is_refused(tiny_families):
    model = ModelConfig(family="flux", path=tiny_families["flux"], source_image=True, **SIZE)
    message = "holds a FluxPipeline, but prompts with source images need a FluxKontextPipeline;"
    with pytest.raises(ConfigError, match=message):
        check_model_folder(model)
    with pytest.raises(ConfigError, match=message):
        adapter_of("flux").load(model, TRAINER_PARTS)


def test_kontext_without_images_is_flux(editors, tiny_families):
    x, sigma = torch.randn(2, 20, 16), torch.tensor([0.3, 0.8])
    found = []
    for path in (tiny_families["flux"], editors["kontext"][1]):
        policy = load_tiny(path, "flux", **SIZE)
        found.append(policy.velocity(x, sigma, policy.encode(list(TEXTS))))
    assert torch.equal(*found)


def test_pictures_differ():
    assert picture(0) != picture(1)
