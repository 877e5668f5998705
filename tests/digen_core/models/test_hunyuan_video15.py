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
from digen_core.config.run import RunConfig
from digen_core.data.prompts import Prompt
from digen_core.errors import ConfigError
from digen_core.models.families import adapter_of
from digen_core.models.image_size import read_settings
from digen_core.models.loading import load_trainable
from digen_core.models.pipeline.few_steps import check_few_steps
from digen_core.models.policy import TRAINER_PARTS
from digen_core.planning.model_settings import MODEL_CONFIGS, settings_folder
from digen_core.preflight.model import check_model
from digen_core.rollout.conditions import encoded
from digen_core.rollout.evaluation import sample_images
from digen_core.rollout.sampler import initial_latent
from digen_core.seeding import EVALUATION_NOISE
from support.edits import source
from support.families import DISTILLED, EDITED, LEVELS, NEGATIVE, TOKENS, load_tiny
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


@pytest.mark.ci_but_one
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


def test_a_model_of_texts_that_is_told_where_steps_end_is_refused(tmp_path):
    settings = MODEL_CONFIGS / "HunyuanVideo-1.5-Diffusers-480p_t2v"
    path = changed(str(settings), tmp_path / "model", "transformer/config.json", use_meanflow=True)
    config = ModelConfig(family=NAME, path="a/b", max_sequence_length=TOKENS, sigmas=LEVELS)
    with pytest.raises(ConfigError, match="for texts that is told the noise level at which a step"):
        adapter_of(NAME).without_weights(config, Path(path))


def test_a_trainer_is_checked_too(folder, tmp_path):
    path = changed(folder, tmp_path / "model", "guider/guider_config.json", start=0.2)
    with pytest.raises(ConfigError, match=r"'start': 0\.2"):
        load_tiny(path, NAME, parts=TRAINER_PARTS)


# --- videos that begin with an image ----------------------------------------------------------


@pytest.fixture
def first(tiny_families):
    return load_tiny(tiny_families[I2V], I2V, **SIZE)


@pytest.mark.ci_but_one
@pytest.mark.parametrize("changes", [{}, {"guidance_scale": 1.0}], ids=["guided", "unguided"])
@pytest.mark.parametrize("name", [I2V, DISTILLED])
def test_noiseless_videos_begin_as_the_stock_pipelines(tiny_families, name, changes, monkeypatch):
    """One that is told where steps end has the levels of its own schedule named."""
    levels = load_tiny(tiny_families[I2V], I2V, **SIZE).sigmas(3)[:-1].tolist()
    named = {"sigmas": levels} if name == DISTILLED else {}
    policy = load_tiny(tiny_families[name], name, **SIZE, **changes, **named)
    made = sample_images(policy, FIRST, range(2), num_samples=1, num_steps=3, seed=11)
    pipeline, noise = stock(tiny_families[name]), noise_of(policy, 2)
    assert pipeline.transformer.config.use_meanflow == bool(named)
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


def test_a_model_of_few_steps_is_told_where_each_ends(tiny_families):
    """The next level that is named; below the last it is 0, as at a level between two the lower."""
    policy, seen = load_tiny(tiny_families[DISTILLED], DISTILLED, guidance_scale=1.0, **SIZE), []
    policy.transformer.time_embed.time_proj_r.register_forward_pre_hook(
        lambda _, given: seen.append(given[0])
    )
    x, condition = torch.randn(4, *policy.latent_shape), encoded(policy, FIRST * 2)
    begins, ends = policy.sigmas(4)[:-1], policy.sigmas(4)[1:]
    told = policy.velocity(x, begins, condition)
    policy.velocity(x, begins.double(), condition)
    policy.velocity(x, torch.tensor([0.99, 0.7, 0.3, 0.625]), condition)
    assert torch.equal(seen[0], 1000 * ends)
    assert torch.equal(seen[1].float(), 1000 * ends)
    between = 1000 * torch.tensor([0.9375, 0.625, 0.0, 0.0])
    torch.testing.assert_close(seen[2], between, rtol=0, atol=0)
    others = (1.0, 0.8, 0.7, 0.625)
    other = load_tiny(
        tiny_families[DISTILLED], DISTILLED, guidance_scale=1.0, **SIZE, sigmas=others
    )
    moved = (other.velocity(x, begins, condition) - told).flatten(1).abs().amax(1)
    assert [bool(row) for row in moved > 1e-5] == [True, True, True, False]


def told(folder: str, **tables) -> RunConfig:
    size = {"height": 64, "width": 96, "num_frames": 5, "max_sequence_length": TOKENS}
    tree = {
        "model": {"family": NAME, "path": folder, "device": "cpu", "sigmas": LEVELS, **size},
        "rollout": {"num_steps": 4},
        "prompts": EDITED,
    }
    for name, table in tables.items():
        tree[name] = tree.get(name, {}) | table
    return RunConfig.model_validate(tree)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (
            {"model": {"sigmas": ()}},
            "is told the noise level at which a step ends, too; name",
        ),
        (
            {"algorithm": {"type": "diffusion_nft"}},
            "mean velocity of a step, but algorithm.type diffusion_nft compares velocities at one",
        ),
        (
            {"rollout": {"solver": "dpmpp_2m"}, "algorithm": {"window": [2, 0, 2]}},
            "mean velocity of a step, but rollout.solver dpmpp_2m goes by velocities at one noise",
        ),
    ],
)
@pytest.mark.parametrize("shipped", [False, True])
def test_what_a_model_of_few_steps_does_not_know_is_refused(
    tiny_families, tables, message, shipped
):
    """Before anything starts, and by the loading."""
    folder = tiny_families[DISTILLED]
    check_model(told(folder))
    name = "HunyuanVideo-1.5-Diffusers-480p_i2v_step_distilled"
    config = told(f"a/{name}" if shipped else folder, **tables)
    with pytest.raises(ConfigError, match=message):
        check_few_steps(config, read_settings(settings_folder(config.model.path))[1])
    if not shipped:
        for refusing in (check_model, lambda own: load_trainable(own, TRAINER_PARTS)):
            with pytest.raises(ConfigError, match=message):
                refusing(config)


@pytest.mark.parametrize(("name", "source_image"), [(NAME, True), (I2V, False)])
def test_a_model_takes_prompts_of_its_kind_only(tiny_families, name, source_image):
    with pytest.raises(ConfigError, match="source images"):
        load_tiny(tiny_families[name], name, source_image=source_image)
