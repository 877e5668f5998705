"""The kernel of attention: chosen by a key, with the same numbers."""

from contextlib import nullcontext

import pytest
import torch
from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry
from pydantic import ValidationError

from digen_core.config.families import FAMILIES
from digen_core.config.model import ModelConfig
from digen_core.errors import ConfigError
from digen_core.models.attention import make_gradients_dense, set_attention
from support.families import load_tiny

CHOOSING = tuple(name for name, family in FAMILIES.items() if len(family.attention) > 1)


@pytest.mark.ci_but_one
@pytest.mark.parametrize("family", CHOOSING)
@pytest.mark.parametrize("kernel", ["native", "math"])
def test_the_kernel_is_used_and_gives_the_same_velocities(
    tiny_families, family, kernel, monkeypatch
):
    policy = load_tiny(tiny_families[family], family, "float64")
    condition = policy.encode(["a red circle"])
    x = torch.ones(1, *policy.latent_shape, dtype=torch.float64)
    sigma = torch.full((1,), 0.5)
    with torch.no_grad():
        expected = policy.velocity(x, sigma, condition)
        set_attention(policy, policy.config.model_copy(update={"attention": kernel}))
        used = []
        sdpa_kernel = torch.nn.attention.sdpa_kernel
        monkeypatch.setattr(
            torch.nn.attention, "sdpa_kernel", lambda *own: used.append(own) or sdpa_kernel(*own)
        )
        found = policy.velocity(x, sigma, condition)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert bool(used) == (kernel == "math")


def test_a_models_kernel_is_no_other_models(tiny_families):
    """A GPU's kernel, left as the default of the process, would fail a later model on the CPU."""
    before = _AttentionBackendRegistry.get_active_backend()
    policy = load_tiny(tiny_families["flux"], "flux", "float64")
    set_attention(policy, policy.config.model_copy(update={"attention": "native_flash"}))
    assert _AttentionBackendRegistry.get_active_backend() == before


@pytest.mark.parametrize("kernel", ["cudnn", "efficient", "flash"])
def test_a_kernel_for_cuda_is_refused_elsewhere(tiny_families, kernel):
    policy = load_tiny(tiny_families["flux"], "flux", attention=kernel)
    with pytest.raises(ConfigError, match=f"model.attention is '{kernel}', which needs a CUDA"):
        set_attention(policy, policy.config)


@pytest.mark.parametrize(
    ("family", "kernel"),
    [
        ("sd3", "math"),
        ("qwen_image", "flash"),
        ("qwen_image21", "native_flash"),
        ("hunyuan_video", "native_flash"),
        ("hunyuan_video15", "flash"),
        ("flux2", "cudnn"),
    ],
)
def test_a_kernel_that_a_family_cannot_have_is_refused(family, kernel):
    with pytest.raises(ValidationError, match=f"model.attention is '{kernel}', but {family} takes"):
        ModelConfig(family=family, path="somewhere", attention=kernel)


@pytest.mark.parametrize(
    ("kernel", "dtype", "takes"),
    [
        *((kernel, "float32", "bfloat16 or float16") for kernel in ("cudnn", "flash")),
        ("native_flash", "float32", "bfloat16 or float16"),
        ("efficient", "float64", "bfloat16 or float16 or float32"),
    ],
)
def test_a_kernel_is_refused_with_a_dtype_that_it_does_not_take_on_cuda(
    tiny_families, kernel, dtype, takes
):
    policy = load_tiny(tiny_families["flux"], "flux", dtype, attention=kernel)
    policy.device = torch.device("cuda")  # by name
    with pytest.raises(ConfigError, match=rf"takes {takes} on CUDA, but model\.dtype is '{dtype}'"):
        set_attention(policy, policy.config)


def test_every_kernel_is_one_of_diffusers():
    from digen_core.models.attention import _BACKENDS

    names = {name for family in FAMILIES.values() for name in family.attention}
    assert names == _BACKENDS.keys()
    assert all(backend in AttentionBackendName for backend in _BACKENDS.values())


def layouts(policy) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Strides of the gradients that attention gets, and of its results, of all its calls."""
    found = []

    def attend(*arguments, **named):
        result = real(*arguments, **named)
        if result.requires_grad:
            result.register_hook(lambda grad: found.append((grad.stride(), result.stride())))
        return result

    real, condition = torch.nn.functional.scaled_dot_product_attention, policy.encode(["a circle"])
    x = torch.randn(2, *policy.latent_shape, requires_grad=True)
    condition = {name: value.repeat_interleave(2, 0) for name, value in condition.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "scaled_dot_product_attention", attend)
        policy.velocity(x, torch.full((2,), 0.5), condition).square().mean().backward()
    assert found
    return {*found}


@pytest.mark.parametrize("family", [name for name in CHOOSING if name != "flux2"])
def test_gradients_are_laid_out_as_what_attention_returned(tiny_families, family):
    policy = load_tiny(tiny_families[family], family)
    if family == "flux":  # else the rest would show nothing
        assert any(gradient != result for gradient, result in layouts(policy))
    make_gradients_dense(policy.transformer)
    assert all(gradient == result for gradient, result in layouts(policy))


def test_gradients_of_flux2_cannot_be_laid_out_so(tiny_families):
    """So it takes no cuDNN; where they can, its row may name it."""
    policy = load_tiny(tiny_families["flux2"], "flux2")
    make_gradients_dense(policy.transformer)
    assert any(gradient != result for gradient, result in layouts(policy))
    assert "cudnn" not in FAMILIES["flux2"].attention


def test_torch_never_chooses_cudnn_by_itself(tiny_families):
    policy = load_tiny(tiny_families["flux"], "flux")
    torch.backends.cuda.enable_cudnn_sdp(enabled=True)
    set_attention(policy, policy.config)
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_with_cudnn_gradients_are_made_dense(tiny_families, monkeypatch):
    policy = load_tiny(tiny_families["flux"], "flux")
    policy.device = torch.device("cuda")  # no kernel is called before the layouts are looked at
    changes = {"attention": "cudnn", "dtype": "bfloat16"}
    monkeypatch.setattr("torch.nn.attention.sdpa_kernel", lambda *kernels: nullcontext())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("digen_core.models.attention.make_gradients_dense", lambda transformer: None)
        set_attention(policy, policy.config.model_copy(update=changes))
    policy.device = torch.device("cpu")
    assert len(layouts(policy)) == 2  # of blocks with one stream, and with two
    policy.device = torch.device("cuda")
    set_attention(policy, policy.config.model_copy(update=changes))
    policy.device = torch.device("cpu")
    assert len(layouts(policy)) == 1
