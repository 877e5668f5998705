"""Qwen-Image 2.1: texts of their own lengths, noise levels, opacity, what is refused."""

import json
import shutil
from math import exp
from pathlib import Path

import pytest
import torch
from diffusers import QwenImage21Transformer2DModel

from digen_core.config.load import load_config
from digen_core.config.model import ModelConfig
from digen_core.data.prompts import Prompt, train_prompts
from digen_core.errors import ConfigError, UserError
from digen_core.models.families import adapter_of
from digen_core.models.passes.qwen21 import compute_so
from digen_core.models.policy import TRAINER_PARTS
from digen_core.rollout.conditions import encoded
from digen_core.rollout.evaluation import sample_images
from digen_core.rollout.sampler import initial_latent
from digen_core.seeding import EVALUATION_NOISE
from support.edits import source
from support.families import load_tiny
from support.paths import ROOT
from support.stock import generate, stock

FAMILY = "qwen_image21"
PROMPTS = ["a", "a small red circle", "two blue squares to the left of a large green triangle"]
LONG = {"max_sequence_length": 80}


@pytest.fixture
def folder(tiny_families) -> str:
    return tiny_families[FAMILY]


@pytest.fixture
def changed(folder, tmp_path):
    """Return a function that changes a JSON file of a copy of the model, and returns its folder."""

    def change(file, **values):
        shutil.copytree(folder, tmp_path / "model")
        path = tmp_path / "model" / file
        path.write_text(json.dumps(json.loads(path.read_text()) | values))
        return str(tmp_path / "model")

    return change


def batch_of(policy, prompts):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(len(prompts), *policy.latent_shape, generator=generator, dtype=torch.float64)
    return x, torch.linspace(0.2, 0.9, len(prompts)), policy.encode(prompts)


# --- texts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [3.0, 1.0])
def test_images_stand_behind_their_own_texts_as_where_a_prompt_is_alone(folder, scale):
    policy = load_tiny(folder, FAMILY, guidance_scale=scale, **LONG)
    made = sample_images(
        policy, [*map(Prompt, PROMPTS)], range(3), num_samples=1, num_steps=3, seed=11
    )
    noise = [
        initial_latent(policy, seed=11, group=(0, i), samples=range(1), purpose=EVALUATION_NOISE)
        for i in range(3)
    ]
    expected = generate(
        stock(folder),
        FAMILY,
        PROMPTS,
        torch.cat(noise),
        output_type="pt",
        guidance_scale=scale,
        **LONG,
    )
    torch.testing.assert_close(made, expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_velocities_do_not_depend_on_the_texts_beside(folder):
    policy = load_tiny(folder, FAMILY, "float64", guidance_scale=1.0, **LONG)
    x, sigma, condition = batch_of(policy, PROMPTS)
    assert len(set(condition["mask"].sum(1).tolist())) == 3
    together = policy.velocity(x, sigma, condition)
    for row in range(3):
        own = {name: value[row : row + 1] for name, value in condition.items()}
        alone = policy.velocity(x[row : row + 1], sigma[row : row + 1], own)
        torch.testing.assert_close(together[row : row + 1], alone, rtol=0, atol=1e-12)


@torch.no_grad()
def test_velocities_are_those_of_diffusers_own_pass_at_one_length(folder):
    """Its rotations and its norm of texts are float32 in a float64 model, too."""
    policy = load_tiny(folder, FAMILY, "float64", guidance_scale=1.0, **LONG)
    x, sigma, condition = batch_of(policy, ["a red circle", "a red square"])
    lengths = condition["mask"].sum(1).tolist()
    assert lengths[0] == lengths[1]
    embeds = condition["prompt_embeds"][:, : lengths[0]]
    theirs = QwenImage21Transformer2DModel.from_pretrained(
        folder, subfolder="transformer", dtype=torch.float64
    )
    rows, columns = 4, 6
    slots = torch.arange(lengths[0] + rows * columns // 4).expand(2, -1) >= lengths[0]
    grid = [[(1, rows, columns)]] * 2
    found = theirs(x, embeds, sigma.double(), grid, slots, return_dict=False)[0][:, lengths[0] :]
    torch.testing.assert_close(policy.velocity(x, sigma, condition), found, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_texts_are_normed_bit_for_bit_as_by_diffusers(dtype):
    transformer = QwenImage21Transformer2DModel(
        in_channels=4,
        out_channels=4,
        num_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        context_in_dim=32,
        axes_dims_rope=(4, 4, 8),
    ).to(dtype)
    norm = transformer.txt_in.text_norm
    torch.nn.init.normal_(norm.weight, std=0.1)
    x = 30 * torch.randn(2, 5, 32).to(dtype)
    expected = norm(x)
    compute_so(transformer)
    assert torch.equal(norm(x), expected)


def test_a_text_is_cut_behind_what_fits(folder):
    """<|im_start|>, "user" and a line's end are 6 of the tiny tokenizer's tokens."""
    short, long = (load_tiny(folder, FAMILY, max_sequence_length=n) for n in (10, 80))
    assert long.num_tokens(["abcdef"]) == [6 + 6 + 13]
    cut, whole = (policy.encode(["abcdef"]) for policy in (short, long))
    assert torch.equal(cut["prompt_embeds"], whole["prompt_embeds"][:, :10])
    assert cut["mask"].tolist() == [[1] * 10]


@pytest.mark.parametrize("number", [1, 2])
def test_of_an_edit_the_words_count_and_what_is_behind_the_last_picture(folder, number):
    """A picture's end, the words, and what ends the chat: 13 of the tiny tokenizer's tokens."""
    policy = load_tiny(folder, FAMILY, source_image=True, max_source_images=2, **LONG)
    condition = encoded(policy, [Prompt("abcdef", images=(source(0),) * number)])
    assert policy.num_tokens(["abcdef"], [number]) == [1 + 6 + 13]
    assert condition["mask"].sum().item() == 1 + 6 + 13
    before = [name for name in condition if name.startswith("source_text_")]
    assert len(before) == number


@torch.no_grad()
def test_what_is_before_a_picture_does_not_depend_on_what_is_behind(folder):
    """So it is the same for a prompt and for what guidance steers away from."""
    policy = load_tiny(folder, FAMILY, "float64", source_image=True, **LONG)
    pixels = [source(0).pixels(32, 48)]
    one, other = (policy._texts(prompt, pixels) for prompt in ("a dog", "two blue squares"))
    torch.testing.assert_close(one[0], other[0], rtol=0, atol=1e-6)  # it rotates in float32
    assert one[1].shape != other[1].shape


@pytest.mark.parametrize("mark", ["<|image_pad|>", "<|video_pad|>"])
def test_a_text_with_the_mark_of_a_picture_is_refused(folder, mark, tmp_path):
    with pytest.raises(UserError, match=r"has <\|\w+_pad\|> in it"):
        load_tiny(folder, FAMILY).encode([f"a {mark} circle"])
    file = tmp_path / "prompts.txt"
    file.write_text(f"a red circle\na {mark} circle\n")
    keys = {"model.family": FAMILY, "model.path": folder, "prompts.train": str(file)}
    keys["prompts.evaluation"] = str(file)
    with pytest.raises(ConfigError, match=r"line 2.*has <\|\w+_pad\|> in it"):
        train_prompts(load_config(None, keys))


# --- noise levels -----------------------------------------------------------------------------


def test_sigmas_of_the_published_size_by_hand(folder):
    """4096 tokens, as 1024 x 1024 pixels have with the published VAE: mu = 0.5 + 0.4 3840 / 7936.

    Shifted sigmas are stretched so that the last one is 0.02.
    """
    policy = load_tiny(folder, FAMILY, parts=TRAINER_PARTS, height=512, width=512)
    assert policy.latent_shape[0] == 4096
    shift = exp(0.5 + 0.4 * 3840 / 7936)
    shifted = [shift * u / (1 + (shift - 1) * u) for u in (1, 0.75, 0.5, 0.25)]
    expected = [1 - (1 - own) * 0.98 / (1 - shifted[-1]) for own in shifted] + [0]
    torch.testing.assert_close(policy.sigmas(4), torch.tensor(expected), rtol=0, atol=1e-6)


def test_noise_levels_that_a_model_names_are_its_own(changed):
    levels = [1.0, 0.8, 0.3]
    path = changed("model_index.json", sample_sigmas=levels)
    file = Path(path) / "scheduler/scheduler_config.json"
    plain = {"use_dynamic_shifting": False, "shift_terminal": None}
    file.write_text(json.dumps(json.loads(file.read_text()) | plain))
    policy = load_tiny(path, FAMILY)
    torch.testing.assert_close(policy.sigmas(3), torch.tensor([*levels, 0.0]))
    pipeline = stock(path)
    x = initial_latent(policy, seed=5, group=(0, 0), samples=range(1))
    generate(pipeline, FAMILY, PROMPTS[:1], x, output_type="latent", num_inference_steps=7)
    assert torch.equal(policy.sigmas(3), pipeline.scheduler.sigmas)
    with pytest.raises(
        ConfigError, match="noise levels of its own for 3 steps, but is asked for 7"
    ):
        policy.sigmas(7)
    assert len(load_tiny(path, FAMILY, shift=3.0).sigmas(7)) == 8


# --- pixels and sizes -------------------------------------------------------------------------


def test_what_is_transparent_is_white(folder):
    """Of black with an opacity of 1/4 3/4 of the white are left."""
    policy = load_tiny(folder, FAMILY)
    pixels = torch.tensor([0.0, 0.5, 1.0, 0.25]).view(1, 4, 1, 1, 1)
    expected = torch.tensor([0.75, 0.875, 1.0]).view(1, 3, 1, 1, 1)
    assert torch.equal(policy.colours(pixels), expected)


def test_published_sizes():
    model = ModelConfig(family=FAMILY, path="x")
    published = ROOT / "deployments/model_configs/Qwen-Image-2.1"
    policy = adapter_of(FAMILY).without_weights(model, published)
    assert (policy.latent_shape, policy.side) == ((4096, 64), 32)
    with pytest.raises(ConfigError, match="1040 x 1024; this qwen_image21 model needs multiples"):
        adapter_of(FAMILY).without_weights(model.at_size((1040, 1024, 1)), published)


# --- what is refused --------------------------------------------------------------------------


def test_another_transformer_is_refused(changed):
    path = changed("transformer/config.json", causal_condition=False)
    with pytest.raises(ConfigError, match=r"'causal_condition': False.*; use one with"):
        load_tiny(path, FAMILY)


def test_a_shape_that_the_text_encoder_does_not_take_is_refused():
    published = ROOT / "deployments/model_configs/Qwen-Image-2.1"
    model = ModelConfig(family=FAMILY, path="x", height=32, width=6432, source_image=True)
    with pytest.raises(ConfigError, match="32 x 6432; this model is shown images of at most 200"):
        adapter_of(FAMILY).without_weights(model, published)
    texts = model.model_copy(update={"source_image": False})
    assert adapter_of(FAMILY).without_weights(texts, published).latent_shape == (2 * 402, 64)
