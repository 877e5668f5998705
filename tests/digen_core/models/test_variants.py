"""Folders whose weights are those of a variant, as pipelines are downloaded with ``variant``."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from digen_core.errors import ConfigError
from digen_core.gang.stage_files import tensors_in
from digen_core.inputs.weight_files import named_as, variant_of
from digen_core.planning.memory_count import text_encoder_bytes
from digen_core.preflight.model import check_model_folder
from support.families import MODELS, load_tiny, sliced
from support.stock import stock

WEIGHTS = "diffusion_pytorch_model.safetensors"


def saved(tiny: str, folder: Path, variant: str | None = "fp16", **settings) -> Path:
    stock(tiny).save_pretrained(folder, variant=variant, **settings)
    return folder


def weights_of(policy) -> dict[str, torch.Tensor]:
    return {
        f"{part}.{name}": value
        for part, module in policy.pipeline.components.items()
        if isinstance(module, torch.nn.Module)
        for name, value in module.state_dict().items()
    }


@pytest.mark.parametrize("model", sliced(MODELS))
def test_a_variant_is_loaded_as_plain_weights_are(tiny_families, model, tmp_path):
    whole = load_tiny(tiny_families[model], model)
    folder = saved(tiny_families[model], tmp_path)
    assert variant_of(folder) == "fp16"
    found = load_tiny(str(folder), model)
    check_model_folder(found.config)
    expected, weights = weights_of(whole), weights_of(found)
    assert weights.keys() == expected.keys()
    assert all(torch.equal(value, weights[name]) for name, value in expected.items())
    plain = text_encoder_bytes(whole.config, Path(tiny_families[model]))
    assert text_encoder_bytes(found.config, folder) == plain


@pytest.fixture
def sharded(tiny_families, tmp_path):
    """A pipeline whose transformer's variant is in several files."""
    return saved(tiny_families["sd3"], tmp_path / "model", max_shard_size="100KB")


def test_a_variant_in_several_files_is_loaded_whole_and_by_name(tiny_families, sharded):
    whole = load_tiny(tiny_families["sd3"], "sd3").transformer.state_dict()
    policy = load_tiny(str(sharded), "sd3")
    check_model_folder(policy.config)
    assert all(torch.equal(v, whole[n]) for n, v in policy.transformer.state_dict().items())
    assert dict(tensors_in(sharded / "transformer", whole)).keys() == whole.keys()
    sorted(sharded.glob("transformer/*-00002-of-*"))[0].unlink()
    with pytest.raises(ConfigError, match=r"fp16-00002-of-.*safetensors is missing; copy"):
        check_model_folder(policy.config)


def test_the_index_of_plain_weights_that_were_not_downloaded_is_passed_over(sharded):
    index = sharded / "transformer" / f"{WEIGHTS}.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "b.safetensors"}}))
    check_model_folder(load_tiny(str(sharded), "sd3").config)


def test_parts_without_the_variant_are_loaded_plain(tiny_families, tmp_path):
    plain, folder = Path(tiny_families["sd3"]), saved(tiny_families["sd3"], tmp_path)
    transformer = folder / "transformer"
    (transformer / named_as(WEIGHTS, "fp16")).unlink()
    shutil.copy(plain / "transformer" / WEIGHTS, transformer)
    policy = load_tiny(str(folder), "sd3")
    check_model_folder(policy.config)
    names = policy.transformer.state_dict().keys()
    assert dict(tensors_in(transformer, names)).keys() == names


def test_plain_weights_are_taken_where_all_parts_have_them(tiny_families, tmp_path):
    folder = saved(tiny_families["flux"], saved(tiny_families["flux"], tmp_path, variant=None))
    assert (folder / "vae" / named_as(WEIGHTS, "fp16")).is_file()
    assert variant_of(folder) is None


def test_parts_of_several_variants_are_refused(tiny_families, tmp_path):
    policy = load_tiny(tiny_families["flux"], "flux")
    folder = saved(tiny_families["flux"], tmp_path)
    other = folder / "vae" / named_as(WEIGHTS, "bf16")
    shutil.move(folder / "vae" / named_as(WEIGHTS, "fp16"), other)
    message = (
        "no plain weights of text_encoder, .*, vae, but those of the variants bf16, fp16; keep"
    )
    with pytest.raises(ConfigError, match=message):
        check_model_folder(policy.config.model_copy(update={"path": str(folder)}))


def test_the_file_of_an_index_in_a_variant():
    assert named_as(f"{WEIGHTS}.index.json", "fp16") == f"{WEIGHTS}.index.fp16.json"
    assert named_as(WEIGHTS, None) == WEIGHTS
