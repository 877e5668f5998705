"""Adapters for other programs: the names are theirs, and what is added to the weights is the same.

Judges are diffusers' own conversions from those formats, of LoRAs and of whole checkpoints.
"""

import dataclasses
import re
from pkgutil import resolve_name
from types import MethodType

import numpy as np
import pytest
import torch
from diffusers.loaders import single_file_utils
from diffusers.loaders.lora_conversion_utils import _convert_hunyuan_video_lora_to_diffusers
from safetensors.torch import load_file, save_file

from digen_core.checkpoints.adapter import Adapter, Matrices, read_adapter, save_for
from digen_core.checkpoints.export import save_adapter, save_kept_adapter
from digen_core.checkpoints.manifest import Manifest
from digen_core.checkpoints.slot_tables import DIFFUSERS_NAMES
from digen_core.checkpoints.tensors import write_checkpoint
from digen_core.config.families import FAMILIES
from digen_core.config.run import RunConfig
from digen_core.config.train import LoraConfig
from digen_core.errors import UserError
from digen_core.models.lora_targets import learning
from digen_core.models.trainable import make_trainable, set_weights
from digen_core.training.train_state import initial_state
from digen_core.transport.files import remove_folder
from support import program_keys
from support.checkpoints import position_of
from support.families import DISTILLED, family_of, load_tiny
from support.stock import stock
from support.tiny_policies import moved_weights

RANK, ALPHA = 4, 8.0  # a strength that is lost if alpha is, and rounds nothing
TARGETS = ("comfyui", "kohya")
NOT_KNOWN = {  # what is said of a family that a program has not
    ("comfyui", "sana"): "in ComfyUI; --for hub takes it",
    ("kohya", "sana"): "in kohya's scripts; --for hub takes it",
    ("kohya", "ltx2"): "in kohya's scripts; --for comfyui and --for hub take it",
}
KNOWN = [(t, f) for t in TARGETS for f in FAMILIES if (t, f) not in NOT_KNOWN]
KNOWN += [("comfyui", "ltx2-2.3"), ("comfyui", DISTILLED)]
NOT_LOADED = {  # that kohya's programs have no LoRA for
    "flux": {"norm_out.linear", "proj_out"},
    "sd3": set(),
}


def linear_layers(policy, chosen=lambda name: True):
    """Name -> outputs and inputs of the layers that an adapter of some targets would have."""
    layers = {
        name: tuple(module.weight.shape)
        for name, module in policy.transformer.named_modules()
        if isinstance(module, torch.nn.Linear) and chosen(name)
    }
    return {name: layers[name] for name in learning(layers, FAMILIES[policy.config.family].idle)}


def is_in_block(name):
    lists = ("blocks.", "transformer_blocks.", "single_transformer_blocks.", "layers.")
    return name.startswith((*lists, "noise_refiner.", "context_refiner."))


def adapter_of(family, shapes, seed=0, targets=("to_q",)):
    rng = np.random.default_rng(seed)
    config = RunConfig.model_validate(
        {
            "model": {"family": family, "path": "org/base", "height": 32, "width": 32},
            "train": {"lora": {"rank": RANK, "alpha": ALPHA, "targets": targets}},
        }
    )
    manifest = Manifest(
        **dict(position_of(3, config)), version=3, weights_hash="0", hashes={"weights": "0"}
    )
    layers = {
        name: Matrices(
            rng.normal(size=(RANK, columns)).astype(np.float32) / columns,
            rng.normal(size=(rows, RANK)).astype(np.float32),
        )
        for name, (rows, columns) in shapes.items()
    }
    return Adapter(manifest, config.train.lora, layers)


def exported(target, adapter, folder):
    folder.mkdir(parents=True, exist_ok=True)
    save_for(target, adapter, folder / "own.safetensors")
    return load_file(folder / "own.safetensors")


def keys_of(tensors):
    ends = (".lora_A.weight", ".lora_B.weight", ".lora_down.weight", ".lora_up.weight", ".alpha")
    keys = {key.removesuffix(next(e for e in ends if key.endswith(e))) for key in tensors}
    assert len(tensors) == 3 * len(keys)  # each has its alpha
    return keys


def size_of(policy):
    """What a program's list of names is built from."""
    config, family = policy.transformer.config, policy.config.family
    if family == "sd3":
        return config.num_layers, set(config.dual_attention_layers)
    if family == "z_image":
        return config.n_layers, config.n_refiner_layers
    size = (config.num_layers,)
    if family in ("flux", "flux2", "hunyuan_video"):
        size += (config.num_single_layers,)
    return (*size, config.num_refiner_layers) if family.startswith("hunyuan_video") else size


def added_by(tensors):
    """Program's name of a layer -> what is added to its weights, in float64."""
    tensors = {key: value.double() for key, value in tensors.items()}
    down, up = (
        ("lora_A", "lora_B") if any("lora_A" in k for k in tensors) else ("lora_down", "lora_up")
    )
    return {
        key: (tensors[f"{key}.{up}.weight"] @ tensors[f"{key}.{down}.weight"])
        * (tensors[f"{key}.alpha"] / tensors[f"{key}.{down}.weight"].shape[0])
        for key in keys_of(tensors)
    }


def added(adapter):
    """Layer -> what is added to its weights, in float64."""
    return {
        name: torch.from_numpy(own.up.astype(float) @ own.down.astype(float)) * (ALPHA / RANK)
        for name, own in adapter.layers.items()
    }


@pytest.mark.parametrize(("target", "model"), KNOWN)
def test_every_key_is_one_that_the_program_looks_for(target, model, tiny_families, tmp_path):
    policy, family = load_tiny(tiny_families[model], model), family_of(model)
    names_of = f"{target}_{model.replace('-', '_').replace('.', '')}"
    known = getattr(program_keys, names_of)(*size_of(policy))

    left_out = {"kohya": NOT_LOADED.get(family), "comfyui": set()}[target]

    def chosen(name):
        return is_in_block(name) if left_out is None else name not in left_out

    shapes = linear_layers(policy, chosen)
    found = keys_of(exported(target, adapter_of(family, shapes), tmp_path))
    assert found <= known
    # What the tiny model has not: guidance, a second attention, all of the last text's block.
    absent = "guidance|attn2|transformer_blocks.1.(ff_context|attn.to_add_out)"
    assert not [key for key in known - found if not re.search(absent, key)]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("trained", ["both", "low"])
def test_each_of_two_experts_has_a_file(target, trained, tmp_path):
    """Each is a model of its own in the programs: its file is what that of one transformer is."""
    shapes = {f"blocks.{n}.attn1.to_q": (8, 8) for n in range(2)}
    sides = {"high": "transformer", "low": "transformer_2"}
    if trained == "low":
        del sides["high"]
    named = {f"{part}.{name}": shape for part in sides.values() for name, shape in shapes.items()}
    both = adapter_of("wan", named)
    save_for(target, both, tmp_path / "run-1.safetensors")
    assert {file.name for file in tmp_path.iterdir()} == {
        f"run-1-{side}-noise.safetensors" for side in sides
    }
    for side, part in sides.items():
        own = {name: both.layers[f"{part}.{name}"] for name in shapes}
        save_for(target, both._replace(layers=own), tmp_path / "alone.safetensors")
        found = (tmp_path / f"run-1-{side}-noise.safetensors").read_bytes()
        assert found == (tmp_path / "alone.safetensors").read_bytes()


class Zeros(dict):
    """A checkpoint in which all that a LoRA does not change is 0."""

    def pop(self, key, *default):
        return super().pop(key, torch.zeros(6, 1))

    def __missing__(self, key):
        return torch.zeros(6, 1)


def published(name):
    """A layer of HunyuanVideo 1.5 in ComfyUI as HunyuanVideo's published files call it, by the
    renames of ComfyUI's comfy/supported_models.py.
    """
    for theirs, own in (
        (r"(attn)\.(qkv|proj)", r"\1_\2"),
        (r"_mod\.lin\b", "_mod.linear"),
        (r"mlp\.0", "mlp.fc1"),
        (r"mlp\.2", "mlp.fc2"),
        (r"(time_in|t_embedder)\.in_layer", r"\1.mlp.0"),
        (r"(time_in|t_embedder)\.out_layer", r"\1.mlp.2"),
        (r"c_embedder\.in_layer", "c_embedder.linear_1"),
        (r"c_embedder\.out_layer", "c_embedder.linear_2"),
    ):
        name = re.sub(theirs, own, name)
    return name


def converted_hunyuan_video15(checkpoint):
    """What diffusers makes of a checkpoint of HunyuanVideo 1.5, from what it makes of one of
    HunyuanVideo, and what differs as in its scripts/convert_hunyuan_video1_5_to_diffusers.py.

    Queries, keys and values of kohya's are joined, as in the files that ComfyUI loads.
    """
    apart = sorted({name for name in checkpoint if re.search("_attn_[qkv][.]weight", name)})
    for name in [name for name in apart if "_attn_q." in name]:
        own = [checkpoint.pop(name.replace("_attn_q.", f"_attn_{part}.")) for part in "qkv"]
        checkpoint[name.replace("_attn_q.", "_attn_qkv.")] = torch.cat(own)
    only_here = {
        **{f"byt5_in.fc{n}": f"context_embedder_2.linear_{n}" for n in (1, 2, 3)},
        **{f"vision_in.proj.{2 * n - 1}": f"image_embedder.linear_{n}" for n in (1, 2)},
    }
    moved = {
        f"{own}.weight": checkpoint.pop(f"{theirs}.weight")
        for theirs, own in only_here.items()
        if f"{theirs}.weight" in checkpoint
    }
    named = {published(name): value for name, value in checkpoint.items()}
    made = single_file_utils.convert_hunyuan_video_transformer_to_diffusers(named)
    begin = "time_text_embed."
    return moved | {
        (name.replace(begin, "time_embed.", 1) if name.startswith(begin) else name): value
        for name, value in made.items()
    }


CONVERSIONS = {
    "hunyuan_video15": converted_hunyuan_video15,
    "ltx2": single_file_utils.convert_ltx2_transformer_to_diffusers,
    "flux2": single_file_utils.convert_flux2_transformer_checkpoint_to_diffusers,
    "sd3": single_file_utils.convert_sd3_transformer_checkpoint_to_diffusers,
    "wan": single_file_utils.convert_wan_transformer_to_diffusers,
}


@pytest.mark.parametrize(
    ("target", "family"),
    [
        *(("comfyui", family) for family in ("flux2", "wan", "hunyuan_video15", "ltx2")),
        *(("kohya", family) for family in ("sd3", "wan", "hunyuan_video15")),
    ],
)
def test_what_is_added_is_what_a_converted_checkpoint_would_have(
    target, family, tiny_families, tmp_path
):
    policy = load_tiny(tiny_families[family], family)
    everywhere = target == "comfyui" or family == "sd3"
    shapes = linear_layers(policy, lambda name: everywhere or is_in_block(name))
    adapter = adapter_of(family, shapes)
    found = added_by(exported(target, adapter, tmp_path))
    if target == "kohya":
        own = getattr(program_keys, family)(*size_of(policy)[: 2 if family == "sd3" else 1])
        ends = {
            *("context_embedder", "t_embedder.mlp.0", "t_embedder.mlp.2", "y_embedder.mlp.0"),
            *("y_embedder.mlp.2", "final_layer.adaLN_modulation.1", "final_layer.linear"),
        }
        dotted = {f"lora_unet_{name.replace('.', '_')}": name for name in own | ends}
        found = {dotted[key]: value for key, value in found.items()}
    checkpoint = Zeros(
        {f"{key.removeprefix('diffusion_model.')}.weight": value for key, value in found.items()}
    )
    checkpoint |= {"block.bias": torch.zeros(1)} if family == "wan" else {}
    converted = CONVERSIONS[family](checkpoint)
    for name, value in added(adapter).items():
        torch.testing.assert_close(converted[f"{name}.weight"], value, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("target", TARGETS)
def test_both_programs_call_layers_of_qwen_image21_as_diffusers_does(
    target, tiny_families, tmp_path
):
    """Whose conversions know neither format of it."""
    policy = load_tiny(tiny_families["qwen_image21"], "qwen_image21")
    shapes = linear_layers(policy, lambda name: target == "comfyui" or is_in_block(name))
    adapter = adapter_of("qwen_image21", shapes)
    found, expected = added_by(exported(target, adapter, tmp_path)), added(adapter)
    assert len(found) == len(expected)
    for name, value in expected.items():
        key = {"comfyui": f"transformer.{name}", "kohya": f"lora_unet_{name.replace('.', '_')}"}
        torch.testing.assert_close(found[key[target]], value, rtol=1e-6, atol=1e-7)


HIDDEN = 3072  # of the published models; diffusers' conversions know no other


WIDE = {
    f"single_transformer_blocks.{index}.{layer}": (rows * HIDDEN, columns * HIDDEN)
    for index in (0, 11)
    for layer, rows, columns in (
        *((f"attn.to_{name}", 1, 1) for name in "qkv"),
        ("proj_mlp", 4, 1),
        ("proj_out", 1, 5),
        ("norm.linear", 3, 1),
    )
}


def assert_adds_alike(converted, adapter, scale=1.0):
    """Compare what both add to an input."""
    for name, own in adapter.layers.items():
        down = converted[f"transformer.{name}.lora_A.weight"]
        up = converted[f"transformer.{name}.lora_B.weight"]
        x = torch.randn(own.down.shape[1], generator=torch.Generator().manual_seed(0))
        mine = torch.from_numpy(own.up) @ (torch.from_numpy(own.down) @ x) * (ALPHA / RANK)
        torch.testing.assert_close(up @ (down @ x) * scale, mine, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("left_out", [(), ("proj_mlp",), ("attn.to_q", "attn.to_v")])
def test_single_blocks_of_flux_at_their_published_width(left_out, tmp_path):
    from diffusers import FluxPipeline

    shapes = {k: v for k, v in WIDE.items() if not k.endswith(left_out or "-")}
    adapter = adapter_of("flux", shapes)
    exported("kohya", adapter, tmp_path)
    converted = FluxPipeline.lora_state_dict(tmp_path / "own.safetensors")
    assert_adds_alike(converted, adapter)
    for key in set(converted) - {  # rows of zeros
        f"transformer.{name}.lora_{own}.weight" for name in shapes for own in "AB"
    }:
        assert key.endswith("lora_A.weight") or not converted[key].any()


@pytest.mark.nightly
def test_single_blocks_of_hunyuan_video_at_their_published_width(tmp_path):
    adapter = adapter_of("hunyuan_video", WIDE)
    own = exported("comfyui", adapter, tmp_path)
    # This conversion knows no alpha; rank and alpha of fused layers grow alike.
    plain = {key: value for key, value in own.items() if not key.endswith(".alpha")}
    assert_adds_alike(_convert_hunyuan_video_lora_to_diffusers(plain), adapter, ALPHA / RANK)
    flat = exported("kohya", adapter, tmp_path / "kohya")
    theirs = {key.replace(".", "_"): value for key, value in added_by(own).items()}
    for key, value in added_by(flat).items():
        torch.testing.assert_close(
            value, theirs[key.replace("lora_unet", "diffusion_model")], rtol=0, atol=0
        )


def without_alpha(tensors):
    """Fold alpha into B, for those of diffusers' conversions that know none."""
    folded = {key: value for key, value in tensors.items() if not key.endswith(".alpha")}
    for key in keys_of(tensors):
        rank = tensors[f"{key}.lora_A.weight"].shape[0]
        folded[f"{key}.lora_B.weight"] *= tensors[f"{key}.alpha"] / rank
    return folded


READ_BY_DIFFUSERS = {
    ("comfyui", "flux2"): lambda name: name != "norm_out.linear",  # whose halves it does not swap
    ("kohya", "flux2"): is_in_block,
    ("comfyui", "flux"): lambda name: True,
    ("kohya", "flux"): lambda name: is_in_block(name) and not is_fused_single(name),
    ("comfyui", "sd3"): lambda name: True,
    ("comfyui", "qwen_image"): lambda name: True,
    ("kohya", "qwen_image"): is_in_block,
    ("comfyui", "z_image"): lambda name: True,
    ("kohya", "z_image"): is_in_block,
    ("comfyui", "wan"): is_in_block,
    ("kohya", "wan"): is_in_block,
    ("comfyui", "ltx2"): lambda name: True,
    ("comfyui", "ltx2-2.3"): lambda name: True,
    ("comfyui", "hunyuan_video"): lambda name: is_in_block(name) and not is_fused_single(name),
}


def is_fused_single(name):
    """Whether diffusers can take it apart at the published width only."""
    ends = ("to_q", "to_k", "to_v", "proj_mlp")
    return name.startswith("single_transformer_blocks.") and name.endswith(ends)


@torch.no_grad()
def velocity(policy, transformer, condition):
    """The policy's velocity with another transformer, which computes as the policy's own does."""
    if isinstance(own := vars(policy.transformer).get("forward"), MethodType):  # a pass of ours
        transformer.forward = MethodType(own.__func__, transformer)
    policy.transformer = transformer
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, *policy.latent_shape, generator=generator, dtype=policy.latent_dtype)
    return policy.velocity(x, torch.tensor([0.3, 0.8]), condition)


@pytest.mark.ci_but_one
@pytest.mark.slow
@pytest.mark.parametrize(("target", "model"), READ_BY_DIFFUSERS)
def test_diffusers_reads_it_as_the_same_adapter(target, model, tiny_families, tmp_path):
    """In float64: in float32 the same weights elsewhere in memory may give other last digits."""
    policy, family = load_tiny(tiny_families[model], model, "float64"), family_of(model)
    condition = policy.encode(["a red circle"] * 2)
    base = velocity(policy, policy.transformer, condition)
    shapes = linear_layers(policy, READ_BY_DIFFUSERS[target, model])
    adapter = adapter_of(family, shapes, targets=tuple(shapes))
    (tmp_path / "theirs").mkdir()
    save_kept_adapter(adapter, tmp_path / "theirs")
    tensors = exported(target, adapter, tmp_path)
    if target == "comfyui" and family in ("flux2", "sd3", "hunyuan_video", "ltx2"):
        save_file(without_alpha(tensors), tmp_path / "own.safetensors")
    velocities = []
    for path in (tmp_path / "theirs", tmp_path / "own.safetensors"):
        pipeline = stock(tiny_families[model])
        pipeline.load_lora_weights(path)
        velocities.append(velocity(policy, pipeline.transformer.double(), condition))
    expected, found = velocities
    assert (expected - base).abs().max() > 1e-3
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.fixture
def run(tiny_flux, tmp_path):
    """A run's folder with the checkpoint of a trained adapter, and its policy."""
    lora = LoraConfig(rank=RANK, alpha=ALPHA)
    policy = load_tiny(tiny_flux, "flux")
    make_trainable(policy, lora)
    return policy, lora, tmp_path / "run"


def keep(run, version, **train):
    policy, lora, folder = run
    weights = moved_weights(policy, seed=version)
    config = RunConfig.model_validate({"train": {"lora": lora.model_dump(), **train}})
    folder.mkdir(exist_ok=True)
    state = dataclasses.replace(initial_state(weights), version=version)
    write_checkpoint(folder / "checkpoints", state, position_of(version, config))
    set_weights(policy, weights)


def test_what_is_read_from_a_checkpoint_is_what_a_run_exports(run, tmp_path):
    keep(run, 1)
    adapter = read_adapter(run[2], pytest.fail)
    for name in ("kept", "own"):
        (tmp_path / name).mkdir()
    save_kept_adapter(adapter, tmp_path / "kept")
    save_adapter(run[0], tmp_path / "own")
    kept, own = (
        load_file(tmp_path / name / "pytorch_lora_weights.safetensors") for name in ("kept", "own")
    )
    assert kept.keys() == own.keys()
    assert all(torch.equal(kept[key], value) for key, value in own.items())


def test_of_a_damaged_version_the_one_before_is_taken(run):
    keep(run, 1)
    keep(run, 2)
    file = run[2] / "checkpoints" / "v0002" / "state.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    said = []
    assert read_adapter(run[2], said.append).manifest.version == 1
    assert len(said) == 1
    assert "does not have the manifest's hash" in said[0]


@pytest.mark.parametrize(
    "read", ["manifest.read_manifest", "adapter.read_manifest", "average.opened"]
)
def test_of_a_run_that_trains_the_version_that_has_come_is_taken(run, read, monkeypatch):
    """As with `checkpoints.keep_last = 1` the newest is removed while it is about to be read."""
    keep(run, 1)
    name = f"digen_core.checkpoints.{read}"
    own = resolve_name(name)

    def late(checkpoint, *rest):
        if checkpoint.name == "v0001" and checkpoint.exists():
            keep(run, 2)
            remove_folder(checkpoint)
        return own(checkpoint, *rest)

    monkeypatch.setattr(name, late)
    assert read_adapter(run[2], pytest.fail).manifest.version == 2


def test_what_cannot_be_exported_is_said_in_one_line(run, tmp_path):
    with pytest.raises(UserError, match="there is no run folder"):
        read_adapter(run[2], pytest.fail)
    run[2].mkdir()
    with pytest.raises(UserError, match="holds no whole version to export"):
        read_adapter(run[2], pytest.fail)
    keep(run, 1, lora=None)
    with pytest.raises(UserError, match="trains all weights, so it has no adapter"):
        read_adapter(run[2], pytest.fail)
    refiner = "context_embedder.token_refiner.refiner_blocks.0.attn.to_q"
    for family, layer in (("hunyuan_video", refiner), ("flux", "proj_out"), ("sd3", "pos_embed")):
        path = tmp_path / "x.safetensors"
        with pytest.raises(UserError, match=f"has a part for {layer}, and no place for that of"):
            save_for("kohya", adapter_of(family, {layer: (8, 8)}), path)
        assert not path.exists()


@pytest.mark.parametrize(("target", "family"), NOT_KNOWN)
def test_a_family_that_a_program_has_not_is_refused_in_one_line(target, family, tmp_path):
    adapter = adapter_of(family, {"transformer_blocks.0.attn1.to_q": (8, 8)})
    said = f"no LoRA of {family} is known to load {NOT_KNOWN[target, family]}"
    with pytest.raises(UserError, match=f"^{said}$"):
        save_for(target, adapter, tmp_path / "x")
    assert not list(tmp_path.iterdir())


def test_diffusers_names_are_left_as_they_are(tmp_path):
    for family in DIFFUSERS_NAMES:
        adapter = adapter_of(family, {"transformer_blocks.7.attn.to_out.0": (8, 8)})
        keys = keys_of(exported("comfyui", adapter, tmp_path))
        assert keys == {"transformer.transformer_blocks.7.attn.to_out.0"}
