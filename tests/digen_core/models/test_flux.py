"""The FLUX policy against the stock pipeline, what is trained in it, and what is saved of it."""

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel

from digen_core.checkpoints.export import save_adapter, save_transformer
from digen_core.config.train import LoraConfig
from digen_core.data.prompts import Prompt
from digen_core.models.policy import ALL_PARTS, TRAINER_PARTS
from digen_core.models.tiny.flux import PROMPT_TOKENS
from digen_core.models.trainable import (
    initial_weights,
    make_trainable,
    reference_weights,
    set_weights,
    trainable_parameters,
)
from digen_core.rollout.evaluation import sample_images
from digen_core.rollout.sampler import initial_latent
from digen_core.seeding import EVALUATION_NOISE
from support.tiny_policies import LORA, load, load_trainable, moved_weights

PROMPTS = ["a red circle", "two blue squares left of a green triangle"]
VARIANTS = ["static", "shifted", "like dev"]


@pytest.fixture(scope="module")
def variants(tiny_flux, tmp_path_factory) -> dict[str, str]:
    """FLUX folders with the schedules and conditioning of published models.

    static: shift 1; shifted: shift 3; like dev: shift by image size, embedded guidance, and a VAE
    whose latents are scaled and shifted.
    """
    folders = {"static": tiny_flux}
    for name in VARIANTS[1:]:
        pipeline = FluxPipeline.from_pretrained(tiny_flux)
        dynamic = name == "like dev"
        pipeline.scheduler = FlowMatchEulerDiscreteScheduler(
            shift=3.0, use_dynamic_shifting=dynamic, base_image_seq_len=4, max_image_seq_len=64
        )
        if dynamic:
            settings = {**pipeline.transformer.config, "guidance_embeds": True}
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(1)
                pipeline.transformer = FluxTransformer2DModel.from_config(settings)
            pipeline.vae.register_to_config(scaling_factor=0.36, shift_factor=0.12)
        folders[name] = str(tmp_path_factory.mktemp("variant"))
        pipeline.save_pretrained(folders[name])
    return folders


def stock(path: str) -> FluxPipeline:
    pipeline = FluxPipeline.from_pretrained(path)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def batch(policy, count: int = 3):
    """Latents, noise levels and embeddings of some samples."""
    x = initial_latent(policy, seed=5, group=(0, 0), samples=range(count))
    return x, torch.linspace(0.2, 0.9, count), policy.encode(["a red circle"] * count)


# --- against the stock pipeline ---------------------------------------------------------------


@pytest.mark.ci_but_one
@pytest.mark.parametrize("size", [(32, 32), (16, 24)], ids=["square", "wide"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_noiseless_sampling_is_the_stock_pipelines(variants, variant, size):
    height, width = size
    policy = load(variants[variant], "float32", height=height, width=width, guidance_scale=2.5)
    images = sample_images(
        policy, [*map(Prompt, PROMPTS)], [3, 7], num_samples=2, num_steps=4, seed=11
    )
    latents = [
        initial_latent(
            policy, seed=11, group=(0, index), samples=range(2), purpose=EVALUATION_NOISE
        )
        for index in (3, 7)
    ]
    expected = stock(variants[variant])(
        [PROMPTS[0]] * 2 + [PROMPTS[1]] * 2,
        height=height,
        width=width,
        num_inference_steps=4,
        guidance_scale=2.5,
        max_sequence_length=PROMPT_TOKENS,
        latents=torch.cat(latents),
        output_type="pt",
    ).images
    assert images.shape == (4, 3, height, width)
    assert expected.std() > 0.05
    torch.testing.assert_close(images, expected, rtol=0, atol=1e-5)


@pytest.mark.ci_but_one
@pytest.mark.parametrize("num_steps", [1, 4, 28])
@pytest.mark.parametrize("variant", VARIANTS)
def test_sigmas_are_those_the_stock_pipeline_uses(variants, variant, num_steps):
    pipeline = stock(variants[variant])
    pipeline(
        "a red circle",
        height=32,
        width=32,
        num_inference_steps=num_steps,
        max_sequence_length=PROMPT_TOKENS,
        output_type="latent",
    )
    sigmas = load(variants[variant], parts=TRAINER_PARTS).sigmas(num_steps)
    assert sigmas.dtype == torch.float32
    assert len(sigmas) == num_steps + 1
    assert torch.equal(sigmas, pipeline.scheduler.sigmas)


def test_shifted_sigmas_by_hand(variants):
    # sigma -> shift sigma / (1 + (shift - 1) sigma): 3 * 0.5 / 2 = 0.75
    sigmas = load(variants["shifted"], parts=TRAINER_PARTS).sigmas(2)
    torch.testing.assert_close(sigmas, torch.tensor([1.0, 0.75, 0.0]))


def test_images_are_in_range_whatever_the_vae_returns(tiny_flux):
    policy = load(tiny_flux)
    policy.pipeline.vae.decoder.conv_out.weight.mul_(100)
    images = policy.decode(initial_latent(policy, seed=0, group=(0, 0), samples=range(2)))
    assert images.dtype == torch.float32
    assert (images.min(), images.max()) == (0, 1)


def test_a_size_that_does_not_fit_is_refused(tiny_flux):
    with pytest.raises(ValueError, match=r"is 32 x 36; this flux model needs multiples of 8"):
        load(tiny_flux, width=36)


def test_a_trainer_loads_the_transformer_only(tiny_flux):
    trainer, whole = (load(tiny_flux, parts=parts) for parts in (TRAINER_PARTS, ALL_PARTS))
    assert all(weight.is_meta for weight in trainer.pipeline.vae.state_dict().values())
    for name in ("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2"):
        assert getattr(trainer.pipeline, name) is None
    assert trainer.latent_shape == whole.latent_shape == (16, 16)
    inputs = batch(whole)
    assert torch.equal(trainer.velocity(*inputs), whole.velocity(*inputs))


@pytest.mark.parametrize(
    ("dtype", "latent_dtype"),
    [
        ("float64", torch.float64),
        ("float32", torch.float32),
        ("bfloat16", torch.float32),
        ("float16", torch.float32),
    ],
)
def test_latents_and_masters_are_float32_or_better(tiny_flux, dtype, latent_dtype):
    """Adapters compute in the model's dtype."""
    policy = load_trainable(tiny_flux, dtype)
    velocity = policy.velocity(*batch(policy))
    assert policy.latent_dtype == velocity.dtype == latent_dtype
    assert {str(p.dtype)[6:] for p in trainable_parameters(policy).values()} == {dtype}
    weights = initial_weights(policy, LORA, seed=0)
    assert {value.dtype.name for value in weights.values()} == {str(latent_dtype)[6:]}
    base = policy.transformer.transformer_blocks[0].attn.to_q.base_layer.weight
    assert str(base.dtype)[6:] == dtype


# --- what is trained --------------------------------------------------------------------------


def test_version_zero_depends_on_the_seed_only(tiny_flux):
    versions = []
    for global_seed, seed in ((1, 0), (2, 0), (2, 1)):
        torch.manual_seed(global_seed)
        policy = load_trainable(tiny_flux)
        versions.append(initial_weights(policy, LORA, seed=seed))
    first, same, other = versions
    for name, value in first.items():
        np.testing.assert_array_equal(value, same[name])
        if "lora_A" in name:
            assert (value != other[name]).all()
            assert value.std() == pytest.approx(1 / LORA.rank, rel=0.25)
        else:
            assert not value.any()
    drawn = {value.tobytes() for name, value in first.items() if "lora_A" in name}
    assert 2 * len(drawn) == len(first)  # each A is drawn on its own


def test_version_zero_of_the_other_init_is_what_peft_draws(tiny_flux):
    """A is uniform within 1 / sqrt(columns); drawn with peft's generator it is peft's A."""
    lora = LORA.model_copy(update={"init": "kaiming"})
    torch.manual_seed(3)
    policy = load_trainable(tiny_flux, lora=lora)
    drawn = {name: p.detach().numpy() for name, p in trainable_parameters(policy).items()}
    for name, value in initial_weights(policy, lora, seed=0).items():
        if "lora_B" in name:
            assert not value.any()
            continue
        for sample in (value, drawn[name]):
            bound = sample.shape[1] ** -0.5
            assert 0.8 * bound < np.abs(sample).max() <= bound
            assert sample.std() == pytest.approx(bound / 3**0.5, rel=0.25)


def test_version_zero_acts_like_the_base_model(tiny_flux):
    base, policy = load(tiny_flux, "float32"), load_trainable(tiny_flux, "float32")
    inputs = batch(base)
    set_weights(policy, initial_weights(policy, LORA, seed=0))
    assert torch.equal(policy.velocity(*inputs), base.velocity(*inputs))
    set_weights(policy, moved_weights(policy))
    assert not torch.equal(policy.velocity(*inputs), base.velocity(*inputs))


def test_only_adapters_are_trained(tiny_flux):
    parameters = trainable_parameters(load_trainable(tiny_flux))
    assert all("lora_A" in name or "lora_B" in name for name in parameters)
    assert {p.shape[0] for name, p in parameters.items() if "lora_A" in name} == {LORA.rank}


def test_adapters_that_match_nothing_are_refused(tiny_flux):
    with pytest.raises(ValueError, match=r"train.lora.targets names 'nowhere', but no linear"):
        make_trainable(load(tiny_flux), LoraConfig(targets=("nowhere",)))


def test_weights_that_do_not_fit_are_refused_by_name(tiny_flux):
    policy = load_trainable(tiny_flux)
    weights = initial_weights(policy, LORA, seed=0)
    name = sorted(weights)[0]
    missing = {key: value for key, value in weights.items() if key != name}
    with pytest.raises(ValueError, match=rf"1 names differ, e.g. {name}"):
        set_weights(policy, missing)
    with pytest.raises(ValueError, match=r"1 names differ, e.g. another"):
        set_weights(policy, {**weights, "another": np.zeros(2)})
    with pytest.raises(ValueError, match=rf"{name} is \(2, 2\), not \(\d+, \d+\)"):
        set_weights(policy, {**weights, name: np.zeros((2, 2))})


def test_weights_that_were_set_do_not_share_memory_with_the_arrays(tiny_flux):
    policy = load_trainable(tiny_flux)
    weights = moved_weights(policy)
    set_weights(policy, weights)
    (name, parameter), *_ = trainable_parameters(policy).items()
    expected = weights[name].copy()
    weights[name] += 1
    np.testing.assert_array_equal(parameter.detach().numpy(), expected)


def test_full_training_opens_everything_and_keeps_a_reference(tiny_flux):
    base = load(tiny_flux)
    policy = load_trainable(tiny_flux, lora=None, keep_reference=True)
    inputs = batch(base)
    expected = base.velocity(*inputs)
    weights = initial_weights(policy, None, seed=0)
    assert weights.keys() == dict(policy.transformer.named_parameters()).keys()
    set_weights(policy, weights)
    assert torch.equal(policy.velocity(*inputs), expected)  # version 0 is what was loaded
    set_weights(policy, moved_weights(policy))
    assert not torch.equal(policy.velocity(*inputs), expected)
    with reference_weights(policy):
        assert torch.equal(policy.velocity(*inputs), expected)
    assert load_trainable(tiny_flux, lora=None).reference_transformer is None


# --- what is saved ----------------------------------------------------------------------------


def test_saved_adapters_act_the_same_in_the_stock_pipeline(tiny_flux, tmp_path):
    lora = LoraConfig(rank=3, alpha=10)  # a strength that is lost if alpha is
    policy = load_trainable(tiny_flux, "float32", lora)
    inputs = batch(policy)
    set_weights(policy, moved_weights(policy))
    save_adapter(policy, tmp_path)
    pipeline = stock(tiny_flux)
    pipeline.load_lora_weights(tmp_path)
    (adapter,) = pipeline.transformer.peft_config.values()
    assert (adapter.r, adapter.lora_alpha) == (3, 10)
    loaded = load(tiny_flux, "float32")
    loaded.transformer = pipeline.transformer
    assert torch.equal(loaded.velocity(*inputs), policy.velocity(*inputs))


def test_a_saved_transformer_acts_the_same_in_the_stock_pipeline(tiny_flux, tmp_path):
    policy = load_trainable(tiny_flux, "float32", None)
    inputs, weights = batch(policy), moved_weights(policy)
    set_weights(policy, weights)
    save_transformer(policy.transformer, tmp_path, weights)
    loaded = load(tiny_flux, "float32")
    loaded.transformer = FluxTransformer2DModel.from_pretrained(tmp_path)
    assert torch.equal(loaded.velocity(*inputs), policy.velocity(*inputs))
