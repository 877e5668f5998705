"""Source images: what models that edit make of them, as their stock pipelines do."""

import json
import shutil
from contextlib import nullcontext
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

from digen_core.config.model import ModelConfig
from digen_core.data.prompts import Prompt
from digen_core.errors import ConfigError, UserError
from digen_core.models.families import adapter_of
from digen_core.models.policy import TRAINER_PARTS
from digen_core.models.qwen_vl import tokens_of_picture
from digen_core.planning.model_settings import MODEL_CONFIGS
from digen_core.preflight.model import check_model_folder
from digen_core.rollout.conditions import encoded
from digen_core.rollout.evaluation import sample_images
from digen_core.rollout.sampler import initial_latent
from digen_core.seeding import EVALUATION_NOISE
from support.edits import picture, showing, source, write_edit_2511
from support.families import KONTEXT, NEGATIVE, QWEN_EDITORS, load_tiny
from support.flux2 import BEFORE_IN_DEV, write_dev
from support.stock import on_white, stock

pytestmark = pytest.mark.slow

QWEN = QWEN_EDITORS
TEXTS = ("a red circle", "two blue squares")
SIZE = {"height": 64, "width": 80}
PROMPTS = [Prompt(text, images=(source(seed, 80, 64),)) for seed, text in enumerate(TEXTS)]


@pytest.fixture(scope="module")
def editors(tiny_families, tmp_path_factory) -> dict[str, tuple[str, str]]:
    """Family and folder of each pipeline that is shown source images."""
    folder = tmp_path_factory.mktemp("edits")
    klein = tiny_families["flux2"]
    return {
        "kontext": ("flux", tiny_families[KONTEXT]),
        "klein": ("flux2", klein),
        "dev": ("flux2", write_dev(klein, folder / "dev")),
        **{name: (name, tiny_families[name]) for name in QWEN},
        "2511": (QWEN[1], write_edit_2511(folder / "2511")),
        "2.1": ("qwen_image21", tiny_families["qwen_image21"]),
    }


def load_editor(editors, name, **changes):
    family, path = editors[name]
    length = BEFORE_IN_DEV + 24 if name == "dev" else 24 + 25
    settings = {"source_image": True, "max_sequence_length": length, **SIZE, **changes}
    return load_tiny(path, family, **settings)


def noise_of_samples(policy, samples=((0, 0), (1, 0))):
    return torch.cat(
        [
            initial_latent(
                policy,
                seed=11,
                group=(0, index),
                samples=range(number, number + 1),
                purpose=EVALUATION_NOISE,
            )
            for index, number in samples
        ]
    )


def stock_call(editors, policy, name):
    """Return what calls the stock pipeline at the policy's settings."""
    pipeline, shown = stock(editors[name][1]), nullcontext()
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
        length = policy.config.max_sequence_length
        embeds, _ = pipeline.encode_prompt([NEGATIVE], max_sequence_length=length)
        settings |= {"negative_prompt_embeds": embeds}
    if policy.config.family == "qwen_image":
        of_policy = policy.pipeline.prompt_template_encode_start_idx
        pipeline.prompt_template_encode_start_idx = of_policy
        settings["true_cfg_scale"] = settings.pop("guidance_scale")
        settings["negative_prompt"] = NEGATIVE
        shown = showing(pipeline, **SIZE)

    if name == "2.1":  # which takes texts of any length, and latents of the published VAE's size
        del settings["max_sequence_length"]
        pipeline.vae_scale_factor = 8
        settings["true_cfg_scale"] = settings.pop("guidance_scale")
        settings["negative_prompt"] = [NEGATIVE]
        shown = showing(pipeline, **SIZE)

    def call(text, image, latent):
        packed = latent[None]
        if name in ("klein", "dev"):
            packed = packed.transpose(1, 2).reshape(1, -1, 4, 5)
        with shown:
            made = pipeline(prompt=[text], image=image, latents=packed, **settings).images
        return on_white(made) if name == "2.1" else made

    return call


@pytest.mark.ci_but_one
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        *((name, {}) for name in ("kontext", "klein", "dev", *QWEN, "2.1")),
        *((name, {"guidance_scale": 1.0}) for name in (*QWEN, "2.1")),
        ("2511", {}),
    ],
)
def test_noiseless_edits_are_the_stock_pipelines(editors, name, changes):
    policy = load_editor(editors, name, **changes)
    made = sample_images(policy, PROMPTS, range(2), num_samples=1, num_steps=3, seed=11)
    call = stock_call(editors, policy, name)
    for index, (latent, prompt) in enumerate(zip(noise_of_samples(policy), PROMPTS, strict=True)):
        image = Image.open(BytesIO(prompt.images[0].content()))
        expected = call(prompt.text, image, latent)
        assert expected.std() > 0.03
        torch.testing.assert_close(made[index : index + 1], expected, rtol=0, atol=1e-5)


SHOWN_SEVERAL = ["klein", "dev", QWEN[1], "2.1"]


@pytest.mark.ci_but_one
@pytest.mark.parametrize("name", SHOWN_SEVERAL)
def test_edits_of_several_images_are_the_stock_pipelines(editors, name):
    """Prompts with one, three and two of them in one batch of an evaluation."""
    changes = {} if name == "dev" else {"max_sequence_length": 110}
    policy = load_editor(editors, name, max_source_images=3, **changes)
    numbers, texts = (1, 3, 2), (*TEXTS, "a dog")
    prompts = [
        Prompt(text, images=tuple(source(10 * n + seed, 80, 64) for seed in range(n)))
        for text, n in zip(texts, numbers, strict=True)
    ]
    made = sample_images(policy, prompts, range(3), num_samples=2, num_steps=3, seed=11)
    call = stock_call(editors, policy, name)
    for place, prompt in enumerate(prompts):
        images = [Image.open(BytesIO(own.content())) for own in prompt.images]
        for number in range(2):
            (latent,) = noise_of_samples(policy, [(place, number)])
            expected = call(prompt.text, images, latent)
            found = made[2 * place + number : 2 * place + number + 1]
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["klein", QWEN[1], "2.1"])
def test_the_order_of_images_matters(editors, name):
    policy = load_editor(editors, name, max_source_images=2)
    images = source(1, 80, 64), source(2, 80, 64)
    one, two = (
        sample_images(
            policy, [Prompt(TEXTS[0], images=own)], [0], num_samples=1, num_steps=2, seed=1
        )
        for own in (images, images[::-1])
    )
    assert (one - two).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["klein", QWEN[1], "2.1"])
def test_the_condition_of_the_most_images_is_what_is_counted(editors, name):
    policy = load_editor(editors, name, max_source_images=3)
    most = encoded(policy, [Prompt(TEXTS[0], images=(source(0),) * 3)])
    blank, few = policy.blank_condition(1), encoded(policy, PROMPTS[:1])
    assert {n: (v.shape, v.dtype) for n, v in blank.items()} == {
        n: (v.shape, v.dtype) for n, v in most.items()
    }
    tokens = policy.latent_shape[0]
    assert (most["source_latents"].shape[1], few["source_latents"].shape[1]) == (3 * tokens, tokens)
    assert most["prompt_embeds"].shape == few["prompt_embeds"].shape


@pytest.mark.parametrize("name", QWEN)
def test_an_editor_of_one_image_is_shown_no_two(editors, name):
    settings = {"source_image": True, "max_source_images": 2, **SIZE}
    model = ModelConfig(family="qwen_image", path=editors[name][1], **settings)
    if name == QWEN[1]:
        return check_model_folder(model)
    with pytest.raises(ConfigError, match="QwenImageEditPipeline, but prompts with several source"):
        check_model_folder(model)


@pytest.mark.parametrize("name", ["kontext", "klein", *QWEN, "2.1"])
def test_another_image_makes_another_edit(editors, name):
    policy = load_editor(editors, name)
    others = [Prompt(own.text, images=(source(9 + n, 80, 64),)) for n, own in enumerate(PROMPTS)]
    one, two = (
        sample_images(policy, prompts, range(2), num_samples=1, num_steps=2, seed=11)
        for prompts in (PROMPTS, others)
    )
    assert ((one - two).flatten(1).abs().amax(1) > 1e-3).all()


@pytest.mark.parametrize("name", ["kontext", "klein", *QWEN, "2.1"])
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


@pytest.mark.parametrize("name", ["kontext", "klein", *QWEN, "2.1"])
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


def test_an_editor_of_qwen_takes_no_prompts_without_images(editors):
    model = ModelConfig(family="qwen_image", path=editors[QWEN[0]][1], **SIZE)
    message = "QwenImageEditPipeline, which is shown source images, but the prompts come without;"
    with pytest.raises(ConfigError, match=message):
        check_model_folder(model)
    with pytest.raises(ConfigError, match=message):
        adapter_of("qwen_image").load(model, TRAINER_PARTS)


@pytest.mark.parametrize("name", QWEN)
def test_the_text_encoder_is_shown_the_image_in_both_halves_of_guidance(editors, name):
    policy = load_editor(editors, name, max_sequence_length=100)
    one = encoded(policy, PROMPTS[:1])
    two = encoded(policy, [Prompt(TEXTS[0], images=(source(9, 80, 64),), negative="a dog")])
    like = encoded(policy, [Prompt(TEXTS[0], images=(source(9, 80, 64),))])
    for found in ("prompt_embeds", "negative_prompt_embeds"):
        assert (one[found] - like[found]).abs().max() > 1e-3
    assert torch.equal(two["prompt_embeds"], like["prompt_embeds"])
    assert not torch.equal(two["negative_mask"], like["negative_mask"])


@pytest.mark.parametrize("name", QWEN)
def test_tokens_of_an_image_do_not_count_as_words(editors, name):
    policy = load_editor(editors, name, max_sequence_length=100)
    condition, (counted,) = encoded(policy, PROMPTS[:1]), policy.num_tokens(list(TEXTS[:1]), [1])
    height, width = policy._size_as_read()
    assert int(condition["mask"].sum()) == counted + tokens_of_picture(height, width)
    around = (
        len("<>\n<>assistant\n") - 2 if name == QWEN[0] else len("<>\n<>assistant\nPicture 1: ") - 2
    )
    assert counted == len(TEXTS[0]) + around


@pytest.mark.parametrize("name", QWEN)
def test_a_prompt_with_a_picture_of_its_own_is_refused(editors, name):
    policy = load_editor(editors, name)
    for about in (
        {"text": "a <|image_pad|>"},
        {"text": "a", "negative": "<|image_pad|>"},
        {"text": "<|vision_start|><|video_pad|><|vision_end|>"},
    ):
        with pytest.raises(UserError, match=r"has <\|.*_pad\|> in it, where the text encoder is"):
            encoded(policy, [Prompt(images=(source(0),), **about)])


def test_a_size_whose_text_has_no_positions_is_refused():
    model = ModelConfig(family="qwen_image", path="x", source_image=True, height=2048, width=2048)
    with pytest.raises(ConfigError, match=r"5864 tokens with the source images', but .* for 4032"):
        adapter_of("qwen_image").without_weights(model, MODEL_CONFIGS / "Qwen-Image-Edit")


def test_a_shape_that_the_text_encoder_does_not_take_is_refused():
    model = ModelConfig(family="qwen_image", path="x", source_image=True, height=16, width=3216)
    with pytest.raises(ConfigError, match="16 x 3216; this model is shown images of at most 200"):
        adapter_of("qwen_image").without_weights(model, MODEL_CONFIGS / "Qwen-Image-Edit-2509")
    longest = model.at_size((16, 3200, 1))
    policy = adapter_of("qwen_image").without_weights(longest, MODEL_CONFIGS / "Qwen-Image-Edit")
    assert policy.blank_condition(1)["source_latents"].shape == (1, 200, 64)


def test_a_processor_as_it_is_published_is_read(editors, tmp_path):
    """Its settings are in files of their own, and it is the fast one."""
    folder = tmp_path / "model"
    shutil.copytree(editors[QWEN[0]][1], folder)
    whole = folder / "processor" / "processor_config.json"
    own = json.loads(whole.read_text())["image_processor"]
    whole.unlink()
    own["image_processor_type"] = "Qwen2VLImageProcessorFast"
    (folder / "processor" / "preprocessor_config.json").write_text(json.dumps(own))
    policies = [load_tiny(str(path), QWEN[0], **SIZE) for path in (folder, editors[QWEN[0]][1])]
    found, expected = (encoded(policy, PROMPTS) for policy in policies)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.nightly
@pytest.mark.parametrize("name", QWEN)
def test_edits_of_a_megapixel_are_the_stock_pipelines_as_it_is(editors, name):
    size = {"height": 768, "width": 1376}  # what the pipelines make of 16 : 9
    policy = load_editor(editors, name, **size)
    prompt = Prompt(TEXTS[0], images=(source(1, size["width"], size["height"]),))
    made = sample_images(policy, [prompt], [0], num_samples=1, num_steps=2, seed=11)
    pipeline = stock(editors[name][1])
    own = policy.pipeline.prompt_template_encode_start_idx
    pipeline.prompt_template_encode_start_idx = own
    expected = pipeline(
        prompt=[prompt.text],
        image=Image.open(BytesIO(prompt.images[0].content())),
        latents=noise_of_samples(policy)[:1],
        negative_prompt=NEGATIVE,
        true_cfg_scale=3.0,
        num_inference_steps=2,
        output_type="pt",
        **size,
    ).images
    torch.testing.assert_close(made, expected, rtol=0, atol=1e-5)


def test_kontext_without_images_is_flux(editors, tiny_families):
    x, sigma = torch.randn(2, 20, 16), torch.tensor([0.3, 0.8])
    found = []
    for path in (tiny_families["flux"], editors["kontext"][1]):
        policy = load_tiny(path, "flux", **SIZE)
        found.append(policy.velocity(x, sigma, policy.encode(list(TEXTS))))
    assert torch.equal(*found)


def test_pictures_differ():
    assert picture(0) != picture(1)
