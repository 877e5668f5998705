"""Every family against its stock pipeline: samples, schedules, guidance, conditions, parts."""

import inspect
import json
import shutil

import numpy as np
import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    FlowMatchEulerDiscreteScheduler,
    FlowMatchHeunDiscreteScheduler,
    WanPipeline,
)

from digen_core.config.families import VIDEO_FAMILIES
from digen_core.config.load import load_config
from digen_core.config.model import ModelConfig
from digen_core.data.prompts import Prompt
from digen_core.errors import ConfigError, UserError
from digen_core.models.families import adapter_of
from digen_core.models.policy import ALL_PARTS, TRAINER_PARTS
from digen_core.models.schedules import shifted_sigmas
from digen_core.preflight.model import check_model_folder
from digen_core.rollout.evaluation import sample_images
from digen_core.rollout.sampler import initial_latent
from digen_core.seeding import EVALUATION_NOISE
from support.families import (
    FAMILIES,
    GUIDED,
    HEIGHT,
    MODELS,
    NEGATIVE,
    TOKENS,
    WIDTH,
    family_of,
    frames_of,
    load_tiny,
    sliced,
)
from support.paths import ROOT
from support.stock import generate, stock, with_euler_steps
from support.tiny_policies import TINY

PROMPTS = ["a red circle", "two blue squares"]


@pytest.fixture(scope="module")
def policies(tiny_families) -> dict:
    return {model: load_tiny(tiny_families[model], model) for model in MODELS}


@pytest.fixture(params=MODELS)
def family(request) -> str:
    return request.param


def some_batch(policy, count: int = 3, prompt: str = PROMPTS[0]) -> tuple:
    x = initial_latent(policy, seed=5, group=(0, 0), samples=range(count))
    return x, torch.linspace(0.2, 0.9, count), policy.encode([prompt] * count)


# --- samples and schedules --------------------------------------------------------------------


@pytest.mark.ci_but_one
@pytest.mark.parametrize(
    ("family", "changes"),
    [
        *((name, {}) for name in MODELS),
        *sliced(MODELS, {"guidance_scale": 1.0}),
        *sliced(MODELS, {"num_frames": 1, "height": 48}),
    ],
)
def test_noiseless_sampling_is_the_stock_pipelines(tiny_families, family, changes):
    policy = load_tiny(tiny_families[family], family, **changes)
    made = sample_images(
        policy, [*map(Prompt, PROMPTS)], [3, 7], num_samples=1, num_steps=3, seed=11
    )
    noise = [
        initial_latent(policy, seed=11, group=(0, i), samples=range(1), purpose=EVALUATION_NOISE)
        for i in (3, 7)
    ]
    if family_of(family) not in VIDEO_FAMILIES:
        changes = {name: value for name, value in changes.items() if name != "num_frames"}
    pipeline = with_euler_steps(stock(tiny_families[family]))
    expected = generate(pipeline, family, PROMPTS, torch.cat(noise), output_type="pt", **changes)
    frames = changes.get("num_frames", frames_of(family))
    if family_of(family) in VIDEO_FAMILIES and frames == 1:
        expected = expected[:, 0]
    height = changes.get("height", HEIGHT)
    assert made.shape == (2, *[frames] * (frames > 1), 3, height, WIDTH)
    assert made.dtype == torch.float32
    assert expected.std() > 0.03
    torch.testing.assert_close(made, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("scale", [3.0, 0.5, 0.0])
def test_texts_of_several_lengths_are_each_its_own_in_z_image(tiny_families, scale):
    """Images are placed behind the text, which is padded to a multiple of 32 tokens."""
    settings = {"max_sequence_length": 80, "guidance_scale": scale}
    policy = load_tiny(tiny_families["z_image"], "z_image", **settings)
    prompts = ["a", "a small red circle", "two blue squares to the left of a large green triangle"]
    lengths = policy.encode(prompts)["mask"].sum(1).tolist()
    assert [-(-length // 32) for length in lengths] == [1, 2, 3]
    made = sample_images(
        policy, [*map(Prompt, prompts)], range(3), num_samples=1, num_steps=3, seed=11
    )
    noise = [
        initial_latent(policy, seed=11, group=(0, i), samples=range(1), purpose=EVALUATION_NOISE)
        for i in range(3)
    ]
    pipeline = stock(tiny_families["z_image"])
    expected = generate(
        pipeline, "z_image", prompts, torch.cat(noise), output_type="pt", **settings
    )
    torch.testing.assert_close(made, expected, rtol=0, atol=1e-5)


def test_z_images_schedule_may_shift_by_the_images_size(tiny_families, tmp_path):
    pipeline = stock(tiny_families["z_image"])
    settings = {"use_dynamic_shifting": True, "base_image_seq_len": 2, "max_image_seq_len": 32}
    pipeline.scheduler = type(pipeline.scheduler).from_config(pipeline.scheduler.config, **settings)
    pipeline.save_pretrained(tmp_path)
    policy = load_tiny(str(tmp_path), "z_image")
    x, _, _ = some_batch(policy, 1)
    generate(pipeline, "z_image", PROMPTS[:1], x, output_type="latent", num_inference_steps=5)
    assert torch.equal(policy.sigmas(5), pipeline.scheduler.sigmas)
    assert not torch.equal(policy.sigmas(5), policy.at_size((96, 96, 1)).sigmas(5))


@pytest.mark.ci_but_one
@pytest.mark.parametrize("num_steps", [2, 7])
def test_sigmas_are_those_the_stock_pipeline_uses(tiny_families, policies, family, num_steps):
    pipeline, policy = stock(tiny_families[family]), policies[family]
    x, _, _ = some_batch(policy, 1)
    generate(pipeline, family, PROMPTS[:1], x, output_type="latent", num_inference_steps=num_steps)
    sigmas = policy.sigmas(num_steps)
    assert sigmas.dtype == torch.float32
    assert torch.equal(sigmas[1:], pipeline.scheduler.sigmas[1:])
    assert sigmas[0] == 1  # UniPC's is 1 - 1e-6, that of DPM-Solver 0.9997
    below = 3.4e-4 if family == "sana" else 1.1e-6
    torch.testing.assert_close(pipeline.scheduler.sigmas[0], sigmas[0], rtol=0, atol=below)


RECORDED = {
    "flux": [1, 0.90374, 0.7897, 0.65249, 0.48422, 0.273, 0],
    "flux2": [1, 0.97406, 0.93759, 0.88251, 0.78972, 0.60036, 0],
    "sd3": [1, 0.96013, 0.91335, 0.85769, 0.79037, 0.70728, 0.60215, 0.46488, 0.27805, 0.00893, 0],
    "qwen_image": [
        1, 0.92897, 0.85148, 0.76662, 0.67328, 0.57012, 0.4555, 0.3274, 0.1833, 0.02, 0,
    ],
    "z_image": [1, 0.95455, 0.9, 0.83333, 0.75, 0.64286, 0.5, 0.3, 0],  # 3 u / (1 + 2 u)
    "hunyuan_video": [1, 0.98, 0.95455, 0.92105, 0.875, 0.80769, 0.7, 0.5, 0],
    "hunyuan_video15": [1, 0.9375, 0.83333, 0.625, 0],  # 5 u / (1 + 4 u)
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDED)
def test_sigmas_at_512_pixels_are_those_recorded_with_published_settings(tiny_families, name):
    size = {} if name == "sd3" else {"height": 512, "width": 512}
    policy = load_tiny(tiny_families[name], name, parts=TRAINER_PARTS, **size)
    expected = torch.tensor(RECORDED[name])
    sigmas = policy.sigmas(len(expected) - 1)
    torch.testing.assert_close(sigmas, expected, rtol=0, atol=6e-6)


def test_wans_sigmas_begin_at_one_as_recorded(policies):
    sigmas = policies["wan"].sigmas(20)
    assert sigmas[0] == 1
    assert [round(float(sigmas[i]), 5) for i in (1, -2, -1)] == [0.98278, 0.13871, 0]


@pytest.mark.parametrize(("shift", "num_steps"), [(3, 12), (3, 20), (5, 16), (7, 16)])
def test_shifted_sigmas_are_dancegrpos(shift, num_steps):
    oracle = np.load(ROOT / "tests" / "oracles" / "dancegrpo.npz")
    expected = torch.from_numpy(oracle[f"sched/shift{shift}_n{num_steps}/sigmas"]).float()
    torch.testing.assert_close(shifted_sigmas(num_steps, shift), expected, rtol=0, atol=1e-7)


def test_a_shift_replaces_the_familys_schedule(tiny_families, family):
    policy = load_tiny(tiny_families[family], family, parts=TRAINER_PARTS, shift=3)
    # 3 u / (1 + 2 u) at u = 1, 3/4, 1/2, 1/4, 0
    expected = torch.tensor([1, 0.9, 0.75, 0.5, 0])
    torch.testing.assert_close(policy.sigmas(4), expected, rtol=0, atol=1e-7)


def test_noise_levels_that_a_config_names_are_kept(tiny_families, family):
    """Whatever the family's scheduler makes of them, which LTX-2's would shift and stretch."""
    levels = (1.0, 0.725, 0.421875)
    policy = load_tiny(tiny_families[family], family, parts=TRAINER_PARTS, sigmas=levels)
    assert torch.equal(policy.sigmas(3), torch.tensor([*levels, 0.0]))
    with pytest.raises(UserError, match="noise levels of 3 steps, but 4 are asked for; use as man"):
        policy.sigmas(4)


@pytest.mark.filterwarnings("ignore:invalid value encountered in divide")
def test_a_schedule_that_is_none_is_refused(policies):
    # diffusers stretches Qwen-Image's single sigma by 0 / 0
    with pytest.raises(UserError, match=r"gives 1 step the noise levels \[nan, 0.0\], which do"):
        policies["qwen_image"].sigmas(1)


@pytest.mark.parametrize(
    ("name", "scheduler", "reason"),
    [
        ("flux", DDIMScheduler(), "has no attribute 'base_image_seq_len'"),
        ("sd3", FlowMatchHeunDiscreteScheduler(), "has no attribute 'use_dynamic_shifting'"),
        ("flux2", DPMSolverMultistepScheduler(), "an unexpected keyword argument 'sigmas'"),
        (
            "hunyuan_video",
            FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
            "`mu` must be passed",
        ),
    ],
)
def test_a_scheduler_that_is_not_asked_so_is_refused(tiny_families, name, scheduler, reason):
    policy = load_tiny(tiny_families[name], name, parts=TRAINER_PARTS)
    policy.pipeline.scheduler = scheduler
    message = f"has a {type(scheduler).__name__}, which makes no noise levels .*{reason}.*; use a F"
    with pytest.raises(ConfigError, match=message):
        policy.sigmas(4)


# --- guidance ---------------------------------------------------------------------------------


@pytest.mark.ci_but_one
@pytest.mark.parametrize("name", GUIDED)
def test_each_prompt_may_have_its_own_negative(tiny_families, policies, name):
    texts, negatives = ["a red circle"] * 3, ["an ugly one", None, ""]
    found = policies[name].encode(texts, negatives=negatives)
    for row, negative in enumerate(negatives):
        own = NEGATIVE if negative is None else negative
        other = load_tiny(tiny_families[name], name, negative_prompt=own).encode(texts[:1])
        assert found.keys() == other.keys()
        for key, value in other.items():
            torch.testing.assert_close(found[key][row : row + 1], value, rtol=0, atol=1e-6)


@pytest.mark.ci_but_one
@pytest.mark.parametrize("name", GUIDED)
def test_guidance_moves_away_from_the_negative_prompt(tiny_families, policies, name):
    x, sigma, condition = some_batch(policies[name])
    plain = load_tiny(tiny_families[name], name, guidance_scale=0.0)
    positive = plain.velocity(x, sigma, plain.encode([PROMPTS[0]] * 3))
    of_negative = plain.encode([NEGATIVE] * 3)
    if name == "sana":  # read without the instruction
        of_negative = plain.embed_negative([NEGATIVE] * 3)
    negative = plain.velocity(x, sigma, of_negative)
    assert (positive - negative).abs().max() > 1e-3
    expected = negative + 3.0 * (positive - negative)
    if name == "z_image":  # counted from the positive one
        expected += positive - negative
    if name == "qwen_image":
        expected *= positive.norm(dim=-1, keepdim=True) / expected.norm(dim=-1, keepdim=True)
    # float32, whose rounding the scale multiplies, and otherwise on each processor
    torch.testing.assert_close(
        policies[name].velocity(x, sigma, condition), expected, rtol=0, atol=5e-6
    )


@pytest.mark.parametrize("name", ["flux2", "sd3", "wan"])
def test_gradients_go_through_both_velocities_of_guidance(tiny_families, name):
    """As in FlowGRPO of November 2025; in July the negative prompt's velocity was detached."""

    def gradient(scale: float, prompt: str) -> torch.Tensor:
        policy = load_tiny(tiny_families[name], name, "float64", guidance_scale=scale)
        x, sigma, condition = some_batch(policy, prompt=prompt)
        weights = next(p for n, p in policy.transformer.named_parameters() if "to_q.weight" in n)
        weights.requires_grad_(True)
        velocity = policy.velocity(x, sigma, condition)
        along = torch.linspace(-1, 1, velocity.numel(), dtype=torch.float64).view_as(velocity)
        return torch.autograd.grad((velocity * along).sum(), weights)[0]

    positive, negative = gradient(1.0, PROMPTS[0]), gradient(1.0, NEGATIVE)
    guided = gradient(3.0, PROMPTS[0])
    error = (guided - (3 * positive - 2 * negative)).norm()
    assert error < 1e-4 * guided.norm()  # parts of the embeddings are float32
    assert (guided - 3 * positive).norm() > 0.1 * guided.norm()  # as if it were detached


def test_qwens_guidance_by_hand(policies):
    positive, negative = torch.tensor([[[3.0, 4.0]]]), torch.tensor([[[3.0, 1.0]]])
    # 1 + 3 (4 - 1) = 10 beside 3, at the length 5 of the positive one
    expected = torch.tensor([[[3.0, 10.0]]]) * 5 / 109**0.5
    torch.testing.assert_close(policies["qwen_image"].guide(positive, negative, 3.0), expected)


@pytest.mark.ci_but_one
@pytest.mark.parametrize("scale", [3.0, 1.0, 0.0])
def test_without_guidance_there_is_no_second_pass_and_no_negative_embedding(
    tiny_families, family, scale
):
    policy = load_tiny(tiny_families[family], family, guidance_scale=scale)
    x, sigma, condition = some_batch(policy)
    sizes = []
    policy.transformer.register_forward_pre_hook(
        lambda _, args, kwargs: sizes.append(len([*args, *kwargs.values()][0])), with_kwargs=True
    )
    policy.velocity(x, sigma, condition)
    guided = family_of(family) in GUIDED and scale > (0 if family == "z_image" else 1)
    assert sum(sizes) == (6 if guided else 3)
    assert len(sizes) == (2 if family == "wan-a14b" else 1)  # of two experts each has its rows
    assert any(name.startswith("negative_") for name in condition) == guided


@pytest.mark.parametrize("name", ["flux", "hunyuan_video"])
def test_embedded_guidance_reaches_the_model(tiny_families, policies, name):
    other = load_tiny(tiny_families[name], name, guidance_scale=6.0)
    batch = some_batch(other)
    difference = other.velocity(*batch) - policies[name].velocity(*batch)
    assert difference.abs().max() > 1e-3


# --- conditions -------------------------------------------------------------------------------


def test_conditions_have_one_shape_whatever_the_prompts(policies, family):
    policy = policies[family]
    short, long = (policy.encode([prompt]) for prompt in ("a", "a very long prompt " * 20))
    both = policy.encode(["a", "a very long prompt " * 20])
    for name, value in both.items():
        assert value.shape == (2, *short[name].shape[1:]) == (2, *long[name].shape[1:])
        alone = torch.cat([short[name], long[name]])
        torch.testing.assert_close(value, alone, rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("qwen_image", 1 + 1 + 1 + len("assistant") + 1),
        ("qwen_image21", 1 + len("user") + 1 + 1 + 1 + 1 + len("assistant") + 1),  # what is before
        ("z_image", 1 + len("user") + 1 + 1 + 1 + 1 + len("assistant") + 1),  # likewise
        ("hunyuan_video", 1),
        ("hunyuan_video15", 1 + 1 + 1 + len("assistant") + 1),
    ],
)
def test_masks_count_the_prompt_and_what_the_template_puts_round_it(policies, name, others):
    masks = policies[name].encode(["abc", "a" * 30])["mask"]
    assert masks.shape == (2, TOKENS)
    assert masks.sum(1).tolist() == [3 + others, TOKENS]
    assert masks[0, : 3 + others].all()


@pytest.mark.parametrize(
    "name", ["qwen_image", "qwen_image21", "z_image", "hunyuan_video", "hunyuan_video15"]
)
def test_what_is_masked_does_not_matter(policies, name):
    x, sigma, condition = some_batch(policies[name])
    before = policies[name].velocity(x, sigma, condition)
    changed = dict(condition)
    for key in [key for key in condition if key.endswith("prompt_embeds")]:
        mask = condition[key.replace("prompt_embeds", "mask")].bool()
        changed[key] = torch.where(mask[..., None], condition[key], 7.0)
    torch.testing.assert_close(
        policies[name].velocity(x, sigma, changed), before, rtol=0, atol=2e-6
    )


# --- parts, dtypes, sizes ---------------------------------------------------------------------


@pytest.mark.ci_but_one
def test_a_trainer_needs_no_weights_but_the_transformers(tiny_families, policies, family, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tiny_families[family], folder)
    for path in folder.glob("*/*"):
        if path.parent.name.startswith(("text", "tokenizer", "connectors")):
            path.unlink()
    for path in folder.glob("vae/*.safetensors"):
        path.unlink()
    trainer = load_tiny(str(folder), family, parts=TRAINER_PARTS)
    whole = policies[family]
    assert trainer.latent_shape == whole.latent_shape
    assert torch.equal(trainer.sigmas(4), whole.sigmas(4))
    batch = some_batch(whole)
    assert torch.equal(trainer.velocity(*batch), whole.velocity(*batch))
    assert all(weight.is_meta for weight in trainer.pipeline.vae.state_dict().values())


@pytest.mark.ci_but_one
def test_in_half_precision_velocities_are_float32_and_close(tiny_families, policies, family):
    half = load_tiny(tiny_families[family], family, "bfloat16")
    x, sigma, condition = some_batch(half)
    velocity = half.velocity(x, sigma, condition)
    assert velocity.dtype == half.latent_dtype == torch.float32
    exact = policies[family].velocity(x, sigma, condition)
    assert (velocity - exact).norm() < 0.05 * exact.norm()
    assert (half.decode(x).dtype, half.pipeline.vae.dtype) == (
        torch.float32,
        torch.float32 if family_of(family) == "wan" else torch.bfloat16,
    )


def test_wan_keeps_in_float32_what_the_stock_pipeline_keeps(tiny_families):
    half = load_tiny(tiny_families["wan"], "wan", "bfloat16", parts=TRAINER_PARTS)
    same = WanPipeline.from_pretrained(tiny_families["wan"], dtype=torch.bfloat16)
    dtypes = {name: weight.dtype for name, weight in half.transformer.named_parameters()}
    assert dtypes == {name: weight.dtype for name, weight in same.transformer.named_parameters()}
    assert dtypes["condition_embedder.time_embedder.linear_1.weight"] == torch.float32
    assert dtypes["blocks.0.attn1.to_q.weight"] == torch.bfloat16


@pytest.mark.ci_but_one
def test_pixels_that_are_no_numbers_stay_none(policies, family, monkeypatch):
    policy = policies[family]
    x, _, _ = some_batch(policy)
    decode, broken = policy.pipeline.vae.decode, x.clone()
    broken[-1] = torch.nan
    assert policy.decode(broken)[-1].isnan().any()
    assert policy.decode(broken)[0].isfinite().all()

    def infinite(*arguments, **settings):
        (pixels,) = decode(*arguments, **settings)
        pixels[-1] = -torch.inf
        return (pixels,)

    monkeypatch.setattr(policy.pipeline.vae, "decode", infinite)
    assert policy.decode(x)[-1].isnan().all()  # clipped, it would be a pixel


@pytest.mark.parametrize("size", [{"width": 40}, {"height": 24, "width": 24}])
def test_a_size_that_does_not_fit_is_refused_before_and_by_the_loading(tiny_families, family, size):
    message = rf"is \d+ x \d+; this {family_of(family)} model needs multiples of 16"
    with pytest.raises(UserError, match=message) as loading:
        load_tiny(tiny_families[family], family, **size)
    with pytest.raises(UserError, match=message) as before:
        check_size(tiny_families[family], family, **size)
    assert str(before.value) == str(loading.value)


def test_a_size_that_fits_is_taken(tiny_families, family):
    check_size(tiny_families[family], family, height=48, width=80)


def test_sizes_of_models_with_other_vaes_and_patches(tiny_families, family, tmp_path):
    """Each number of the configs counts: 32 where it is doubled."""
    changed = {
        "flux": ("vae", {"block_out_channels": [8] * 5}),
        "flux2": ("vae", {"block_out_channels": [8] * 5}),
        "sd3": ("transformer", {"patch_size": 4}),
        "qwen_image": ("vae", {"temperal_downsample": [False] * 4}),
        "qwen_image21": ("vae", {"scale_factor_spatial": 16}),
        "z_image": ("vae", {"block_out_channels": [8] * 5}),
        "sana": ("transformer", {"patch_size": 2}),
        "wan": ("transformer", {"patch_size": [1, 4, 4]}),
        "hunyuan_video": ("vae", {"spatial_compression_ratio": 16}),
        "ltx2": ("vae", {"spatial_compression_ratio": 32}),
        "hunyuan_video15": ("vae", {"spatial_compression_ratio": 32}),
    }
    part, changes = changed[family_of(family)]
    shutil.copytree(tiny_families[family], tmp_path / "model")
    file = tmp_path / "model" / part / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    check_size(str(tmp_path / "model"), family, height=32, width=64)
    with pytest.raises(UserError, match="needs multiples of 32"):
        check_size(str(tmp_path / "model"), family, height=32, width=48)


def check_size(folder: str, family: str, **size: int) -> None:
    check_model_folder(ModelConfig(**{**TINY, "family": family_of(family), "path": folder, **size}))


def test_what_a_config_leaves_out_is_as_the_familys_pipeline_has_it(family):
    """But the sizes of videos, which are those that published RL trained on."""
    family = family_of(family)
    pipeline = adapter_of(family).pipeline_class
    call = inspect.signature(pipeline.__call__).parameters
    found = ModelConfig(family=family, path="a/b").defaults
    assert found.num_inference_steps == call["num_inference_steps"].default
    if family == "hunyuan_video15":  # whose guider and attributes say the rest
        length = inspect.signature(pipeline._get_mllm_prompt_embeds).parameters
        assert found.max_sequence_length == length["tokenizer_max_length"].default
        assert (found.height, found.width, found.num_frames) == (480, 480, 53)
        return
    guidance = adapter_of(family).guidance_argument
    assert found.guidance_scale == call[guidance].default
    if family != "qwen_image21":  # which cuts no prompt
        assert found.max_sequence_length == call["max_sequence_length"].default
    if family_of(family) in VIDEO_FAMILIES:
        assert found.height * found.width <= call["height"].default * call["width"].default / 3
        assert 1 < found.num_frames < (call["num_frames"].default or 121)  # LTX-2's, where none is
    else:
        assert (found.height, found.width, found.num_frames) == (1024, 1024, 1)
        assert call["height"].default == (1024 if family == "sana" else None)  # 128 pixels of 8
    config = ModelConfig(family=family, path="a/b", height=64)
    assert config.size == (64, found.width, found.num_frames)
    assert (config.max_sequence_length, config.guidance_scale) == found[3:5]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_of_another_pipeline_is_not_loaded(name, tmp_path):
    """Of a hub id nothing has looked at the index before."""
    (tmp_path / "model_index.json").write_text('{"_class_name": "OtherPipeline"}')
    for parts in (ALL_PARTS, TRAINER_PARTS):
        with pytest.raises(ConfigError, match=f"OtherPipeline, but model.family '{name}' needs"):
            load_tiny(str(tmp_path), name, parts=parts)


def test_an_image_larger_than_sd3s_positions_is_refused(tiny_families):
    with pytest.raises(UserError, match="is 32 x 512; this sd3 model has positions for 256 x 256"):
        load_tiny(tiny_families["sd3"], "sd3", width=512)
    with pytest.raises(UserError, match="positions for 256 x 256"):
        check_size(tiny_families["sd3"], "sd3", height=272)
    check_size(tiny_families["sd3"], "sd3", height=256)


def test_an_image_larger_than_z_images_positions_is_refused(tiny_families):
    folder = tiny_families["z_image"]
    with pytest.raises(UserError, match="is 32 x 1040; this z_image model has positions for 1024"):
        load_tiny(folder, "z_image", width=1040)
    with pytest.raises(UserError, match="positions for 1024 x 1024 at most"):
        check_size(folder, "z_image", height=1040)
    policy = load_tiny(folder, "z_image", max_sequence_length=512, width=1024)
    x, sigma, condition = some_batch(policy, 1, "a" * 1000)
    assert int(condition["mask"].sum()) == 512
    assert policy.velocity(x, sigma, condition).isfinite().all()


@pytest.mark.ci_but_one
def test_tokens_are_counted_as_the_pipeline_cuts_them(tiny_families, family):
    """A prompt is whole where as many tokens are allowed as it takes, and not with one less."""
    prompt = "a red circle left of a  blue square"
    policy = load_tiny(tiny_families[family], family)
    (count,) = policy.num_tokens([prompt])
    assert count > 5
    tokenizer = getattr(policy.pipeline, policy.tokenizer_name)
    encoder = getattr(policy.pipeline, policy.tokenizer_name.replace("tokenizer", "text_encoder"))
    seen = []

    def note(_module, arguments, named):
        seen.append(named["input_ids"] if "input_ids" in named else arguments[0])

    encoder.register_forward_pre_hook(note, with_kwargs=True)

    def shown_at(length):
        policy.config = policy.config.model_copy(update={"max_sequence_length": length})
        embedded = policy.embed([prompt])
        if "mask" in embedded:
            return int(embedded["mask"].sum())
        tokens = seen[-1][0].tolist()
        while tokens[-1] == tokenizer.pad_token_id:
            tokens.pop()
        while tokens[0] == tokenizer.pad_token_id:
            tokens.pop(0)
        return tokens

    assert shown_at(count) == shown_at(count + 5)
    assert shown_at(count - 1) != shown_at(count)


def test_model_folders_are_checked_before_anything_is_loaded(tiny_families, family, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tiny_families[family], folder)
    size = {"model.height": 32, "model.width": 32, "model.num_frames": 1}
    config = load_config(
        None, {"model.family": family_of(family), "model.path": str(folder), **size}
    ).model
    check_model_folder(config)
    shutil.rmtree(folder / "transformer")
    with pytest.raises(UserError, match="lacks the subfolder transformer"):
        check_model_folder(config)
