"""HunyuanVideo 1.5: words to be drawn, what its transformer leaves out, models that are refused."""

import json
import shutil
from io import BytesIO
from pathlib import Path

import pytest
import torch
from diffusers import HunyuanVideo15Transformer3DModel
from PIL import Image

from digen_core.config.model import ModelConfig
from digen_core.data.prompts import Prompt
from digen_core.errors import ConfigError
from digen_core.models.families import adapter_of
from digen_core.models.policy import TRAINER_PARTS
from digen_core.rollout.conditions import encoded
from digen_core.rollout.evaluation import sample_images
from digen_core.rollout.sampler import initial_latent
from digen_core.seeding import EVALUATION_NOISE
from support.edits import source
from support.families import NEGATIVE, TOKENS, load_tiny
from support.stock import generate, prepared_hunyuan_15, stock

pytestmark = pytest.mark.slow

NAME, I2V = "hunyuan_video15", "hunyuan_video15-i2v"
SIZE = {"height": 64, "width": 96}
FIRST = [
    Prompt(text, images=(source(seed, 96, 64),))
    for seed, text in enumerate(("a red circle", 'a sign "go"'))
]
PLAIN, ONE, TWO = "a red circle", 'a sign that says "stop"', "“go” or “stop”, on two signs"


@pytest.fixture(scope="module")
def folder(tiny_families) -> str:
    return tiny_families[NAME]


@pytest.fixture(scope="module")
def policy(folder):
    return load_tiny(folder, NAME)


def noise_of(policy, count: int) -> torch.Tensor:
    samples = {"samples": range(1), "purpose": EVALUATION_NOISE}
    rows = [initial_latent(policy, seed=11, group=(0, n), **samples) for n in range(count)]
    return torch.cat(rows)


@pytest.mark.parametrize("prompts", [[ONE], [PLAIN, ONE, TWO]])
def test_words_in_quotation_marks_are_drawn_as_the_stock_pipeline_does(policy, folder, prompts):
    made = sample_images(
        policy, [*map(Prompt, prompts)], range(len(prompts)), num_samples=1, num_steps=3, seed=11
    )
    x = noise_of(policy, len(prompts))
    expected = generate(stock(folder), NAME, prompts, x, output_type="pt")
    torch.testing.assert_close(made, expected, rtol=0, atol=1e-5)


def test_glyphs_are_read_beside_the_prompt(policy):
    condition = policy.encode([PLAIN, ONE, TWO])
    lengths = condition["glyph_mask"].sum(1).tolist()
    of_one, of_two = 'Text "stop". ', 'Text "go". Text "stop". '
    assert lengths == [0, len(of_one) + 1, len(of_two) + 1]  # bytes, and an end
    other = dict(condition, glyph_prompt_embeds=-condition["glyph_prompt_embeds"])
    x, sigma = torch.randn(3, *policy.latent_shape), torch.full((3,), 0.5)
    moved = (policy.velocity(x, sigma, other) - policy.velocity(x, sigma, condition)).abs()
    assert [bool(row) for row in moved.flatten(1).amax(1) > 1e-6] == [False, True, True]


def test_prompts_without_such_words_have_no_token_of_them(policy):
    found = policy.without_padding(policy.encode([PLAIN]))
    assert found["glyph_prompt_embeds"].shape[1] == 0
    assert found["negative_glyph_prompt_embeds"].shape[1] == 0
    both = policy.without_padding(policy.encode([PLAIN, ONE]))
    assert both["glyph_prompt_embeds"].shape[1] == both["glyph_mask"].shape[1] == 14


@pytest.mark.parametrize("prompts", [[PLAIN], [ONE], [PLAIN, ONE, TWO]])
@pytest.mark.parametrize("with_padding", [False, True])
def test_the_velocity_is_that_of_diffusers_transformer(folder, prompts, with_padding):
    policy = load_tiny(folder, NAME, "float64", guidance_scale=1.0, max_sequence_length=80)
    path = f"{folder}/transformer"
    theirs = HunyuanVideo15Transformer3DModel.from_pretrained(path, dtype=torch.float64)
    condition, count = policy.encode(prompts), len(prompts)
    x = torch.randn(count, *policy.latent_shape, dtype=torch.float64)
    sigma = torch.linspace(0.3, 0.9, count)
    with torch.no_grad():
        expected = theirs(
            hidden_states=torch.cat([x, x.new_zeros(count, 5, *x.shape[2:])], dim=1),
            timestep=1000 * sigma.double(),
            encoder_hidden_states=condition["prompt_embeds"],
            encoder_attention_mask=condition["mask"],
            encoder_hidden_states_2=condition["glyph_prompt_embeds"],
            encoder_attention_mask_2=condition["glyph_mask"],
            image_embeds=x.new_zeros(count, 729, theirs.config.image_embed_dim),
        ).sample
        shown = condition if with_padding else policy.without_padding(condition)
        found = policy.velocity(x, sigma, shown)
    # noise levels stay float32, and queries are turned in it
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_the_template_before_a_prompt_is_counted_with_the_models_tokenizer(policy):
    message = policy.pipeline.system_message
    before = 1 + len(f"system\n{message}") + 1 + 1 + 1 + len("user\n")
    assert policy.pipeline.prompt_template_encode_start_idx == before
    assert policy.num_tokens(["abc", ""]) == [3 + 13, 1 + 13]  # a space, and what is behind


def test_it_takes_more_tokens_than_other_families():
    assert ModelConfig(family=NAME, path="a/b").max_sequence_length == 1000
    with pytest.raises(ValueError, match="is 1001, but hunyuan_video15 takes at most 1000"):
        ModelConfig(family=NAME, path="a/b", max_sequence_length=1001)


def changed(folder: str, out: Path, file: str, **changes) -> str:
    shutil.copytree(folder, out)
    settings = json.loads((out / file).read_text())
    (out / file).write_text(json.dumps(settings | changes))
    return str(out)


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("guider/guider_config.json", {"guidance_rescale": 0.5}, r"'guidance_rescale': 0\.5"),
        ("guider/guider_config.json", {"stop": 0.5}, "use a ClassifierFreeGuidance with"),
    ],
)
def test_a_guider_that_guides_otherwise_is_refused(folder, tmp_path, file, changes, message):
    with pytest.raises(ConfigError, match=message):
        load_tiny(changed(folder, tmp_path / "model", file, **changes), NAME)


def test_a_model_that_is_told_the_next_noise_level_is_refused(tmp_path):
    settings = Path("deployments/model_configs/HunyuanVideo-1.5-Diffusers-480p_t2v")
    path = changed(str(settings), tmp_path / "model", "transformer/config.json", use_meanflow=True)
    config = ModelConfig(family=NAME, path="a/b", max_sequence_length=TOKENS)
    with pytest.raises(ConfigError, match="distilled to few steps, which is told the next noise"):
        adapter_of(NAME).without_weights(config, Path(path))


def test_a_trainer_is_checked_too(folder, tmp_path):
    path = changed(folder, tmp_path / "model", "guider/guider_config.json", start=0.2)
    with pytest.raises(ConfigError, match=r"'start': 0\.2"):
        load_tiny(path, NAME, parts=TRAINER_PARTS)


# --- videos that begin with an image ----------------------------------------------------------


@pytest.fixture
def first(tiny_families):
    return load_tiny(tiny_families[I2V], I2V, **SIZE)


@pytest.mark.parametrize("changes", [{}, {"guidance_scale": 1.0}], ids=["guided", "unguided"])
def test_noiseless_videos_begin_as_the_stock_pipelines(tiny_families, changes, monkeypatch):
    policy = load_tiny(tiny_families[I2V], I2V, **SIZE, **changes)
    made = sample_images(policy, FIRST, range(2), num_samples=1, num_steps=3, seed=11)
    pipeline, noise = stock(tiny_families[I2V]), noise_of(policy, 2)
    call = {"guidance_scale": 3.0, "max_sequence_length": TOKENS, **changes}
    call = prepared_hunyuan_15(pipeline, call, crops=True)
    chooses = pipeline.video_processor
    monkeypatch.setattr(chooses, "calculate_default_height_width", lambda **_: (64, 96))
    for index, prompt in enumerate(FIRST):
        expected = pipeline(
            prompt=[prompt.text],
            image=Image.open(BytesIO(prompt.images[0].content())),
            negative_prompt=[NEGATIVE],
            latents=noise[index : index + 1],
            num_inference_steps=3,
            num_frames=5,
            output_type="pt",
            return_dict=False,
            **call,
        )[0]
        assert expected.std() > 0.03
        torch.testing.assert_close(made[index : index + 1], expected, rtol=0, atol=1e-5)


def test_another_image_makes_another_video(first):
    others = [Prompt(own.text, images=(source(9 + n, 96, 64),)) for n, own in enumerate(FIRST)]
    one, two = (
        sample_images(first, prompts, range(2), num_samples=1, num_steps=2, seed=11)
        for prompts in (FIRST, others)
    )
    assert ((one - two).flatten(1).abs().amax(1) > 1e-3).all()


def test_what_is_shown_of_an_image_is_counted_in_any_size(first):
    for size in ((64, 96, 5), (32, 64, 9)):
        view = first.at_size(size)
        blank, condition = view.blank_condition(2), encoded(view, FIRST)
        assert {n: (v.shape, v.dtype) for n, v in blank.items()} == {
            n: (v.shape, v.dtype) for n, v in condition.items()
        }
        shown = condition["source_latents"]
        assert shown[:, -1, 0].eq(1).all()
        assert not shown[:, :, 1:].any()
        x = torch.randn(2, *view.latent_shape)
        assert view.velocity(x, torch.tensor([0.3, 0.8]), condition).shape == x.shape


def test_a_trainer_of_videos_with_an_image_encodes_nothing(first):
    trainer = adapter_of(NAME).load(first.config, TRAINER_PARTS)
    x, sigma = torch.randn(2, *first.latent_shape), torch.tensor([0.3, 0.95])
    condition = encoded(first, FIRST)
    assert torch.equal(trainer.velocity(x, sigma, condition), first.velocity(x, sigma, condition))
    for part in ("text_encoder", "text_encoder_2", "image_encoder", "feature_extractor"):
        assert getattr(trainer.pipeline, part) is None


@pytest.mark.parametrize(("name", "source_image"), [(NAME, True), (I2V, False)])
def test_a_model_takes_prompts_of_its_kind_only(tiny_families, name, source_image):
    with pytest.raises(ConfigError, match="source images"):
        load_tiny(tiny_families[name], name, source_image=source_image)
