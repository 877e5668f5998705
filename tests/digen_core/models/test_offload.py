"""What waits on the host, and how a VAE decodes in less memory."""

from contextlib import contextmanager

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from digen_core.config.model import ModelConfig
from digen_core.models.offload import off_device, on_device
from support.families import FAMILIES, load_tiny, sliced

pytestmark = pytest.mark.slow

META = torch.device("meta")  # any other device


def places(module) -> set[str]:
    return {tensor.device.type for tensor in [*module.parameters(), *module.buffers()]}


def test_a_module_is_on_the_device_while_the_body_runs():
    module = nn.BatchNorm1d(3).requires_grad_(False)
    before = {name: (t.data_ptr(), t.clone()) for name, t in module.state_dict().items()}
    with on_device([module], META):
        assert places(module) == {"meta"}
        with on_device([module], META):
            pass
        assert places(module) == {"meta"}
    after = module.state_dict()
    for name, (address, value) in before.items():
        assert after[name].data_ptr() == address  # not a copy
        torch.testing.assert_close(after[name], value)


def test_what_two_modules_share_is_moved_once():
    one, two = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    two.weight = one.weight
    with on_device([nn.Sequential(one, two)], META):
        assert one.weight is two.weight
        assert one.weight.device == META
    assert one.weight is two.weight
    assert one.weight.device.type == "cpu"


def test_it_goes_back_when_the_body_fails():
    module = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(RuntimeError, match="out of order"), on_device([module], META):
        raise RuntimeError("out of order")
    assert places(module) == {"cpu"}


def test_a_module_makes_room_and_comes_back():
    module = nn.BatchNorm1d(3)
    before = {name: (own, own.data_ptr(), own.clone()) for name, own in module.named_parameters()}
    with off_device([module], torch.device("cpu")):
        for name, own in module.named_parameters():
            _, address, value = before[name]
            assert own.data_ptr() != address  # of the device, which is free
            torch.testing.assert_close(own, value)
    for name, own in module.named_parameters():
        same, _, value = before[name]
        assert own is same
        torch.testing.assert_close(own, value)


def test_the_transformer_makes_room_once_while_prompts_are_embedded(tiny_families, monkeypatch):
    from digen_core.models.pipeline import encoder

    policy = load_tiny(tiny_families["flux"], "flux", offload=("text_encoders", "transformer"))
    assert places(policy.transformer) == {"cpu"}
    aside = []

    def noting(modules, device):
        aside.extend(modules)
        return off_device(modules, device)

    monkeypatch.setattr(encoder, "off_device", noting)
    with policy.encoding():
        policy.encode(["a red circle"])
        policy.encode(["a blue square"])
    assert aside == [policy.transformer]
    policy.encode(["a red circle"])
    assert len(aside) == 2


def test_the_transformer_makes_room_once_for_prompts_of_several_sizes(tiny_families, monkeypatch):
    from digen_core.models.pipeline import encoder

    policy = load_tiny(tiny_families["flux"], "flux", offload=("text_encoders", "transformer"))
    view = policy.at_size((48, 32, 1))
    aside = []

    @contextmanager
    def noting(modules, device):
        aside.append("goes")
        yield
        aside.append("comes")

    monkeypatch.setattr(encoder, "off_device", noting)
    with policy.encoding():
        within = policy.at_size((32, 48, 1))
        for own in (policy, view, within):
            own.encode(["a red circle"])
    assert aside == ["goes", "comes"]
    within.encode(["a red circle"])  # as one that was made at another time
    assert aside == ["goes", "comes"] * 2


@pytest.mark.ci_but_one
@pytest.mark.parametrize("family", FAMILIES)
def test_parts_are_where_they_are_needed(tiny_families, family, monkeypatch):
    """The device is another one only in name here: what is moved there is noted."""
    from digen_core.models.pipeline import encoder
    from digen_core.models.pipeline import policy as decoder

    policy = load_tiny(tiny_families[family], family, offload=("text_encoders", "vae"))
    moved = []

    def noting(modules, device):
        moved.append([type(module).__name__ for module in modules])
        return on_device(modules, device)

    monkeypatch.setattr(encoder, "on_device", noting)
    monkeypatch.setattr(decoder, "on_device", noting)
    policy.encode(["a red circle"])
    (encoders,) = moved
    assert encoders
    assert all("VAE" not in name and "Transformer" not in name for name in encoders)
    moved.clear()
    policy.decode(torch.zeros(1, *policy.latent_shape))
    assert moved == [[type(policy.pipeline.vae).__name__]]


@pytest.mark.ci_but_one
@pytest.mark.parametrize("family", FAMILIES)
def test_what_waits_is_loaded_to_the_host(tiny_families, family, monkeypatch):
    from digen_core.models.pipeline import policy as loader

    monkeypatch.setattr(loader, "resolve_device", lambda name: META)
    policy = load_tiny(tiny_families[family], family)
    assert places(policy.pipeline.transformer) == {"meta"}
    assert places(policy.pipeline.vae) == {"meta"}
    assert places(policy.pipeline.text_encoder) == {"cpu"}
    policy = load_tiny(tiny_families[family], family, offload=("vae",))
    assert places(policy.pipeline.vae) == {"cpu"}
    assert places(policy.pipeline.text_encoder) == {"meta"}


@pytest.mark.ci_but_one
@pytest.mark.parametrize("family", FAMILIES)
def test_slices_have_the_same_pixels(tiny_families, family):
    whole, sliced = (
        load_tiny(tiny_families[family], family, vae_slicing=value) for value in (False, True)
    )
    assert sliced.pipeline.vae.use_slicing
    x = torch.randn(3, *whole.latent_shape, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(sliced.decode(x), whole.decode(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", sliced(FAMILIES))
def test_tiles_are_decoded_one_by_one(tiny_families, family):
    small = ("flux", "flux2", "sd3", "z_image")
    side = 64 if family in small else 640 if family in ("sana", "ltx2") else 320  # over a tile
    size = {"height": side, "width": side, "num_frames": 1}
    policy = load_tiny(tiny_families[family], family, vae_tiling=True, **size)
    seen = []
    policy.pipeline.vae.decoder.register_forward_pre_hook(
        lambda _, inputs: seen.append(tuple(inputs[0].shape[-2:]))
    )
    images = policy.decode(torch.zeros(1, *policy.latent_shape))
    assert images.shape[-2:] == (side, side)
    assert len(seen) > 1
    assert all(max(shape) < side // 8 for shape in seen)  # 8 pixels each


def test_a_part_is_named_once():
    with pytest.raises(ValidationError, match="name each part once"):
        ModelConfig(offload=("vae", "vae"))
