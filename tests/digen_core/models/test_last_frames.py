"""Last frames that are given, too: what Wan makes of them, as its stock pipeline does."""

from io import BytesIO

import pytest
import torch
from diffusers import WanImageToVideoPipeline
from PIL import Image

from digen_core.config.model import ModelConfig
from digen_core.data.prompts import Prompt
from digen_core.errors import ConfigError
from digen_core.models.families.wan import TEXT_TOKENS
from digen_core.preflight.model import check_model_folder
from digen_core.preflight.shown import check_shown
from digen_core.rollout.conditions import encoded
from digen_core.rollout.evaluation import sample_images
from digen_core.rollout.sampler import initial_latent
from digen_core.seeding import EVALUATION_NOISE
from support.edits import check_counted_shapes, check_trainer, source
from support.families import FLF2V, NEGATIVE, OF_KIND, TOKENS, load_tiny
from support.stock import with_euler_steps

A14B = "wan-i2v-a14b"
MODELS = (A14B, FLF2V)
HEIGHT, WIDTH = 64, 96
SIZE = {"height": HEIGHT, "width": WIDTH, "num_frames": 5}
TEXTS = ("a red circle", "two blue squares")
PROMPTS = [
    Prompt(text, images=(source(seed, WIDTH, HEIGHT), source(seed + 5, WIDTH, HEIGHT)))
    for seed, text in enumerate(TEXTS)
]


def load_both(tiny_families, name, **changes):
    return load_tiny(
        tiny_families[name],
        name,
        **{**SIZE, "source_image": True, "max_source_images": 2, **changes},
    )


def check_both(model):
    check_model_folder(model)
    check_shown(model, PROMPTS)


def made_by(policy, prompts, **settings):
    settings = {"num_samples": 1, "num_steps": 3, "seed": 11, **settings}
    return sample_images(policy, prompts, range(len(prompts)), **settings)


@pytest.mark.ci_but_one
@pytest.mark.parametrize("changes", [{}, {"guidance_scale": 1.0}], ids=["guided", "unguided"])
@pytest.mark.parametrize("frames", [5, 9])
@pytest.mark.parametrize("name", MODELS)
def test_noiseless_videos_are_the_stock_pipelines(tiny_families, name, frames, changes):
    policy = load_both(tiny_families, name, num_frames=frames, **changes)
    pipeline = WanImageToVideoPipeline.from_pretrained(tiny_families[name])
    pipeline.set_progress_bar_config(disable=True)
    for index, prompt in enumerate(PROMPTS):
        first, last = (Image.open(BytesIO(image.content())) for image in prompt.images)
        noise = {"samples": range(1), "purpose": EVALUATION_NOISE}
        expected = with_euler_steps(pipeline)(
            prompt=[prompt.text],
            image=first,
            last_image=last,
            negative_prompt=[NEGATIVE],
            latents=initial_latent(policy, seed=11, group=(0, index), **noise),
            num_inference_steps=3,
            height=HEIGHT,
            width=WIDTH,
            num_frames=frames,
            max_sequence_length=TEXT_TOKENS if name == FLF2V else TOKENS,
            output_type="pt",
            return_dict=False,
            **{"guidance_scale": 3.0, **OF_KIND.get(name, {}), **changes},
        )[0]
        assert expected.std() > 0.03
        made = sample_images(policy, [prompt], [index], num_samples=1, num_steps=3, seed=11)
        torch.testing.assert_close(made, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_which_image_is_the_last_counts(tiny_families, name):
    policy = load_both(tiny_families, name)
    one, other = PROMPTS[0], PROMPTS[1]
    changed = [
        Prompt(one.text, images=images)
        for images in (
            one.images,
            (one.images[0], other.images[1]),
            (other.images[0], one.images[1]),
            one.images[::-1],
        )
    ]
    noise = torch.randn(4, *policy.latent_shape)[:1].expand(4, -1, -1, -1, -1)
    found = policy.velocity(noise, torch.full([4], 0.9), encoded(policy, changed))
    for row in range(1, 4):
        assert (found[row] - found[0]).abs().max() > 1e-4, row


def test_where_the_last_is_not_given_the_first_alone_is(tiny_families):
    """As if the model were never shown one; beside prompts that have one, too."""
    both, alone = (load_both(tiny_families, A14B, max_source_images=n) for n in (2, 1))
    first = Prompt(TEXTS[0], images=PROMPTS[0].images[:1])
    expected = made_by(alone, [first])
    assert torch.equal(made_by(both, [first]), expected)
    mixed = made_by(both, [first, PROMPTS[1]])
    torch.testing.assert_close(mixed[:1], expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(mixed[1:], made_by(both, [PROMPTS[0], PROMPTS[1]])[1:])


@pytest.mark.parametrize("name", MODELS)
def test_the_given_frames_are_told_by_four_channels(tiny_families, name):
    """Of the first latent frame all, of the last one the last: of 9 frames the 1st and the 9th."""
    policy = load_both(tiny_families, name, num_frames=9)
    told = encoded(policy, PROMPTS[:1])["source_latents"][0, :4]
    assert told.amax((2, 3)).T.tolist() == [[1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 1]]
    assert told.amin((2, 3)).T.tolist() == told.amax((2, 3)).T.tolist()


@pytest.mark.parametrize("name", MODELS)
def test_each_value_has_the_shape_that_is_counted_in_any_size(tiny_families, name):
    policy = load_both(tiny_families, name)
    check_counted_shapes(policy, PROMPTS)


@pytest.mark.parametrize("name", MODELS)
def test_a_trainer_that_encodes_nothing_computes_the_same_velocity(tiny_families, name):
    policy = load_both(tiny_families, name)
    check_trainer(policy, PROMPTS)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("wan-ti2v", {}, "holds a WanPipeline, but prompts with several source images need a Wan"),
        ("wan", {}, "holds a WanPipeline, but prompts with several source images need a WanImage"),
        ("wan-i2v", {}, "max_source_images is 2, but .* is shown one image, which a video begins"),
        (FLF2V, {"max_source_images": 1}, "images is 1, but .* shown the last frame, too; use 2"),
        (A14B, {"num_frames": 1}, "num_frames is 1, and the first is the source image; use more"),
        (A14B, {"sizes": ((HEIGHT, WIDTH, 1),)}, "num_frames is 1, and the first is the source"),
    ],
)
def test_a_model_that_takes_no_last_frame_is_refused_before_the_start(
    tiny_families, name, changes, message
):
    model = ModelConfig(
        family="wan",
        path=tiny_families[name],
        **{**SIZE, "source_image": True, "max_source_images": 2, **changes},
    )
    with pytest.raises(ConfigError, match=message) as found:
        check_both(model)
    assert "\n" not in str(found.value)


def test_a_model_that_generates_behind_the_first_frame_is_shown_that_alone():
    index = {"_class_name": "WanImageToVideoPipeline", "expand_timesteps": True}
    model = ModelConfig(family="wan", path="x", source_image=True, max_source_images=2, **SIZE)
    model.with_images(1).require_pipeline(index)
    with pytest.raises(ConfigError, match=r"with expand_timesteps, which is shown one .* use 1"):
        model.require_pipeline(index)


def test_a_prompt_without_a_last_frame_is_refused_where_the_model_needs_one(tiny_families):
    model = ModelConfig(
        family="wan", path=tiny_families[FLF2V], source_image=True, max_source_images=2, **SIZE
    )
    check_shown(model, PROMPTS)
    first = Prompt("a", images=PROMPTS[0].images[:1], origin="films.jsonl line 3")
    with pytest.raises(ConfigError, match=r"films.jsonl line 3 has 1 source image, but .* shown 2"):
        check_shown(model, [*PROMPTS, first])
    check_shown(model.model_copy(update={"path": tiny_families[A14B]}), [*PROMPTS, first])
