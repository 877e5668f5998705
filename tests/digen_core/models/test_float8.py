"""Rollouts in float8: its numbers by hand, which layers take part, and what does not notice."""

from contextlib import nullcontext

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import nn

from digen_core.config.run import RunConfig
from digen_core.data.prompts import Prompt
from digen_core.errors import ConfigError
from digen_core.models.loading import prepare
from digen_core.models.pipeline import float8
from digen_core.models.pipeline.float8 import (
    Float8Linear,
    computing_in_float8,
    in_float8,
    require_float8,
)
from digen_core.models.trainable import reference_weights, set_weights, trainable_parameters
from digen_core.models.versions import versions_of
from digen_core.rollout.evaluation import sample_images
from support.families import FAMILIES, MODELS, family_of, load_tiny, sliced
from support.tiny_policies import moved_weights
from tasks import setup
from tasks.setup import load_model

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
LAYERS = {
    "flux": 24 + 10,
    "sd3": 25,
    "qwen_image": 24,
    "qwen_image21": 14,
    "z_image": 8,
    "sana": 16,
    "wan": 20,
    "hunyuan_video": 24 + 10,
    "ltx2": 20,
    "hunyuan_video15": 24,
    "flux2": 24 + 4,
}
"""Of the tiny models: attention's, with those of the text, and the feed-forward ones."""


def drawn(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def layer_of(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Float8Linear:
    made = nn.Linear(*reversed(weight.shape), bias=bias is not None, dtype=weight.dtype)
    made.weight.data.copy_(weight)
    if bias is not None:
        made.bias.data.copy_(bias)
    return Float8Linear.of(made)


@torch.no_grad()
def low(layer: Float8Linear, x: torch.Tensor) -> torch.Tensor:
    with computing_in_float8([layer]):
        return layer(x)


# --- numbers ----------------------------------------------------------------------------------


def test_rows_by_hand():
    """The largest is 448; 17 lies between 16 and 18, halfway, and goes to the even one."""
    x = torch.tensor([[896.0, -2.0, 34.0, 0.0], [0.0, 0.0, 0.0, 0.0], [-448.0, 1.0, 0.001, 19.0]])
    rows, scales = in_float8(x)
    assert rows.dtype == torch.float8_e4m3fn
    assert scales[:, 0].tolist() == [2.0, torch.finfo(torch.float32).tiny, 1.0]
    expected = [[448, -1, 16, 0], [0, 0, 0, 0], [-448, 1, 2**-9 * 1, 20]]
    expected[2][2] = 0.001953125  # the smallest there is: 0.001 is nearer to it than to 0
    assert rows.float().tolist() == expected


@settings(max_examples=60, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    numbers=st.lists(st.floats(-1.0, 1.0, allow_nan=False), min_size=1, max_size=16),
    power=st.integers(-10, 10),
)
def test_a_number_is_off_by_a_sixteenth_of_itself_at_most(dtype, numbers, power):
    """Or by half of the smallest there is: 2^-10 of the scale."""
    x = (torch.tensor([numbers], dtype=torch.float64) * 2.0**power).to(dtype)
    rows, scales = in_float8(x)
    error = (rows.double() * scales.double() - x.double()).abs()
    bound = torch.maximum(x.double().abs() / 16, scales.double() * 2**-10)
    assert bool((error <= bound * (1 + 1e-6)).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_layer_is_the_product_of_what_was_rounded(dtype, with_bias):
    x, weight = drawn(2, 5, 64, dtype=dtype), drawn(48, 64, dtype=dtype, seed=1)
    bias = drawn(48, dtype=dtype, seed=2) if with_bias else None
    found = low(layer_of(weight, bias), x)
    assert (found.dtype, found.shape) == (dtype, (2, 5, 48))
    (rows, scales), (own, own_scales) = in_float8(weight), in_float8(x.flatten(0, 1))
    plain = (own.double() * own_scales.double()) @ (rows.double() * scales.double()).t()
    expected = plain.unflatten(0, (2, 5)) + (0 if bias is None else bias.double())
    tolerance = {torch.float64: 1e-13, torch.float32: 1e-5}.get(dtype, 2**-7)
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=4 * tolerance)
    exact = x.double() @ weight.double().t() + (0 if bias is None else bias.double())
    error = (found.double() - exact).norm() / exact.norm()
    assert 1e-3 < error < 1 / 16


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_no_number_is_none_of_its_row(dtype):
    x = drawn(4, 32, dtype=dtype)
    x[1], x[2, 3], x[3, 1] = 0.0, torch.nan, torch.inf
    found = low(layer_of(drawn(16, 32, dtype=dtype, seed=1)), x)
    assert found.isfinite().all(1).tolist() == [True, True, False, False]
    assert not found.isfinite()[2:].any()
    assert not found[1].any()
    weight = drawn(16, 32, dtype=dtype, seed=1)
    weight[5, 0] = torch.nan
    found = low(layer_of(weight), drawn(4, 32, dtype=dtype))
    assert found.isnan().all(0).tolist() == [row == 5 for row in range(16)]


def test_activations_may_lie_any_way():
    for dtype in DTYPES:
        layer, x = layer_of(drawn(16, 32, dtype=dtype, seed=1)), drawn(1, 32, 5, dtype=dtype)
        turned = x.transpose(1, 2)  # channels last, as of a convolution
        torch.testing.assert_close(low(layer, turned), low(layer, turned.contiguous()))


def test_in_float64_a_row_does_not_depend_on_its_batch():
    layer, x = layer_of(drawn(48, 4096, seed=1)), drawn(9, 4096)
    alone = torch.cat([low(layer, x[row : row + 1]) for row in range(9)])
    assert torch.equal(low(layer, x), alone)
    assert low(layer, x[:0]).shape == (0, 48)


def test_a_weight_is_rounded_again_when_it_changes():
    layer, x = layer_of(drawn(16, 32)), drawn(3, 32, seed=1)
    first = low(layer, x)
    held = layer.rows
    assert torch.equal(low(layer, x), first)
    assert layer.rows is held
    with torch.no_grad():
        layer.weight.copy_(drawn(16, 32, seed=2))
    assert torch.equal(low(layer, x), low(layer_of(drawn(16, 32, seed=2)), x))
    assert not torch.equal(low(layer, x), first)


# --- models -----------------------------------------------------------------------------------


def config_of(name: str, precision: str = "float8", lora: bool = True, **tables) -> RunConfig:
    return RunConfig.model_validate(
        {
            "model": {"family": family_of(name), "device": "cpu", "height": 32, "width": 32},
            "rollout": {"precision": precision},
            "algorithm": {"correction": "recompute", "kl_coefficient": 0.1},
            "train": {"lora": {"rank": 4, "alpha": 8} if lora else None},
            **tables,
        }
    )


def prepared(folder: str, name: str, precision: str = "float8", lora: bool = True):
    policy = load_tiny(folder, name, "float64")
    torch.manual_seed(0)  # adapters are drawn
    prepare(policy, config_of(name, precision, lora))
    set_weights(policy, moved_weights(policy))
    return policy


def velocity(policy, count: int = 2) -> torch.Tensor:
    x = drawn(count, *policy.latent_shape).to(policy.latent_dtype)
    condition = policy.encode(["a red circle", "two blue squares"][:count])
    return policy.velocity(x, torch.full((count,), 0.6), policy.without_padding(condition))


def gradients(policy) -> list[torch.Tensor]:
    own = list(trainable_parameters(policy).values())
    return list(torch.autograd.grad(velocity(policy).square().sum(), own, materialize_grads=True))


@pytest.mark.ci_but_one
@pytest.mark.parametrize(("name", "lora"), [*sliced(MODELS, True), ("flux", False)])
def test_samples_alone_are_in_float8(tiny_families, name, lora):
    """What a model computes else, its gradients and the names of its weights are as without."""
    plain, policy = (
        prepared(tiny_families[name], name, precision, lora) for precision in ("model", "float8")
    )
    assert not plain.float8
    count = LAYERS[family_of(name)] * (2 if "a14b" in name else 1)
    assert len(policy.float8) == count
    with torch.no_grad(), policy.sampling("float8"):
        sampled = velocity(policy)
    own = velocity(policy).detach()
    assert torch.equal(own, velocity(plain).detach())
    assert 1e-4 < float((sampled - own).norm() / own.norm()) < 0.2
    for left, right in zip(gradients(policy), gradients(plain), strict=True):
        assert torch.equal(left, right)
    assert policy.transformer.state_dict().keys() == plain.transformer.state_dict().keys()
    assert versions_of(policy).dtypes == versions_of(plain).dtypes
    assert trainable_parameters(policy).keys() == trainable_parameters(plain).keys()
    for key, parameter in trainable_parameters(policy).items():
        assert torch.equal(parameter, trainable_parameters(plain)[key])
    with reference_weights(policy), reference_weights(plain):
        assert torch.equal(velocity(policy), velocity(plain))
    with torch.no_grad(), policy.sampling("float8"), plain.sampling("model"):
        assert torch.equal(velocity(policy), sampled)
        assert torch.equal(velocity(plain), own)


@pytest.mark.parametrize("lora", [True, False])
def test_samples_are_those_of_the_version_that_is_active(tiny_flux, lora):
    policy = prepared(tiny_flux, "flux", lora=lora)
    weights = [moved_weights(policy, seed) for seed in range(2)]
    store, found = versions_of(policy), []
    for version, own in enumerate(weights):
        store.hold(version, own)
    for version in (0, 1, 0):
        store.activate(version)
        with torch.no_grad(), policy.sampling("float8"):
            found.append(velocity(policy))
    with store.temporary(weights[1]), torch.no_grad(), policy.sampling("float8"):
        found.append(velocity(policy))
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])
    assert not torch.equal(found[0], found[1])


def test_evaluations_have_the_models_own_precision(tiny_flux):
    prompts, made = [Prompt("a red circle"), Prompt("two blue squares")], []
    for precision in ("model", "float8"):
        policy = prepared(tiny_flux, "flux", precision)
        with torch.no_grad(), policy.sampling("float8"):
            velocity(policy)
        made.append(sample_images(policy, prompts, [0, 1], num_samples=2, num_steps=3, seed=0))
    assert torch.equal(*made)


def test_every_family_says_which_layers_it_has():
    assert LAYERS.keys() == set(FAMILIES)


def test_layers_whose_sides_no_kernel_takes_stay_as_they_are(tiny_families, monkeypatch):
    policy = load_tiny(tiny_families["z_image"], "z_image")
    prepare(policy, config_of("z_image"))
    widths = {layer.in_features for layer in policy.float8}
    assert widths == {64}, "feed-forward layers of 170 were taken"
    monkeypatch.setattr(float8, "_MULTIPLE", 128)
    with pytest.raises(ConfigError, match="no linear layer whose sides are multiples of 128"):
        prepare(load_tiny(tiny_families["sana"], "sana"), config_of("sana"))


def test_a_device_that_has_no_float8_is_told_in_one_line(monkeypatch):
    require_float8(torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(ConfigError, match=r"of compute capability 8\.9 .* on NVIDIA A100, of com"):
        require_float8(torch.device("cuda:0"))
    for capability in ((8, 9), (9, 0), (10, 0)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, own=capability: own)
        require_float8(torch.device("cuda:0"))
    with pytest.raises(ConfigError, match="generated on a mps device; use 'model'"):
        require_float8(torch.device("mps"))


def test_who_trains_only_needs_no_float8(tiny_flux, monkeypatch):
    """A worker says so before it loads the model, of a role that it has or helps with."""

    def none_here(device, key):
        raise ConfigError(f"no float8 on {device}")

    loaded = []
    monkeypatch.setattr(setup, "require_float8", none_here)
    monkeypatch.setattr(setup, "build_engine", lambda *asked: loaded.append(asked[-1]))
    for precision, roles, fails in (
        ("float8", ["trainer"], False),
        ("float8", ["rollout", "trainer"], True),
        ("model", ["rollout"], False),
    ):
        config = config_of("flux", precision)
        with pytest.raises(ConfigError, match="no float8 on cpu") if fails else nullcontext():
            load_model("run", "load", config, "gpu-0", roles)
    assert loaded == [frozenset({"trainer"}), frozenset({"rollout"})]


@pytest.mark.parametrize(("precision", "passes"), [("model", 1.75), ("float8", 2.5)])
def test_a_kl_as_a_reward_asks_the_policy_in_its_own_precision_too(precision, passes):
    """Of 8 steps 6 are trained: the policy, the reference, and once more the policy."""
    config = config_of(
        "flux",
        precision,
        algorithm={"correction": "recompute", "kl_reward": 1.0, "trained_fraction": 0.75},
    )
    assert config.velocities_per_step == passes
