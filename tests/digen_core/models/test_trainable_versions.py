"""Versions side by side: each acts, and is trained, as if the policy had never held another."""

import warnings

import numpy as np
import pytest
import torch
from diffusers import FluxPipeline
from peft.tuners.lora import LoraLayer

from digen_core.algorithms.flow_grpo import FlowGrpo
from digen_core.checkpoints.export import save_adapter
from digen_core.config.run import RunConfig
from digen_core.models import versions
from digen_core.models.trainable import (
    FIRST_ADAPTER,
    reference_weights,
    set_weights,
    trainable_parameters,
)
from digen_core.models.versions import versions_of
from digen_core.training import gradient_sum
from digen_core.training.gradient_sum import pack_gradient
from digen_core.training.pairs import Pairs
from digen_core.transport.arrays import rounded, to_array, to_arrays, viewed
from digen_core.transport.fingerprint import content_hash
from support.tiny_policies import LORA, load, load_trainable

COUNT = 3
KINDS = pytest.mark.parametrize("lora", [LORA, None], ids=["adapters", "all weights"])
DTYPES = pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])


def weights_of(policy, version: int) -> dict[str, np.ndarray]:
    """Masters that training might have made; the same for any policy that was never changed."""
    generator = np.random.default_rng(version)
    return {
        name: generator.normal(scale=0.1, size=parameter.shape).astype(to_array(parameter).dtype)
        for name, parameter in trainable_parameters(policy).items()
    }


def holding(path, versions, *args, **settings):
    policy = load_trainable(path, *args, **settings)
    store = versions_of(policy)
    for version in versions:
        store.hold(version, weights_of(policy, version))
    return policy, store


def velocity_of(policy):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(COUNT, *policy.latent_shape, generator=generator, dtype=policy.latent_dtype)
    condition = policy.encode(["a red circle"] * COUNT)
    with torch.no_grad():
        return policy.velocity(x, torch.linspace(0.2, 0.9, COUNT), condition)


def gradient_at(policy, trained=None):
    generator = torch.Generator().manual_seed(4)
    shape, dtype = policy.latent_shape, policy.latent_dtype
    x = torch.randn(COUNT, *shape, generator=generator, dtype=dtype)
    pairs = Pairs(
        x=x,
        x_next=x + 0.1 * torch.randn(COUNT, *shape, generator=generator, dtype=dtype),
        behaviour_logprob=torch.full((COUNT,), -0.5, dtype=dtype),
        advantage=torch.tensor([1.0, -0.5, -2.0], dtype=dtype),
        sigma=torch.tensor([0.9, 0.6, 0.3]),
        sigma_next=torch.tensor([0.7, 0.4, 0.1]),
        sigma_max=0.9,
        condition=policy.encode(["a red circle"] * COUNT),
        is_own=torch.zeros(COUNT, dtype=torch.bool),
        is_stale=torch.zeros(COUNT, dtype=torch.bool),
    )
    config = RunConfig(algorithm=FlowGrpo(kl_coefficient=0.1, clip_range=0.9))
    return to_arrays(pack_gradient(policy, pairs, config, parameters=trained).gradient)


def weights_in(policy):
    return {name: value.copy() for name, value in to_arrays(trainable_parameters(policy)).items()}


def assert_equal(left, right):
    assert left.keys() == right.keys()
    for name, value in left.items():
        np.testing.assert_array_equal(value, right[name])


# --- each version as if it were the only one --------------------------------------------------


@pytest.mark.ci_but_one
@DTYPES
@KINDS
def test_velocities_are_those_of_a_policy_that_held_one_version_only(tiny_flux, lora, dtype):
    expected = {}
    for version in (3, 4, 5):
        policy, alone = holding(tiny_flux, [version], dtype, lora)
        alone.activate(version)
        expected[version] = velocity_of(policy)
    assert not torch.equal(expected[3], expected[4])
    policy, store = holding(tiny_flux, [3, 4], dtype, lora)
    for version in (3, 4, 4, 3, 4):
        store.activate(version)
        assert torch.equal(velocity_of(policy), expected[version])
    store.drop(3)
    store.hold(5, weights_of(policy, 5))
    for version in (4, 5, 4):
        store.activate(version)
        assert torch.equal(velocity_of(policy), expected[version])


@pytest.mark.ci_but_one
@DTYPES
@KINDS
def test_gradients_are_those_of_a_policy_that_held_one_version_only(
    tiny_flux, lora, dtype, monkeypatch
):
    expected = {}
    for version in (3, 4):
        policy, alone = holding(tiny_flux, [version], dtype, lora, keep_reference=True)
        alone.activate(version)
        expected[version] = gradient_at(policy)
        assert any(value.any() for value in expected[version].values())
    policy, store = holding(tiny_flux, [3, 4], dtype, lora, keep_reference=True)
    for version in (4, 3, 4):
        store.activate(version)
        assert_equal(gradient_at(policy), expected[version])
        with monkeypatch.context() as patched:  # it takes a look through all modules
            patched.delattr(gradient_sum, "trainable_parameters")
            assert_equal(gradient_at(policy, store.trained), expected[version])


@KINDS
def test_what_is_trained_is_known_without_a_look_through_the_model(tiny_flux, lora):
    def assert_known():
        found = trainable_parameters(policy)
        assert list(store.trained) == list(found)
        assert all(store.trained[name] is own for name, own in found.items())

    policy, store = holding(tiny_flux, [], lora=lora)
    assert_known()
    for version in (3, 4):
        store.hold(version, weights_of(policy, version))
        store.activate(version)
        assert_known()
    with store.temporary(weights_of(policy, 5)):
        assert_known()
    store.drop(3)
    store.hold(6, weights_of(policy, 6))
    for version in (4, 6, 4):
        store.activate(version)
        assert_known()


def test_a_gradient_touches_the_adapter_of_its_version_only(tiny_flux):
    policy, store = holding(tiny_flux, [3, 4])
    store.activate(3)
    x = torch.ones(1, *policy.latent_shape, dtype=policy.latent_dtype)
    condition = policy.encode(["a red circle"])
    policy.velocity(x, torch.full((1,), 0.5), condition).sum().backward()
    own = {id(parameter) for parameter in trainable_parameters(policy).values()}
    touched = {id(p) for p in policy.transformer.parameters() if p.grad is not None}
    assert touched
    assert touched <= own


@KINDS
def test_a_version_has_the_names_and_the_hash_of_what_was_pushed(tiny_flux, lora):
    names = list(trainable_parameters(load_trainable(tiny_flux, lora=lora)))
    policy, store = holding(tiny_flux, [7, 12], lora=lora)
    for version in (7, 12):
        store.activate(version)
        assert list(trainable_parameters(policy)) == names
        pushed = content_hash(weights_of(policy, version))
        assert content_hash(weights_in(policy)) == pushed


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@KINDS
def test_a_half_precision_model_holds_its_masters_as_they_are_pushed(tiny_flux, lora, dtype):
    policy, store = holding(tiny_flux, [3, 4, 5], dtype, lora)
    for version in (4, 3, 5):
        store.activate(version)
        masters = weights_of(policy, version)
        pushed = rounded(masters, store.dtypes)
        assert set(store.dtypes.values()) == {getattr(torch, dtype)}
        for name, own in trainable_parameters(policy).items():
            assert torch.equal(own, viewed(pushed[name]))
            assert not torch.equal(own.float(), torch.from_numpy(masters[name]))


@KINDS
def test_the_reference_is_the_base_model_whichever_version_is_active(tiny_flux, lora):
    base = velocity_of(load(tiny_flux))
    policy, store = holding(tiny_flux, [3, 4], lora=lora, keep_reference=True)
    for version in (4, 3):
        store.activate(version)
        before = velocity_of(policy)
        with reference_weights(policy):
            assert torch.equal(velocity_of(policy), base)
        assert torch.equal(velocity_of(policy), before)
        assert_equal(weights_in(policy), weights_of(policy, version))


def test_nobody_looks_through_the_model_to_turn_adapters_off_or_to_switch(tiny_flux, monkeypatch):
    policy, store = holding(tiny_flux, [3, 4])
    with monkeypatch.context() as patched:
        for look in ("modules", "named_modules"):
            patched.delattr(torch.nn.Module, look)
        for version in (4, 3):
            store.activate(version)
        with reference_weights(policy) as reference:
            assert reference.transformer is policy.transformer
    assert_equal(weights_in(policy), weights_of(policy, 3))


def test_versions_are_switched_as_peft_does(tiny_flux):
    def state():
        layers = [own for own in policy.transformer.modules() if isinstance(own, LoraLayer)]
        trained = {n: own.requires_grad for n, own in policy.transformer.named_parameters()}
        return [layer.active_adapters for layer in layers], trained

    policy, store = holding(tiny_flux, [3, 4])
    names = {3: "version_0", 4: "version_1"}
    for version in (3, 4, 3):
        store.activate(version)
        found = state()
        policy.transformer.set_adapter(names[version])
        assert found == state()
    with store.temporary(weights_of(policy, 5)):
        found = state()
        policy.transformer.set_adapter(FIRST_ADAPTER)
        assert found == state()


# --- what is held -----------------------------------------------------------------------------


@KINDS
def test_versions_come_and_go(tiny_flux, lora):
    policy, store = holding(tiny_flux, [], lora=lora)
    assert (store.held, store.active) == ([], None)
    store.hold(9, weights_of(policy, 9))
    store.hold(8, weights_of(policy, 8))
    assert store.held == [8, 9]
    store.activate(8)
    assert store.active == 8
    store.drop(9)
    assert (store.held, store.active) == ([8], 8)
    store.drop(8)
    assert (store.held, store.active) == ([], None)
    for forget in (store.activate, store.drop):
        with pytest.raises(KeyError):
            forget(8)


@KINDS
def test_a_push_in_mid_trajectory_leaves_the_older_version_in_use(tiny_flux, lora):
    policy, store = holding(tiny_flux, [0], lora=lora)
    store.activate(0)
    before = velocity_of(policy)
    for version in (1, 2):
        store.hold(version, weights_of(policy, version))
        store.activate(0)
        assert torch.equal(velocity_of(policy), before)


@KINDS
def test_a_version_that_is_held_again_is_replaced(tiny_flux, lora):
    policy, store = holding(tiny_flux, [1], lora=lora)
    store.activate(1)
    store.hold(1, weights_of(policy, 2))
    store.activate(1)
    assert store.held == [1]
    assert_equal(weights_in(policy), weights_of(policy, 2))


@KINDS
def test_weights_that_do_not_fit_change_nothing(tiny_flux, lora):
    policy, store = holding(tiny_flux, [1], lora=lora)
    store.activate(1)
    with pytest.raises(ValueError, match=r"1 names differ, e.g. another"):
        store.hold(2, {**weights_of(policy, 2), "another": np.zeros(1)})
    assert (store.held, store.active) == ([1], 1)
    assert_equal(weights_in(policy), weights_of(policy, 1))


def test_adapters_of_dropped_versions_are_used_again(tiny_flux):
    policy, store = holding(tiny_flux, [0, 1])
    attached = set(policy.transformer.peft_config)
    for version in range(2, 6):
        store.drop(version - 2)
        store.hold(version, weights_of(policy, version))
    assert set(policy.transformer.peft_config) == attached
    assert len(attached) == 3  # two versions, and what make_trainable attached


def test_an_active_version_is_not_switched_to_again(tiny_flux, monkeypatch):
    _, store = holding(tiny_flux, [0, 1])
    store.activate(0)
    monkeypatch.setattr(versions, "use_adapter", None)
    store.activate(0)
    with pytest.raises(TypeError):
        store.activate(1)


@KINDS
def test_received_arrays_are_read_only_and_raise_no_warning(tiny_flux, lora):
    policy, store = holding(tiny_flux, [], lora=lora)
    weights = weights_of(policy, 1)
    for value in weights.values():
        value.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.hold(1, weights)
        store.activate(1)


# --- weights of no version --------------------------------------------------------------------


@KINDS
def test_temporary_weights_leave_every_version_as_it_was(tiny_flux, lora):
    policy, store = holding(tiny_flux, [3, 4], lora=lora)
    store.activate(3)
    average = weights_of(policy, 100)
    with store.temporary(average):
        assert store.active is None
        assert_equal(weights_in(policy), average)
    assert store.active == 3
    for version in (3, 4):
        store.activate(version)
        assert_equal(weights_in(policy), weights_of(policy, version))


@KINDS
def test_temporary_weights_are_taken_back_after_an_error(tiny_flux, lora):
    policy, store = holding(tiny_flux, [3], lora=lora)
    store.activate(3)
    with pytest.raises(KeyError), store.temporary(weights_of(policy, 100)):
        raise KeyError
    with pytest.raises(ValueError, match="names differ"), store.temporary({}):
        pass
    assert store.active == 3
    assert_equal(weights_in(policy), weights_of(policy, 3))


@KINDS
def test_temporary_weights_need_no_version(tiny_flux, lora):
    policy, store = holding(tiny_flux, [], lora=lora)
    with store.temporary(weights_of(policy, 100)):
        assert_equal(weights_in(policy), weights_of(policy, 100))
    assert store.active is None


@pytest.mark.parametrize("temporary", [False, True])
def test_the_active_weights_are_saved_whatever_else_is_held(tiny_flux, tmp_path, temporary):
    policy, store = holding(tiny_flux, [3, 4], "float32")
    expected = load_trainable(tiny_flux, "float32")
    set_weights(expected, weights_of(expected, 100 if temporary else 3))
    store.activate(3)
    if temporary:
        with store.temporary(weights_of(policy, 100)):
            save_adapter(policy, tmp_path)
    else:
        save_adapter(policy, tmp_path)
    pipeline = FluxPipeline.from_pretrained(tiny_flux)
    pipeline.load_lora_weights(tmp_path)
    (adapter,) = pipeline.transformer.peft_config.values()
    assert (adapter.r, adapter.lora_alpha) == (LORA.rank, LORA.alpha)
    loaded = load(tiny_flux, "float32")
    loaded.transformer = pipeline.transformer
    assert torch.equal(velocity_of(loaded), velocity_of(expected))
