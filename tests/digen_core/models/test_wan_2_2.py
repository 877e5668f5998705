"""Wan 2.2: timesteps per token of TI2V-5B, and the two experts of T2V-A14B."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from digen_core.checkpoints.export import save_adapter
from digen_core.config.model import ModelConfig
from digen_core.config.train import LoraConfig
from digen_core.errors import UserError
from digen_core.gang.members import ALONE
from digen_core.models.experts import Experts, transformer_of
from digen_core.models.families import adapter_of
from digen_core.models.policy import TRAINER_PARTS
from digen_core.models.trainable import (
    make_trainable,
    reference_weights,
    set_weights,
    trainable_parameters,
)
from digen_core.planning.model_settings import MODEL_CONFIGS
from digen_core.preflight.model import check_model_folder
from digen_core.rollout.sampler import initial_latent
from digen_core.training.gradient_sum import _differentiated
from support.families import NEGATIVE, load_tiny
from support.stock import stock
from support.tiny_policies import TINY, moved_weights

TI2V = MODEL_CONFIGS / "Wan2.2-TI2V-5B-Diffusers"
PROMPT = "a red circle"
BOTH = {"transformer", "transformer_2"}
LORA = LoraConfig(rank=3)


def batch(policy, *levels: float) -> tuple:
    x = initial_latent(policy, seed=5, group=(0, 0), samples=range(len(levels)))
    return x, torch.tensor(levels), policy.encode([PROMPT] * len(levels))


@pytest.fixture
def folder(tiny_families) -> str:
    return tiny_families["wan-a14b"]


def load(folder: str, dtype: str = "float64", lora: LoraConfig | None = LORA, **model):
    """A policy of both experts with weights that some training might have made."""
    policy = load_tiny(folder, "wan-a14b", dtype, **model)
    make_trainable(policy, lora, keep_reference=lora is None)
    set_weights(policy, moved_weights(policy, scale=0.02 if lora is None else 0.1))
    return policy


def gradient(policy, *levels: float) -> dict[str, torch.Tensor]:
    loss = policy.velocity(*batch(policy, *levels)).square().sum()
    return _differentiated(loss, trainable_parameters(policy), ALONE)


def experts_in(names) -> set[str]:
    return {name.partition(".")[0] for name in names}


# --- TI2V-5B ----------------------------------------------------------------------------------


def test_one_timestep_per_sample_is_one_per_token(tiny_families):
    """Where all tokens of a sample have the same, as without an image they have."""
    policy = load_tiny(tiny_families["wan-ti2v"], "wan-ti2v", "float64", guidance_scale=1.0)
    assert stock(tiny_families["wan-ti2v"]).config.expand_timesteps
    x, sigma, condition = batch(policy, 0.2, 0.5, 0.9)
    _, frames, height, width = policy.latent_shape
    tokens = frames * (height // 2) * (width // 2)
    (expected,) = policy.transformer(
        hidden_states=x,
        timestep=(1000 * sigma)[:, None].expand(-1, tokens),
        encoder_hidden_states=condition["prompt_embeds"],
        return_dict=False,
    )
    torch.testing.assert_close(
        policy.velocity(x, sigma, condition), expected, rtol=0, atol=1e-6
    )  # some modules are float32


def test_the_published_vae_has_a_sixteenth_of_the_sides():
    def policy_at(height: int):
        size = {"height": height, "width": 1280, "num_frames": 121}
        config = ModelConfig(family="wan", path="a/b", **size)
        return adapter_of("wan").without_weights(config, TI2V)

    policy = policy_at(704)
    assert (policy.side, policy.latent_shape) == (32, (48, 31, 44, 80))
    latent = torch.empty(1, *policy.at_size((64, 96, 5)).latent_shape, device="meta")
    made = policy.pipeline.vae.decode(policy.vae_latents(latent), return_dict=False)[0]
    assert made.shape == (1, 3, 5, 64, 96)
    with pytest.raises(UserError, match="is 720 x 1280; this wan model needs multiples of 32"):
        policy_at(720)


# --- T2V-A14B ---------------------------------------------------------------------------------


def test_each_expert_has_its_noise_levels_and_its_scale_of_guidance(folder):
    """The boundary itself is high noise."""
    policy = load_tiny(folder, "wan-a14b", "float64")
    levels = (0.874, 0.875, 1.0, 0.1)
    x, sigma, condition = batch(policy, *levels)
    found = policy.velocity(x, sigma, condition)
    negative = policy.embed([NEGATIVE])["prompt_embeds"]
    for row, (level, is_high) in enumerate(zip(levels, (False, True, True, False), strict=True)):
        assert policy.part_at(level) == 1 - is_high
        expert = policy.pipeline.transformer if is_high else policy.pipeline.transformer_2
        towards, away = (
            expert(
                hidden_states=x[row : row + 1],
                timestep=1000 * sigma[row : row + 1],
                encoder_hidden_states=embeds[:1],
                return_dict=False,
            )[0]
            for embeds in (condition["prompt_embeds"], negative)
        )
        expected = away + (3.0 if is_high else 2.0) * (towards - away)
        torch.testing.assert_close(found[row : row + 1], expected, rtol=0, atol=1e-5)


def test_a_boundary_that_float32_has_not_is_one_for_batches_and_for_packs(folder, tmp_path):
    """I2V-A14B's is 0.9, which is a level of its steps with a shift of 3."""
    shutil.copytree(folder, tmp_path / "model")
    index = tmp_path / "model" / "model_index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {"boundary_ratio": 0.9}))
    policy = load_tiny(str(tmp_path / "model"), "wan-a14b", parts=TRAINER_PARTS, shift=3.0)
    levels = policy.sigmas(4)[:-1]
    assert levels[1] == np.float32(0.9)
    for level, is_high in zip(levels, (True, True, False, False), strict=True):
        assert policy.transformer.sides(level[None]) == [(is_high, None)]
        assert policy.part_at(float(level)) == 1 - is_high


def test_the_second_scale_is_the_first_one_if_none_is_named(folder):
    policy = load_tiny(folder, "wan-a14b", "float64", guidance_scale_2=None)
    same = load_tiny(folder, "wan-a14b", "float64", guidance_scale_2=3.0)
    inputs = batch(policy, 0.9, 0.5)
    assert torch.equal(policy.velocity(*inputs), same.velocity(*inputs))


@pytest.mark.parametrize("role", [{}, {"train_guidance_scale": 4.0}], ids=["alike", "guided role"])
def test_without_guidance_there_is_no_second_scale(folder, role):
    """Whether another role of the model is guided or not."""
    unguided = {"guidance_scale": 1.0, **role}
    policy = load_tiny(folder, "wan-a14b", "float64", guidance_scale_2=3.0, **unguided)
    same = load_tiny(folder, "wan-a14b", "float64", guidance_scale_2=None, **unguided)
    inputs = batch(policy, 0.9, 0.5)
    assert torch.equal(policy.velocity(*inputs), same.velocity(*inputs))


@pytest.mark.parametrize("lora", [LORA, None], ids=["lora", "all weights"])
@pytest.mark.parametrize("trained", ["both", "high", "low"])
def test_the_gradient_reaches_those_that_are_trained(folder, trained, lora):
    """Without rows of its noise levels, an expert's is 0, and there."""
    policy = load(folder, lora=lora, train_experts=trained)
    wanted = {"both": BOTH, "high": {"transformer"}, "low": {"transformer_2"}}[trained]
    names = trainable_parameters(policy)
    assert experts_in(names) == wanted
    for levels, busy in (
        ((0.9, 0.5, 1.0), BOTH),
        ((0.95, 0.9), {"transformer"}),
        ((0.3,), {"transformer_2"}),
    ):
        found = gradient(policy, *levels)
        assert found.keys() == names.keys()
        for name, value in found.items():
            assert (value.shape, value.dtype) == (names[name].shape, names[name].dtype)
            assert bool(value.any()) == (name.partition(".")[0] in busy), name


def test_a_batch_of_both_sides_has_the_gradient_of_its_halves(folder):
    policy = load(folder)
    mixed = gradient(policy, 0.9, 0.5, 1.0, 0.2)
    x, sigma, condition = batch(policy, 0.9, 0.5, 1.0, 0.2)
    halves = []
    for rows in ([0, 2], [1, 3]):
        own = {name: value[rows] for name, value in condition.items()}
        loss = policy.velocity(x[rows], sigma[rows], own).square().sum()
        halves.append(_differentiated(loss, trainable_parameters(policy), ALONE))
    for name, value in mixed.items():
        torch.testing.assert_close(halves[0][name] + halves[1][name], value, rtol=0, atol=1e-12)


@pytest.mark.parametrize("trained", ["both", "high"])
def test_the_reference_is_the_base_of_both(folder, trained):
    base = load_tiny(folder, "wan-a14b", "float64")
    inputs = batch(base, 0.9, 0.5)
    for lora in (LORA, None):
        policy = load(folder, lora=lora, train_experts=trained)
        trained_velocity = policy.velocity(*inputs)
        with reference_weights(policy):
            assert torch.equal(policy.velocity(*inputs), base.velocity(*inputs))
        assert torch.equal(policy.velocity(*inputs), trained_velocity)
        moved = (trained_velocity - base.velocity(*inputs)).flatten(1).any(dim=1).tolist()
        assert moved == [True, trained == "both"]
        # an expert that is not trained is its own reference
        expected = 2 if lora else {"both": 4, "high": 3}[trained]
        assert len(policy.transformers) == expected


def test_both_are_what_a_pipeline_has(folder):
    policy = load_tiny(folder, "wan-a14b", parts=TRAINER_PARTS)
    assert isinstance(policy.transformer, Experts)
    assert policy.transformer.both == [policy.pipeline.transformer, policy.pipeline.transformer_2]
    assert policy.transformer.boundary == 0.875


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"train_experts": "low"}, r"train_experts is 'low', but model.path .* has one transf"),
        ({"guidance_scale_2": 2.0}, r"guidance_scale_2 is 2.0, but model.path .* one transf"),
    ],
)
@pytest.mark.parametrize("name", ["wan", "flux"])
def test_a_model_of_one_transformer_has_no_experts(tiny_families, name, model, message):
    config = ModelConfig(**{**TINY, "family": name, "path": tiny_families[name], **model})
    with pytest.raises(UserError, match=message):
        check_model_folder(config)
    with pytest.raises(UserError, match=message):
        load_tiny(tiny_families[name], name, **model)


def test_an_expert_without_the_other_one_is_refused(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "model")
    shutil.rmtree(tmp_path / "model/transformer_2")
    config = ModelConfig(**{**TINY, "family": "wan", "path": str(tmp_path / "model")})
    with pytest.raises(UserError, match="lacks the subfolder transformer_2"):
        check_model_folder(config)
    index = tmp_path / "model/model_index.json"
    found = json.loads(index.read_text()) | {"transformer_2": [None, None]}
    index.write_text(json.dumps(found))
    for refusing in (check_model_folder, lambda own: adapter_of("wan").load(own, TRAINER_PARTS)):
        with pytest.raises(UserError, match="boundary_ratio between two transformers, but one of"):
            refusing(config)


def test_published_experts_count_double():
    config = ModelConfig(family="wan", path="a/b")
    policies = [
        adapter_of("wan").without_weights(config, Path(MODEL_CONFIGS / name))
        for name in ("Wan2.1-T2V-14B-Diffusers", "Wan2.2-T2V-A14B-Diffusers")
    ]
    one, two = (sum(p.numel() for p in own.transformer.parameters()) for own in policies)
    assert two == 2 * one


# --- adapters ---------------------------------------------------------------------------------


def test_an_adapter_to_start_from_is_for_one_of_them(folder, tmp_path):
    policy = load(folder, "float32")
    save_adapter(policy, tmp_path)
    inputs = batch(policy, 0.9, 0.5)
    base, expected = load_tiny(folder, "wan-a14b").velocity(*inputs), policy.velocity(*inputs)
    for name, file, row in (
        ("high", "pytorch_lora_weights.safetensors", 0),
        ("low", "transformer_2.safetensors", 1),
    ):
        own = {"path": str(tmp_path), "file": file, "expert": name}
        found = load_tiny(folder, "wan-a14b", adapters={"turbo": own})
        velocity = found.velocity(*inputs)
        # added to the weights, not beside them: float32 rounds otherwise
        torch.testing.assert_close(velocity[row], expected[row], rtol=1e-4, atol=1e-4)
        assert (velocity[row] - base[row]).abs().max() > 1e-2
        assert torch.equal(velocity[1 - row], base[1 - row])
        assert not any(p.requires_grad for p in found.transformer.parameters())


def test_one_transformer_has_no_adapter_for_low_noise(tiny_families, folder, tmp_path):
    save_adapter(load(folder, "float32"), tmp_path)
    adapters = {"turbo": {"path": str(tmp_path), "expert": "low"}}
    model = {**TINY, "family": "wan", "path": tiny_families["wan"], "adapters": adapters}
    with pytest.raises(UserError, match=r"adapters.turbo.expert is 'low', but model.path .* one"):
        check_model_folder(ModelConfig(**model))
    with pytest.raises(UserError, match=r"turbo .* is for the expert for low noise, but model.pa"):
        load_tiny(tiny_families["wan"], "wan", adapters=adapters)


@pytest.mark.parametrize("trained", ["both", "low"])
def test_adapters_reload_bit_for_bit(folder, tmp_path, trained):
    policy = load(folder, "float32", train_experts=trained)
    save_adapter(policy, tmp_path)
    assert (tmp_path / "pytorch_lora_weights.safetensors").exists() == (trained == "both")
    pipeline = stock(folder)
    if trained == "both":
        pipeline.load_lora_weights(tmp_path)
    pipeline.load_lora_weights(
        tmp_path,
        weight_name="transformer_2.safetensors",
        load_into_transformer_2=True,
    )
    loaded = load_tiny(folder, "wan-a14b", parts=TRAINER_PARTS)
    loaded.transformer = transformer_of(pipeline, loaded.config)
    inputs = batch(policy, 0.9, 0.5, 1.0)
    assert torch.equal(loaded.velocity(*inputs), policy.velocity(*inputs))
