"""torch.compile of the blocks: the same velocities and gradients, whatever is active."""

import contextvars
from contextlib import suppress
from functools import partial

import pytest
import torch

from digen_core.config.families import FAMILIES as FAMILY_ROWS
from digen_core.config.model import ModelConfig
from digen_core.config.run import RunConfig
from digen_core.errors import UserError
from digen_core.models.compiled import blocks_of, compile_blocks, compile_meter
from digen_core.models.compiler import require_compiler
from digen_core.models.loading import prepare
from digen_core.models.trainable import reference_weights, set_weights, trainable_parameters
from support.families import FAMILIES, frames_of, load_tiny
from support.tiny_policies import TINY, load, load_trainable, moved_weights

with suppress(ImportError):  # the compiler does: too late if distutils is there
    import setuptools  # noqa: F401


@pytest.mark.parametrize("family", FAMILIES)
def test_a_transformer_of_every_family_has_blocks(tiny_families, family):
    """Those that are compiled and sharded: diffusers names none of SD3's and Sana's."""
    policy = load_tiny(tiny_families[family], family)
    blocks = {*blocks_of(policy.transformer)}
    for name in FAMILY_ROWS[family].blocks:
        assert {*policy.transformer.get_submodule(name)} <= blocks


@pytest.mark.families
def test_compiled_blocks_compute_what_the_others_do(tiny_flux):
    plain, compiled = (load_trainable(tiny_flux, "float32") for _ in range(2))
    weights = moved_weights(plain)
    for policy in (plain, compiled):
        set_weights(policy, weights)
    compile_blocks(compiled, ModelConfig(compile=True))
    blocks = compiled.transformer.transformer_blocks
    assert all(block._compiled_call_impl is not None for block in blocks)
    rows = plain.encode(["a red circle"] * 4)

    def velocity_of(policy, count):
        generator = torch.Generator().manual_seed(count)
        x = torch.randn(count, *policy.latent_shape, generator=generator)
        condition = {name: value[:count] for name, value in rows.items()}
        return policy.velocity(x, torch.full((count,), 0.5), condition)

    def compare(count):
        found = velocity_of(compiled, count)
        torch.testing.assert_close(found, velocity_of(plain, count), rtol=1e-5, atol=1e-5)
        return found

    with torch.no_grad():
        sampled = compare(4)
        compare(3)  # from here on the size of a batch is dynamic
    with reference_weights(compiled), reference_weights(plain):
        compare(4)
    replayed = compare(4)
    torch.testing.assert_close(replayed, sampled, rtol=1e-6, atol=1e-6)  # far below a clip range
    gradients = [
        torch.autograd.grad(
            velocity_of(policy, 4).square().sum(),
            list(trainable_parameters(policy).values()),
            allow_unused=True,
        )
        for policy in (compiled, plain)
    ]
    for found, expected in zip(*gradients, strict=True):
        assert (found is None) == (expected is None)
        if found is not None:
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.families
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("family", "lora"), [("flux", True), ("sana", True), ("wan", False)])
def test_compiled_blocks_round_in_a_replay_as_in_samples(tiny_families, family, lora):
    """In bfloat16, with blocks that are recomputed, of one sample and of several."""
    train = {"lora": {"rank": 4} if lora else None, "gradient_checkpointing": True}
    policy = load_tiny(tiny_families[family], family, "bfloat16")
    model = {"family": family, "num_frames": frames_of(family), "dtype": "bfloat16"}
    config = {"model": model | {"compile": True, "device": "cpu"}, "train": train}
    prepare(policy, RunConfig.model_validate(config))
    set_weights(policy, moved_weights(policy))
    parameters = list(trainable_parameters(policy).values())
    for count in (4, 1, 3):
        generator = torch.Generator().manual_seed(count)
        x = torch.randn(count, *policy.latent_shape, generator=generator)
        pair = x, torch.rand(count, generator=generator), policy.encode(["a red circle"] * count)
        with torch.no_grad(), policy.sampling("model"):
            sampled = policy.velocity(*pair)
        replayed = policy.velocity(*pair)
        assert sampled.isfinite().all()
        assert torch.equal(sampled, replayed)
        gradients = torch.autograd.grad(replayed.sum(), parameters, allow_unused=True)
        assert any(own.abs().max() > 0 for own in gradients if own is not None)


@pytest.mark.families
def test_compiled_blocks_compute_in_float8_where_others_do(tiny_flux):
    """And in the model's dtype after that, and again with other weights."""
    tree = {"rollout": {"precision": "float8"}, "algorithm": {"correction": "recompute"}}
    config = {"path": str(tiny_flux), "device": "cpu", "dtype": "float64", **TINY}
    policies = []
    for compiled in (False, True):
        policy = load(tiny_flux, "float64")
        own = {**tree, "model": {**config, "compile": compiled}}
        prepare(policy, RunConfig.model_validate({**own, "train": {"lora": None}}))
        policies.append(policy)
    rows = policies[0].encode(["a red circle"] * 3)
    x = torch.randn(3, *policies[0].latent_shape, dtype=torch.float64)
    for seed in range(2):
        weights, found = moved_weights(policies[0], seed, scale=0.01), []
        for policy in policies:
            set_weights(policy, weights)
            with torch.no_grad():
                with policy.sampling("float8"):
                    found.append(policy.velocity(x, torch.full((3,), 0.5), rows))
                found.append(policy.velocity(x, torch.full((3,), 0.5), rows))
        low, own, compiled_low, compiled_own = found
        assert (low - own).norm() > 1e-3 * own.norm()
        torch.testing.assert_close(compiled_own, own, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(compiled_low, low, rtol=1e-6, atol=1e-6)


@pytest.mark.families
def test_blocks_are_compiled_anew_as_often_as_it_takes_in_every_task(tiny_flux, monkeypatch):
    """A worker runs each task in a context of its own, where torch's settings are the defaults."""
    from torch._dynamo.testing import CompileCounter

    counter, compile_block = CompileCounter(), torch.nn.Module.compile
    counting = partial(compile_block, backend=counter, dynamic=False)

    def without_options(block, *, options, **how):  # which are inductor's
        counting(block, **how)

    monkeypatch.setattr(torch.nn.Module, "compile", without_options)
    policy = load_trainable(tiny_flux, "float32")
    compile_blocks(policy, ModelConfig(compile=True))

    @torch.no_grad()
    def sample(counts):
        for count in counts:
            condition = policy.encode(["a red circle"] * count)
            policy.velocity(torch.zeros(count, *policy.latent_shape), torch.ones(count), condition)

    meter = compile_meter()
    meter.read()
    sample([1])
    assert meter.read() > 0
    sample([1])
    assert meter.read() == 0
    once = counter.frame_count
    contextvars.Context().run(sample, range(2, 13))  # torch's own limit is 8
    assert counter.frame_count == 12 * once


@pytest.mark.parametrize(("device", "variable"), [("cpu", "CXX"), ("cuda", "CC")])
def test_a_machine_without_a_compiler_is_told_apart(device, variable, monkeypatch, tmp_path):
    monkeypatch.setenv(variable, "no-such-compiler")
    with pytest.raises(UserError, match=f"but no-such-compiler is not there; .* in {variable}"):
        require_compiler(device)
    monkeypatch.delenv(variable)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="needs a compiler on every worker, but g"):
        require_compiler(device)
    (tmp_path / "g++").touch(mode=0o755)
    (tmp_path / "clang").touch(mode=0o755)
    require_compiler(device)
