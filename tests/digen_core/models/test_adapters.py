"""Adapters that a run starts from: folded in, trained on top of, and left out of the export."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from digen_core.checkpoints.export import save_adapter
from digen_core.config.run import RunConfig
from digen_core.config.train import LoraConfig
from digen_core.errors import UserError
from digen_core.models.policy import TRAINER_PARTS
from digen_core.models.trainable import make_trainable, reference_weights, set_weights
from digen_core.preflight.run import check_inputs
from support.families import HEIGHT, WIDTH, load_tiny
from support.stock import load_adapters, stock
from support.tiny_policies import moved_weights

LORA = LoraConfig(rank=3, alpha=10)  # a strength that is lost if alpha is
FAMILIES = ("flux", "wan", "hunyuan_video15")  # the last one's stock pipeline loads none itself


def trained(folder, family, out=None, seed=0, **model):
    """Return a policy whose adapter was moved, and saved."""
    policy = load_tiny(folder, family, **model)
    torch.manual_seed(seed)  # of what peft draws
    make_trainable(policy, LORA)
    set_weights(policy, moved_weights(policy, seed=seed))
    if out is not None:
        save_adapter(policy, out)
    return policy


@pytest.fixture(scope="module")
def adapters(tiny_families, tmp_path_factory) -> dict[str, Path]:
    """Folder of an adapter, by family."""
    folders = {family: tmp_path_factory.mktemp(f"turbo_{family}") for family in FAMILIES}
    for family, folder in folders.items():
        trained(tiny_families[family], family, folder)
    return folders


@torch.no_grad()
def velocity_of(policy, base) -> torch.Tensor:
    x = torch.randn(2, *policy.latent_shape, generator=torch.Generator().manual_seed(0))
    return policy.velocity(x, torch.tensor([0.3, 0.8]), base.encode(["a red circle"] * 2))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_trained_comes_on_top_of_an_adapter(family, tiny_families, adapters, tmp_path):
    folder, turbo = tiny_families[family], {"turbo": {"path": str(adapters[family])}}
    base = load_tiny(folder, family)
    beside = velocity_of(trained(folder, family), base)
    folded = load_tiny(folder, family, adapters=turbo)
    torch.testing.assert_close(velocity_of(folded, base), beside, rtol=1e-5, atol=1e-5)
    assert not any(p.requires_grad for p in folded.transformer.parameters())
    # A trainer, which has no text encoders, holds the same numbers.
    trainer = load_tiny(folder, family, parts=TRAINER_PARTS, adapters=turbo)
    assert torch.equal(velocity_of(trainer, base), velocity_of(folded, base))

    on_top = trained(folder, family, tmp_path, seed=1, adapters=turbo)
    assert not torch.allclose(velocity_of(on_top, base), beside, atol=1e-3)
    with reference_weights(on_top):  # the policy that training began with
        assert torch.equal(velocity_of(on_top, base), velocity_of(folded, base))
    # The export holds the trained one alone: in stock diffusers it goes beside the other.
    pipeline = stock(folder)
    load_adapters(pipeline, adapters[family], adapter_name="turbo")
    load_adapters(pipeline, tmp_path, adapter_name="trained")
    pipeline.transformer.set_adapters(["turbo", "trained"])
    both = type(base)(pipeline, base.config, base.device)
    torch.testing.assert_close(
        velocity_of(both, base), velocity_of(on_top, base), rtol=1e-5, atol=1e-5
    )


@pytest.mark.slow
def test_adapters_have_weights_and_add_up(tiny_families, adapters):
    folder, path = tiny_families["flux"], adapters["flux"]
    (file,) = path.glob("*.safetensors")
    halves = {
        "a": {"path": str(path), "weight": 0.25, "file": file.name},
        "b": {"path": str(file), "weight": 0.75},
    }
    base = load_tiny(folder, "flux")
    both = load_tiny(folder, "flux", adapters=halves)
    whole = load_tiny(folder, "flux", adapters={"turbo": {"path": str(path)}})
    torch.testing.assert_close(
        velocity_of(both, base), velocity_of(whole, base), rtol=1e-5, atol=1e-5
    )


@pytest.mark.slow
def test_an_adapter_of_something_else_is_refused(tiny_families, adapters):
    flux, wan = tiny_families["flux"], str(adapters["wan"])
    with pytest.raises(UserError, match=r"model.adapters.turbo \(.*\) changes decoder, encoder"):
        load_tiny(flux, "flux", adapters={"turbo": {"path": f"{flux}/vae"}})
    with pytest.raises(UserError, match=r"model.adapters.turbo \(.*turbo_wan"):
        load_tiny(flux, "flux", adapters={"turbo": {"path": wan}})


def layer(name, inputs, outputs):
    weights = {"A": torch.zeros(2, inputs), "B": torch.zeros(outputs, 2)}
    return {f"transformer.{name}.lora_{own}.weight": value for own, value in weights.items()}


@pytest.mark.parametrize(
    ("name", "inputs", "outputs", "message"),
    [
        ("transformer_blocks.99.attn.to_q", 64, 64, "it has transformer_blocks.99.attn.to_q, whic"),
        ("transformer_blocks.0.attn.to_k", 65, 64, "its transformer_blocks.0.attn.to_k has 65 inp"),
        ("transformer_blocks.0.attn.to_k", 64, 96, "its transformer_blocks.0.attn.to_k has 96 out"),
    ],
)
def test_an_adapter_that_fits_in_part_is_refused(
    name, inputs, outputs, message, tiny_families, tmp_path
):
    fitting = layer("transformer_blocks.0.attn.to_q", 64, 64)
    save_file(fitting | layer(name, inputs, outputs), tmp_path / "turbo.safetensors")
    with pytest.raises(UserError, match=f"is of another model: {message}"):
        load_tiny(tiny_families["flux"], "flux", adapters={"x": {"path": str(tmp_path)}})


def test_an_error_without_words_is_told_by_its_kind(tiny_families, tmp_path):
    """diffusers asserts that a LoRA of kohya's is as wide as FLUX.1."""
    name = "lora_unet_single_blocks_0_linear1"
    sides = {"down": torch.zeros(2, 64), "up": torch.zeros(7 * 64, 2)}
    weights = {f"{name}.lora_{own}.weight": value for own, value in sides.items()}
    narrow = {"narrow": {"path": str(tmp_path / "narrow.safetensors")}}
    save_file(weights | {f"{name}.alpha": torch.tensor(2.0)}, narrow["narrow"]["path"])
    with pytest.raises(UserError, match=r"narrow\.safetensors\) cannot be loaded: AssertionErr"):
        load_tiny(tiny_families["flux"], "flux", adapters=narrow)


@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        ({"path": "no/such/folder"}, "turbo.path no/such/folder is neither a folder or file"),
        ({"path": "{tmp}/empty"}, "empty holds no safetensors file"),
        ({"path": "{tmp}", "file": "c.safetensors"}, "turbo.file c.safetensors is not in"),
        ({"path": "{tmp}"}, "several safetensors files, among them a.safetensors; name one as"),
    ],
)
def test_what_can_be_known_before_the_start(adapter, message, tiny_flux, tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("a", "b"):
        (tmp_path / f"{name}.safetensors").touch()
    adapter = {**adapter, "path": adapter["path"].format(tmp=tmp_path)}
    model = {"path": tiny_flux, "height": HEIGHT, "width": WIDTH, "adapters": {"turbo": adapter}}
    with pytest.raises(UserError, match=message):
        check_inputs(RunConfig.model_validate({"model": model}))
