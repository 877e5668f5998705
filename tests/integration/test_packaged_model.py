"""What a package for MLflow predicts: the pipeline's own images, with the run's settings."""

import io
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import MappingProxyType

import diffusers
import mlflow
import numpy as np
import pandas
import pytest
import torch
from diffusers import DiffusionPipeline, WanImageToVideoPipeline, WanTransformer3DModel
from PIL import Image, ImageSequence

from digen_core.checkpoints.export import save_adapter, save_transformer
from digen_core.config.families import VIDEO_FAMILIES
from digen_core.config.run import RunConfig
from digen_core.config.train import LoraConfig
from digen_core.data.images import SourceImage
from digen_core.models.families import adapter_of
from digen_core.models.trainable import make_trainable, set_weights
from support.edits import picture, showing
from support.families import (
    DISTILLED,
    EDITED,
    HEIGHT,
    KONTEXT,
    MODELS,
    NEGATIVE,
    OF_KIND,
    QWEN_EDITORS,
    TOKENS,
    WIDTH,
    family_of,
    frames_of,
    load_tiny,
    sliced,
)
from support.stock import (
    each_alone,
    isolated,
    load_adapters,
    prepared_hunyuan_15,
    processor_of,
    saved_transformers,
    stock,
)
from support.tiny_policies import moved_weights
from tasks.tracking import trained_pipeline
from tasks.tracking.model import package

LORA = LoraConfig(rank=3, alpha=10)
PROMPTS = ["a red circle", "two blue squares"]


def trained(folder, family, out, seed=0, **model):
    """Save an adapter that was moved."""
    policy = load_tiny(folder, family, **model)
    torch.manual_seed(seed)  # of what peft draws
    make_trainable(policy, LORA)
    set_weights(policy, moved_weights(policy, seed=seed, scale=0.05))
    save_adapter(policy, out)


def packaged(folder, family, weights, out, lora=MappingProxyType({"rank": 3}), **model):
    """Return the model that MLflow loads of a run's package."""
    sizes = {"height": HEIGHT, "width": WIDTH, "num_frames": frames_of(family)}
    settings = {
        **sizes,
        "family": family_of(family),
        "path": folder,
        "guidance_scale": 3.0,
        "max_sequence_length": TOKENS,
        "negative_prompt": NEGATIVE,
        **OF_KIND.get(family, {}),
        **model,
    }
    train = {"lora": lora and dict(lora)}
    steps = {"rollout": {"num_steps": 3}, "evaluation": {"num_steps": 3}}
    tree = {"model": settings, "train": train, **steps}
    package(RunConfig.model_validate(tree), weights, out)
    return mlflow.pyfunc.load_model(str(out), model_config={"device": "cpu"})


def pixels_of(encoded):
    with Image.open(io.BytesIO(encoded)) as image:
        has_opacity = image.format == "PNG" and image.mode == "RGBA"
        frames = [
            np.asarray(frame if has_opacity else frame.convert("RGB"))
            for frame in ImageSequence.Iterator(image)
        ]
    return np.stack(frames)


def expected_of(pipeline, family, prompts, **call):
    """Return uint8 [B, F, H, W, 3] of a stock pipeline, called as its documentation says."""
    guidance = adapter_of(family_of(family)).guidance_argument
    call = {"height": HEIGHT, "width": WIDTH, "max_sequence_length": TOKENS, guidance: 3.0} | call
    call |= OF_KIND.get(family, {})
    if family_of(family) in VIDEO_FAMILIES:
        call["num_frames"] = frames_of(family)
    negatives = [NEGATIVE] * len(prompts)
    if family == "flux2":
        embeds, _ = pipeline.encode_prompt(negatives, max_sequence_length=TOKENS)
        call["negative_prompt_embeds"] = embeds.detach()
    elif family != "hunyuan_video":  # whose pipeline takes none
        call["negative_prompt"] = negatives
    if family == "hunyuan_video15":
        call = prepared_hunyuan_15(pipeline, call)
    call |= {"num_inference_steps": 3, "output_type": "pil"}
    if family == "qwen_image21":  # each image stands behind its own prompt, which is cut
        calls = each_alone(pipeline, prompts, call)
    else:
        calls = [{"prompt": list(prompts), **call}]  # Z-Image's writes into it
    made = [pipeline(**own, generator=torch.Generator().manual_seed(5)) for own in calls]
    makes_videos = family_of(family) in VIDEO_FAMILIES
    videos = [
        frames
        for own in made
        for frames in (own.frames if makes_videos else [[image] for image in own.images])
    ]
    return np.stack([np.stack([np.asarray(frame) for frame in frames]) for frames in videos])


@pytest.fixture
def stock_processor(monkeypatch):
    """What is packaged loads one that does without torchvision, if that is not there."""

    class Loading(DiffusionPipeline):
        @staticmethod
        def from_pretrained(folder, **settings):
            processor = processor_of(folder)
            own = {"processor": processor} if processor else {}
            return DiffusionPipeline.from_pretrained(folder, **settings, **own)

    monkeypatch.setattr(diffusers, "DiffusionPipeline", Loading)


@pytest.mark.parametrize("family", sliced(MODELS))
def test_every_familys_package_predicts_what_its_pipeline_draws(
    family, tiny_families, tmp_path, stock_processor
):
    folder, weights = tiny_families[family], tmp_path / "lora"
    # two pipelines take multiples of 32; one draws in others unless asked, one guides in more ways
    own = {"sana": {"use_resolution_binning": False}, "ltx2": trained_pipeline.PLAIN_GUIDANCE}
    row = family_of(family)
    size, call = ({"width": 64}, own[row]) if row in own else ({}, {})
    trained(folder, family, weights, **size)
    model = packaged(folder, family, weights, tmp_path / "model", **size)
    found = np.stack(
        [pixels_of(one) for one in model.predict({"prompt": PROMPTS}, params={"seed": 5})]
    )
    pipeline = isolated(stock(folder)) if row == "ltx2" else stock(folder)
    before = expected_of(pipeline, family, PROMPTS, **size, **call)
    load_adapters(pipeline, weights)
    expected = expected_of(pipeline, family, PROMPTS, **size, **call)
    channels = 4 if family == "qwen_image21" else 3  # with an opacity
    assert expected.shape == (2, frames_of(family), HEIGHT, size.get("width", WIDTH), channels)
    np.testing.assert_array_equal(found, expected)
    assert (before != expected).any()


def test_several_may_ask_at_once(tiny_families, tmp_path):
    """As of MLflow's server, which answers each request in a thread of its own."""
    folder, weights = tiny_families["flux"], tmp_path / "lora"
    trained(folder, "flux", weights)
    model = packaged(folder, "flux", weights, tmp_path / "model")
    asked = [{"seed": seed, "num_inference_steps": 2 + seed % 3} for seed in range(6)]

    def draw(params):
        return model.predict({"prompt": PROMPTS[:1]}, params=params)

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(draw, asked)) == [draw(params) for params in asked]


def test_all_weights_of_both_experts_are_predicted_with(tiny_families, tmp_path):
    name, folder, weights = "wan-a14b", tiny_families["wan-a14b"], tmp_path / "transformer"
    policy = load_tiny(folder, name)
    make_trainable(policy, None)
    moved = moved_weights(policy, scale=0.02)
    weights.mkdir()
    save_transformer(policy.transformer, weights, moved)
    model = packaged(folder, name, weights, tmp_path / "model", lora=None)
    found = [pixels_of(one) for one in model.predict({"prompt": PROMPTS}, params={"seed": 5})]
    pipeline = stock(folder)
    for part, where in saved_transformers(pipeline, weights).items():
        pipeline.register_modules(**{part: WanTransformer3DModel.from_pretrained(where)})
    np.testing.assert_array_equal(np.stack(found), expected_of(pipeline, name, PROMPTS))


def test_adapters_that_a_run_started_from_are_folded_in(tiny_families, tmp_path):
    folder, turbo, weights = tiny_families["flux"], tmp_path / "turbo", tmp_path / "lora"
    trained(folder, "flux", turbo)
    adapters = {"turbo": {"path": str(turbo), "weight": 0.5}}
    trained(folder, "flux", weights, seed=1, adapters=adapters)
    model = packaged(folder, "flux", weights, tmp_path / "model", adapters=adapters)
    found = [pixels_of(one) for one in model.predict({"prompt": PROMPTS}, params={"seed": 5})]
    pipeline = stock(folder)
    pipeline.load_lora_weights(turbo, adapter_name="turbo")
    pipeline.load_lora_weights(weights, adapter_name="trained")
    pipeline.set_adapters(["turbo", "trained"], [0.5, 1.0])
    expected = expected_of(pipeline, "flux", PROMPTS).astype(int)
    assert np.abs(np.stack(found) - expected).max() <= 1  # it is folded in other arithmetic
    pipeline.set_adapters(["trained"])
    assert np.abs(expected_of(pipeline, "flux", PROMPTS) - expected).max() > 1


@pytest.mark.parametrize("family", ["flux", "wan", "ltx2"])
def test_a_schedule_of_ones_own_goes_with_the_model(family, tiny_families, tmp_path):
    """Of pipelines whose call takes noise levels, takes a number of steps only, and shifts them."""
    folder, weights, size = tiny_families[family], tmp_path / "lora", {"width": 64}
    trained(folder, family, weights, **size)
    model = packaged(folder, family, weights, tmp_path / "model", shift=3.0, **size)
    pipeline = model.get_raw_model()
    model.predict({"prompt": ["a red circle"]})
    sigmas = load_tiny(folder, family, shift=3.0, **size).sigmas(3)
    torch.testing.assert_close(pipeline.scheduler.sigmas, sigmas)


@pytest.mark.parametrize("family", ["flux", "wan", "ltx2-2.3"])
def test_named_noise_levels_go_with_the_model(family, tiny_families, tmp_path):
    """Of pipelines whose call takes noise levels, shifts them, and takes none."""
    folder, weights, levels = tiny_families[family], tmp_path / "lora", (1.0, 0.975, 0.421875)
    size = {"width": 64}
    trained(folder, family, weights, **size)
    model = packaged(folder, family, weights, tmp_path / "model", sigmas=levels, **size)
    pipeline = model.get_raw_model()
    (found,) = model.predict({"prompt": PROMPTS[:1]}, params={"seed": 5})
    assert torch.equal(pipeline.scheduler.sigmas, torch.tensor([*levels, 0.0]))
    plain = packaged(folder, family, weights, tmp_path / "plain", **size)
    (other,) = plain.predict({"prompt": PROMPTS[:1]}, params={"seed": 5})
    assert (pixels_of(found) != pixels_of(other)).any()


def test_a_model_in_a_variant_is_loaded_as_the_plain_one(tiny_families, tmp_path):
    trained(tiny_families["sd3"], "sd3", tmp_path / "lora")
    stock(tiny_families["sd3"]).save_pretrained(tmp_path / "fp16", variant="fp16")
    found, expected = (
        packaged(str(folder), "sd3", tmp_path / "lora", tmp_path / name).predict(
            {"prompt": PROMPTS}, params={"seed": 5}
        )
        for name, folder in (("a", tmp_path / "fp16"), ("b", tiny_families["sd3"]))
    )
    assert found == expected


def test_an_editor_is_given_several_images(tiny_families, tmp_path):
    path, size = tiny_families["flux2"], {"height": 64, "width": 80}
    trained(path, "flux2", tmp_path / "lora", source_image=True, **size)
    tree = {
        "model": {"family": "flux2", "path": path, "max_source_images": 2, **size},
        "prompts": EDITED,
        "train": {"lora": {"rank": 3}},
        "evaluation": {"num_steps": 2},
    }
    package(RunConfig.model_validate(tree), tmp_path / "lora", tmp_path / "model")
    model = mlflow.pyfunc.load_model(str(tmp_path / "model"), model_config={"device": "cpu"})
    images = [[picture(0, 80, 64), picture(1, 80, 64)], [picture(0, 80, 64)]]
    data = pandas.DataFrame({"prompt": PROMPTS[:1] * 2, "image": images})
    both, one = (pixels_of(own)[0].astype(int) for own in model.predict(data, params={"seed": 3}))
    pipeline = stock(path)
    pipeline.load_lora_weights(str(tmp_path / "lora"))
    expected = pipeline(
        prompt=PROMPTS[0],
        image=[Image.open(io.BytesIO(own)) for own in images[0]],
        num_inference_steps=2,
        generator=torch.Generator().manual_seed(3),
        **size,
    ).images[0]
    assert np.abs(both - np.asarray(expected)).max() <= 1 < np.abs(both - one).max()


def test_flux2_is_shown_images_as_large_as_samples(tiny_families):
    """By itself its pipeline shrinks those of more than 1024 x 1024 pixels."""
    pipeline, size = stock(tiny_families["flux2"]), (1200, 1024)
    shown = []

    def note(images, **size):
        shown.append((*images.size, size["width"], size["height"]))
        raise LookupError

    pipeline.image_processor.preprocess = note
    for as_in_the_run in (nullcontext(), trained_pipeline._showing(pipeline, size)):
        with as_in_the_run, pytest.raises(LookupError):
            pipeline(prompt="a red circle", image=Image.new("RGB", size))
    assert shown == [(1108, 945, 1104, 944), (1200, 1024, 1200, 1024)]


def test_the_scale_of_qwen_image_guides(tiny_families, tmp_path):
    """Its pipeline takes a ``guidance_scale``, too, which is for models distilled with one."""
    folder, weights = tiny_families["qwen_image"], tmp_path / "lora"
    trained(folder, "qwen_image", weights)
    length = {"max_sequence_length": 400}  # the stock pipeline keeps part of the template
    model = packaged(folder, "qwen_image", weights, tmp_path / "model", **length)
    weak, strong = (
        pixels_of(model.predict({"prompt": PROMPTS[:1]}, params={"guidance_scale": scale})[0])
        for scale in (1.5, 30.0)
    )
    assert (weak != strong).any()


@pytest.mark.parametrize(
    ("family", "scale"),
    [
        ("ltx2", "guidance_scale"),
        pytest.param("wan-a14b", "guidance_scale_2", marks=pytest.mark.families),
    ],
)
def test_a_scale_of_0_is_no_guidance(tiny_families, tmp_path, family, scale):
    """As in the run; these pipelines would draw what the negative prompt says."""
    folder, size = tiny_families[family], {"width": 64}
    trained(folder, family, tmp_path / "lora", **size)
    model = packaged(folder, family, tmp_path / "lora", tmp_path / "model", **size)
    none, one, more = (
        pixels_of(model.predict({"prompt": PROMPTS[:1]}, params={scale: value})[0])
        for value in (0.0, 1.0, 30.0)
    )
    assert np.array_equal(none, one)
    assert (one != more).any()


@pytest.mark.families
def test_a_guider_with_a_scale_of_0_does_not_guide(tiny_families, tmp_path):
    folder, family = tiny_families["hunyuan_video15"], "hunyuan_video15"
    trained(folder, family, tmp_path / "lora")
    model = packaged(folder, family, tmp_path / "lora", tmp_path / "model")
    model.predict({"prompt": PROMPTS[:1]}, params={"guidance_scale": 0.0})
    assert model.get_raw_model().guider.num_conditions == 1


def test_an_editor_is_shown_what_the_run_showed_it():
    pixels = np.random.default_rng(0).integers(0, 255, (40, 90, 4), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    shown = np.asarray(trained_pipeline._shown(file.getvalue(), (48, 32)))
    assert np.array_equal(shown, SourceImage.of(file.getvalue()).pixels(32, 48))


def packaged_editor(path, family, folder, length, **size):
    model = {"family": family, "path": path, "guidance_scale": 3.0, "max_sequence_length": length}
    tree = {
        "model": model | size,
        "prompts": EDITED,
        "train": {"lora": {"rank": 3}},
        "evaluation": {"num_steps": 2},
    }
    package(RunConfig.model_validate(tree), folder / "lora", folder / "model")
    return mlflow.pyfunc.load_model(str(folder / "model"), model_config={"device": "cpu"})


@pytest.mark.parametrize(
    ("model_name", "kept"),
    [("qwen_image-edit", 30), ("qwen_image-edit-plus", 30 - len("Picture 1: "))],
)
def test_an_editors_prompts_are_cut_as_the_run_cuts_them(
    tiny_families, tmp_path, model_name, kept, stock_processor
):
    """A token is a byte, and what is kept behind a picture's tokens are 30 of them."""
    path, size = tiny_families[model_name], {"height": 64, "width": 80}
    trained(path, model_name, tmp_path / "lora", source_image=True, **size)
    model = packaged_editor(path, "qwen_image", tmp_path, 30, **size)
    pipeline = model.get_raw_model()
    before = pipeline.prompt_template_encode.partition("{}")[0].partition("<|vision_start|>")[0]
    pipeline.prompt_template_encode_start_idx = len(pipeline.tokenizer(before).input_ids)
    for number, are_same in ((kept - 1, False), (kept, True)):
        prompts = ["x" * number + end for end in "ab"]
        data = {"prompt": prompts, "image": [picture(0, 80, 64)] * 2}
        one, other = map(pixels_of, model.predict(data, params={"seed": 3}))
        assert np.array_equal(one, other) == are_same


@pytest.mark.parametrize("model_name", [KONTEXT, "flux2", *QWEN_EDITORS, "qwen_image21"])
def test_an_editor_is_given_images(tiny_families, tmp_path, model_name, stock_processor):
    path, family = tiny_families[model_name], family_of(model_name)
    shown, scale = nullcontext(), adapter_of(family).guidance_argument
    size = {"height": 64, "width": 80}
    trained(path, model_name, tmp_path / "lora", source_image=True, **size)
    length = 400 if family == "qwen_image" else 49  # with what the stock pipeline keeps beside it
    model = packaged_editor(path, family, tmp_path, length, **size)
    images = [picture(seed, 80, 64) for seed in range(2)]
    found = model.predict({"prompt": PROMPTS, "image": images}, params={"seed": 3})
    pipeline = stock(path)
    pipeline.load_lora_weights(str(tmp_path / "lora"))
    call: dict = {"max_sequence_length": 49}
    if family == "flux":
        call |= {"_auto_resize": False, "max_area": 64 * 80}
    if family == "qwen_image":
        shown, call = showing(pipeline, **size), {**call, "negative_prompt": ""}
    if family == "qwen_image21":  # the prompts are shorter than 49
        shown, call = showing(pipeline, **size), {"negative_prompt": ""}
        pipeline.vae_scale_factor = 8
    for prompt, image, made in zip(PROMPTS, images, found, strict=True):
        with shown:
            expected = pipeline(
                prompt=prompt,
                image=Image.open(io.BytesIO(image)),
                num_inference_steps=2,
                generator=torch.Generator().manual_seed(3),
                **{scale: 3.0},
                **size,
                **call,
            ).images[0]
        difference = np.abs(pixels_of(made)[0].astype(int) - np.asarray(expected))
        assert difference.max() <= 1
    assert np.abs(pixels_of(found[0]).astype(int) - pixels_of(found[1])).max() > 1


@pytest.mark.ci_but_one
@pytest.mark.parametrize(
    ("model_name", "num_images"),
    [
        ("wan-ti2v", 1),
        ("wan-i2v", 1),
        ("wan-i2v-a14b", 1),
        ("wan-i2v-a14b", 2),
        ("hunyuan_video15-i2v", 1),
        (DISTILLED, 1),
    ],
)
def test_a_model_of_videos_is_given_what_they_begin_with(
    tiny_families, tmp_path, model_name, num_images
):
    """And what they end with; of several prompts one may have no last frame.

    One that is told where steps end has its own schedule's levels named.
    """
    path, size = tiny_families[model_name], {"height": 64, "width": 96, "num_frames": 5}
    family = family_of(model_name)
    of_kind = {"guidance_scale": 3.0, **OF_KIND.get(model_name, {})}
    named = {"sigmas": (1.0, 0.8333333)} if of_kind.pop("sigmas", None) else {}
    trained(path, model_name, tmp_path / "lora", source_image=True, **size, **named)
    model = {"family": family, "path": path, "max_sequence_length": 49, **size, **of_kind, **named}
    tree = {
        "model": {**model, "max_source_images": num_images},
        "rollout": {"num_steps": 2 if named else 8},
        "prompts": {"train": "a.jsonl", "image_column": "image", "evaluation_fraction": 0.5},
        "train": {"lora": {"rank": 3}},
        "evaluation": {"num_steps": 2},
    }
    package(RunConfig.model_validate(tree), tmp_path / "lora", tmp_path / "model")
    model = mlflow.pyfunc.load_model(str(tmp_path / "model"), model_config={"device": "cpu"})
    images = [[picture(seed, 96, 64) for seed in range(2)][:num_images], [picture(2, 96, 64)]]
    columns = images if num_images > 1 else [image for (image,) in images]
    data = pandas.DataFrame({"prompt": PROMPTS, "image": columns})
    found = model.predict(data, params={"seed": 3})
    call = {"max_sequence_length": 49, **size, **of_kind}
    if family == "wan":
        pipeline = WanImageToVideoPipeline.from_pretrained(path)
        if model_name == "wan-i2v":  # the text is what follows CLIP's 257 tokens, if it has 512
            call["max_sequence_length"] = 512
    else:
        pipeline = stock(path)
        call = {"num_frames": 5, **prepared_hunyuan_15(pipeline, call)}
        chosen = call.pop("height"), call.pop("width")
        pipeline.video_processor.calculate_default_height_width = lambda **_: chosen
    load_adapters(pipeline, tmp_path / "lora")
    for prompt, (image, *last), made in zip(PROMPTS, images, found, strict=True):
        expected = pipeline(
            prompt=prompt,
            negative_prompt="",
            image=Image.open(io.BytesIO(image)),
            **({"last_image": Image.open(io.BytesIO(last[0]))} if last else {}),
            num_inference_steps=2,
            generator=torch.Generator().manual_seed(3),
            output_type="np",
            **call,
        ).frames[0]
        difference = np.abs(pixels_of(made).astype(float) - 255 * expected)
        assert len(expected) == 5
        assert difference.max() <= 1
    assert np.abs(pixels_of(found[0]).astype(int) - pixels_of(found[1])).max() > 1
