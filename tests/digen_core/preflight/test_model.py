"""What is known of a model before it is loaded: damaged files, LoRA targets, the hub."""

import json
import shutil
from pathlib import Path

import httpx
import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from safetensors.torch import save_file

from digen_core.config.run import RunConfig
from digen_core.errors import ConfigError
from digen_core.inputs.weight_files import layers_of, shapes_in
from digen_core.models.lora_targets import check_targets
from digen_core.preflight.hub import check_available
from digen_core.preflight.model import check_model
from support.families import HEIGHT, WIDTH

WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"


def config_of(path, **train) -> RunConfig:
    model = {"path": str(path), "height": HEIGHT, "width": WIDTH}
    return RunConfig.model_validate({"model": model, "train": train})


@pytest.fixture
def model(tiny_flux, tmp_path) -> Path:
    """A copy of a sound model, to be spoilt."""
    return Path(shutil.copytree(tiny_flux, tmp_path / "model"))


def cut(model):
    (model / WEIGHTS).write_bytes((model / WEIGHTS).read_bytes()[:-1])


def no_config(model):
    (model / "vae/config.json").write_text("{")


def no_weight_map(model):
    (model / "vae/diffusion.safetensors.index.json").write_text("{}")


def no_shard(model):
    index = {"weight_map": {"a": "part-1-of-2.safetensors"}}
    (model / "vae/diffusion.safetensors.index.json").write_text(json.dumps(index))


def no_settings(model):
    (model / "text_encoder_2/config.json").unlink()


def no_weights(model):
    (model / "text_encoder_2/model.safetensors").unlink()


def test_a_list_of_numbers_in_the_index_is_no_part(model):
    """Such are the noise levels that a Qwen-Image 2.1 of few steps names there."""
    file = model / "model_index.json"
    index = json.loads(file.read_text())
    file.write_text(json.dumps(index | {"sample_sigmas": [1.0, 0.8, 0.3]}))
    check_model(config_of(model))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (cut, r"model.safetensors is no whole safetensors file \(.*\); copy or download it again"),
        (no_config, r"cannot read .*vae/config.json: .*; copy or download it again"),
        (no_weight_map, r"safetensors.index.json has no weight_map; copy or download it again"),
        (no_settings, r"lacks text_encoder_2/config.json, which its model_index.json asks for"),
        (no_weights, r"text_encoder_2 holds no weights; copy or download the model again"),
        (no_shard, r"vae/part-1-of-2.safetensors is missing; copy or download the model again"),
    ],
)
def test_a_damaged_model_is_refused(model, spoil, message):
    check_model(config_of(model))
    spoil(model)
    with pytest.raises(ConfigError, match=message):
        check_model(config_of(model))


def test_each_lora_target_must_be_a_layer(model):
    with pytest.raises(ConfigError, match=r"names 'to_kk', but no linear layer .* mean 'to_k'"):
        check_model(config_of(model, lora={"targets": ["to_q", "to_kk"]}))
    check_model(
        config_of(model, lora={"targets": ["to_out.0", "single_transformer_blocks.0.proj_mlp"]})
    )
    check_model(config_of(model, lora=None))
    shutil.move(model / WEIGHTS, model / "transformer/diffusion_pytorch_model.bin")
    check_model(config_of(model, lora={"targets": ["to_kk"]}))  # left to the loading


def test_targets_are_whole_parts_of_names():
    layers = {"blocks.0.attn.to_q", "blocks.0.to_out.0", "proj"}
    check_targets(["to_q", "attn.to_q", "to_out.0", "proj"], layers)
    with pytest.raises(ConfigError, match=r"others holds one, such as 'blocks\.0\.attn\.to_q'; n"):
        check_targets(["0"], layers)
    for target in ("o_q", "to_out", "blocks.1.attn.to_q"):
        with pytest.raises(ConfigError, match=f"names {target!r}"):
            check_targets([target], layers)
    with pytest.raises(ConfigError, match="for example proj, to_q"):
        check_targets(["xyzzy"], layers)


def test_layers_are_what_has_a_matrix(tmp_path):
    tensors = {
        "linear.weight": torch.zeros(2, 3, dtype=torch.bfloat16),
        "linear.bias": torch.zeros(2),
        "conv.weight": torch.zeros(2, 3, 1, 1),
        "norm.weight": torch.zeros(2),
        "table": torch.zeros(2, 3),
    }
    save_file(tensors, tmp_path / "x.safetensors")
    shapes = shapes_in(tmp_path / "x.safetensors")
    assert shapes == {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    assert layers_of(shapes) == {"linear", "conv"}


def ask_hub(monkeypatch, error):
    """Have the hub answer with an error; ask it for a model."""

    def answer(*_arguments, **_options):
        raise error

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", answer)
    check_available("model.path org/name", "org/name", ["model_index.json"], "v9")


RESPONSE = httpx.Response(403, request=httpx.Request("HEAD", "http://hub"))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (httpx.ConnectError("[Errno -2] Name or service not known"), "hub cannot be reached"),
        (httpx.ConnectTimeout("timed out"), "hub cannot be reached"),
        (GatedRepoError("no", response=RESPONSE), "is gated: accept its licence"),
        (RepositoryNotFoundError("no", response=RESPONSE), "no model on the hub; correct it"),
        (RevisionNotFoundError("no", response=RESPONSE), "has no revision 'v9'; correct"),
    ],
)
def test_what_the_hub_does_not_have_is_told_at_once(monkeypatch, error, message):
    with pytest.raises(ConfigError, match=f"^model.path org/name .*{message}"):
        ask_hub(monkeypatch, error)


def test_a_hub_that_has_no_answer_yet_is_left_to_the_loading(monkeypatch):
    ask_hub(monkeypatch, HfHubHTTPError("429 Too Many Requests", response=RESPONSE))


def test_a_name_that_no_model_can_have_is_refused():
    with pytest.raises(ConfigError, match="runs/flux--dev is neither a folder nor a hub id"):
        check_model(config_of("runs/flux--dev"))


def asked_of_hub(monkeypatch):
    """Return what the hub will have been asked for."""
    asked = []
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", asked.append)
    return asked


def test_the_hub_is_asked_for_workers_of_this_machine_only(monkeypatch):
    asked = asked_of_hub(monkeypatch)
    check_model(config_of("org/name"))
    (url,) = asked
    assert url.endswith("/org/name/resolve/main/model_index.json")
    elsewhere = {"model": {"path": "org/name"}, "cluster": {"scheduler_address": "tcp://h:1"}}
    check_model(RunConfig.model_validate(elsewhere))  # its workers may have it
    assert len(asked) == 1


def test_a_model_in_the_cache_needs_no_hub(monkeypatch, tmp_path):
    def cached(repo, file, revision):
        return str(tmp_path) if file == "b.json" else None

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", cached)
    asked = asked_of_hub(monkeypatch)
    check_available("model.path org/name", "org/name", ["a.json", "b.json"], None)
    assert asked == []
    check_available("model.path org/name", "org/name", ["a.json"], None)
    assert len(asked) == 1
