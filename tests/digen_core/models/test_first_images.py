"""Source images that videos begin with: what Wan makes of them, as its stock pipeline does."""

from io import BytesIO

import numpy as np
import pytest
import torch
from diffusers import WanImageToVideoPipeline
from PIL import Image

from digen_core.config.model import ModelConfig
from digen_core.config.rollout import RolloutConfig
from digen_core.data.prompts import Prompt
from digen_core.errors import ConfigError
from digen_core.models.families import adapter_of
from digen_core.models.families.wan import EMBEDDED_TOKENS, TEXT_TOKENS
from digen_core.models.policy import TRAINER_PARTS
from digen_core.preflight.model import check_model_folder
from digen_core.rollout.conditions import encoded
from digen_core.rollout.evaluation import sample_images
from digen_core.rollout.rows import Rows
from digen_core.rollout.sampler import denoise, initial_latent
from digen_core.seeding import EVALUATION_NOISE
from support.edits import check_counted_shapes, check_trainer, source
from support.families import NEGATIVE, OF_KIND, TOKENS, load_tiny
from support.stock import with_euler_steps

KINDS = ("wan-ti2v", "wan-i2v", "wan-i2v-a14b")
GIVEN = KINDS[0]
"""Whose first latent frame is the image."""
ATTENDS = KINDS[1]
"""Which attends to CLIP's tokens of the image, as Wan 2.1's do."""
HEIGHT, WIDTH = 64, 96
PROMPTS = [
    Prompt(text, images=(source(seed, WIDTH, HEIGHT),))
    for seed, text in enumerate(("a red circle", "two blue squares"))
]


def load_first(tiny_families, name, **changes):
    size = {"height": HEIGHT, "width": WIDTH, "source_image": True}
    return load_tiny(tiny_families[name], name, **size | changes)


def noise_of(policy, index):
    samples = {"samples": range(1), "purpose": EVALUATION_NOISE}
    return initial_latent(policy, seed=11, group=(0, index), **samples)


@pytest.mark.ci_but_one
@pytest.mark.parametrize("changes", [{}, {"guidance_scale": 1.0}], ids=["guided", "unguided"])
@pytest.mark.parametrize("name", KINDS)
def test_noiseless_videos_are_the_stock_pipelines(tiny_families, name, changes):
    policy = load_first(tiny_families, name, **changes)
    made = sample_images(policy, PROMPTS, range(2), num_samples=1, num_steps=3, seed=11)
    pipeline = WanImageToVideoPipeline.from_pretrained(tiny_families[name])
    pipeline.set_progress_bar_config(disable=True)
    for index, prompt in enumerate(PROMPTS):
        expected = with_euler_steps(pipeline)(
            prompt=[prompt.text],
            image=Image.open(BytesIO(prompt.images[0].content())),
            negative_prompt=[NEGATIVE],
            latents=noise_of(policy, index),
            num_inference_steps=3,
            height=HEIGHT,
            width=WIDTH,
            num_frames=5,
            max_sequence_length=TEXT_TOKENS if name == ATTENDS else TOKENS,
            output_type="pt",
            return_dict=False,
            **{"guidance_scale": 3.0, **OF_KIND.get(name, {}), **changes},
        )[0]
        assert expected.std() > 0.03
        torch.testing.assert_close(made[index : index + 1], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("length", [TOKENS, TEXT_TOKENS // 2, TEXT_TOKENS])
def test_an_images_tokens_are_attended_to_as_such_beside_texts_of_any_length(tiny_families, length):
    """diffusers takes what is before the last 512 for the image's; zeros follow a text."""
    policy = load_first(tiny_families, ATTENDS, max_sequence_length=length, guidance_scale=1.0)
    attention, read = policy.transformer.blocks[0].attn2, {}
    for name in ("add_k_proj", "to_k"):
        layer = getattr(attention, name)
        layer.register_forward_hook(lambda _, args, out, name=name: read.update({name: args[0]}))
    velocity = policy.velocity(
        noise_of(policy, 0), torch.tensor([0.6]), encoded(policy, PROMPTS[:1])
    )
    assert {name: own.shape[1] for name, own in read.items()} == {
        "add_k_proj": EMBEDDED_TOKENS,
        "to_k": TEXT_TOKENS,
    }
    whole = load_first(tiny_families, ATTENDS, max_sequence_length=TEXT_TOKENS, guidance_scale=1.0)
    condition = encoded(whole, PROMPTS[:1])
    expected = whole.velocity(noise_of(whole, 0), torch.tensor([0.6]), condition)
    torch.testing.assert_close(velocity, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", KINDS)
def test_another_image_makes_another_video(tiny_families, name):
    policy = load_first(tiny_families, name)
    others = [
        Prompt(own.text, images=(source(9 + n, WIDTH, HEIGHT),)) for n, own in enumerate(PROMPTS)
    ]
    one, two = (
        sample_images(policy, prompts, range(2), num_samples=1, num_steps=2, seed=11)
        for prompts in (PROMPTS, others)
    )
    assert ((one - two).flatten(1).abs().amax(1) > 1e-3).all()


@pytest.mark.parametrize("name", KINDS)
def test_each_value_has_the_shape_that_is_counted_in_any_size(tiny_families, name):
    policy = load_first(tiny_families, name)
    check_counted_shapes(policy, PROMPTS)


@pytest.mark.parametrize("name", KINDS)
def test_a_trainer_that_encodes_nothing_computes_the_same_velocity(tiny_families, name):
    policy = load_first(tiny_families, name)
    check_trainer(policy, PROMPTS)


def test_a_given_frame_ends_as_the_images_whatever_is_added_to_it(tiny_families):
    policy, sigmas = load_first(tiny_families, GIVEN), torch.tensor([1.0, 0.7, 0.3, 0.0])
    condition = encoded(policy, PROMPTS[:1])
    x = noise_of(policy, 0)
    for step in denoise(
        policy,
        x,
        condition,
        sigmas,
        steps=range(3),
        noisy_steps=(0, 1),
        config=RolloutConfig(num_steps=3),
        seed=0,
        rows=Rows.of((0, 0), range(1)),
    ):
        x = step.x_next
    torch.testing.assert_close(x[:, :, :1], condition["source_latents"], rtol=0, atol=1e-6)


def test_no_weight_learns_from_a_given_frame(tiny_families):
    policy = load_first(tiny_families, GIVEN)
    policy.transformer.requires_grad_(True)
    condition = encoded(policy, PROMPTS[:1])
    x = torch.randn(1, *policy.latent_shape)
    velocity = policy.velocity(x, torch.tensor([0.6]), condition)
    expected = (x[:, :, :1] - condition["source_latents"]) / 0.6
    torch.testing.assert_close(velocity[:, :, :1], expected)
    (gradient,) = torch.autograd.grad(
        velocity[:, :, :1].sum() + 0 * velocity.sum(), [policy.transformer.patch_embedding.weight]
    )
    assert not gradient.any()
    changed = x.clone()
    changed[:, :, 0] += 1
    again = policy.velocity(changed, torch.tensor([0.6]), condition)
    assert torch.equal(velocity[:, :, 1:], again[:, :, 1:])


def test_the_given_frames_are_told_by_four_channels(tiny_families):
    policy = load_first(tiny_families, "wan-i2v-a14b")
    shown = encoded(policy, PROMPTS[:1])["source_latents"]
    assert shown[:, :4, 0].eq(1).all()
    assert not shown[:, :4, 1:].any()
    assert np.ptp(shown[:, 4:].numpy()) > 0.1


@pytest.mark.parametrize(
    ("name", "source_image", "message"),
    [
        ("wan", True, "holds a WanPipeline, but prompts with source images need a WanImageToVideo"),
        ("wan-a14b", True, "holds a WanPipeline, but prompts with source images need a WanImage"),
        (
            "wan-i2v",
            False,
            "holds a WanImageToVideoPipeline, which is shown source images, but the",
        ),
    ],
)
def test_a_model_that_is_not_made_for_it_is_refused(tiny_families, name, source_image, message):
    size = {"height": HEIGHT, "width": WIDTH, "num_frames": 5}
    model = ModelConfig(family="wan", path=tiny_families[name], source_image=source_image, **size)
    with pytest.raises(ConfigError, match=message):
        check_model_folder(model)
    with pytest.raises(ConfigError, match=message):
        adapter_of("wan").load(model, TRAINER_PARTS)


def test_one_frame_that_is_given_is_no_video(tiny_families):
    with pytest.raises(ConfigError, match=r"num_frames is 1, and the first is the source"):
        load_first(tiny_families, GIVEN, num_frames=1)
