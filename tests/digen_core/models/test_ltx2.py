"""LTX-2's video without its audio: what is computed, trained, saved and refused."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from diffusers import LTX2VideoTransformer3DModel
from safetensors import safe_open
from safetensors.torch import load_file

from digen_core.checkpoints.export import save_adapter, save_transformer
from digen_core.config.model import ModelConfig
from digen_core.config.run import RunConfig
from digen_core.config.train import LoraConfig
from digen_core.errors import UserError
from digen_core.gang.degrees import check_degree
from digen_core.models.families import adapter_of
from digen_core.models.image_size import check_local_size, read_settings
from digen_core.models.policy import TRAINER_PARTS
from digen_core.models.trainable import make_trainable, trainable_parameters
from digen_core.planning.memory_count import text_encoder_bytes
from digen_core.planning.model_settings import MODEL_CONFIGS
from digen_core.planning.sizes import sizes_of
from digen_core.preflight.model import check_model_folder
from digen_core.transport.arrays import to_arrays
from support.families import load_tiny
from support.tiny_policies import TINY, moved_weights

IDLE = re.compile("audio|a2v|av_cross")
PUBLISHED = MODEL_CONFIGS / "LTX-2"


@pytest.fixture(scope="module")
def folder(tiny_families) -> str:
    return tiny_families["ltx2"]


@pytest.fixture
def policy(folder):
    return load_tiny(folder, "ltx2", guidance_scale=1.0)


def batch_of(policy) -> tuple:
    x = torch.randn(3, *policy.latent_shape, generator=torch.Generator().manual_seed(0))
    return x, torch.linspace(0.2, 0.9, 3), policy.encode(["a red circle"] * 3)


def stock_velocity(policy, folder, tokens: int, *, isolated: bool) -> torch.Tensor:
    """What diffusers' own transformer says of the video, beside so many tokens of some audio."""
    transformer = LTX2VideoTransformer3DModel.from_pretrained(Path(folder) / "transformer")
    x, sigma, condition = batch_of(policy)
    with torch.no_grad():
        video, _ = transformer(
            hidden_states=x,
            audio_hidden_states=torch.randn(3, tokens, transformer.config.audio_in_channels),
            encoder_hidden_states=condition["prompt_embeds"],
            audio_encoder_hidden_states=torch.randn_like(condition["prompt_embeds"]),
            timestep=1000 * sigma,
            sigma=1000 * sigma,
            num_frames=2,
            height=2,
            width=3,
            audio_num_frames=tokens,
            isolate_modalities=isolated,
            return_dict=False,
        )
    return video


@pytest.mark.parametrize("tokens", [1, 7])
def test_the_video_is_that_of_the_stock_transformer_with_its_modalities_isolated(
    policy, folder, tokens
):
    """Whatever audio is beside it."""
    expected = stock_velocity(policy, folder, tokens, isolated=True)
    with torch.no_grad():
        assert torch.equal(policy.velocity(*batch_of(policy)), expected)
    together = stock_velocity(policy, folder, tokens, isolated=False)
    assert (together - expected).abs().max() > 1e-3


@pytest.mark.parametrize("checkpointing", [False, True])
def test_no_block_computes_with_audio(policy, checkpointing):
    make_trainable(policy, None, gradient_checkpointing=checkpointing)
    seen = []
    for name, module in policy.transformer.named_modules():
        if isinstance(module, torch.nn.Linear) and "transformer_blocks" in name:
            module.register_forward_pre_hook(
                lambda _, given, name=name: seen.append((name, given[0].numel()))
            )
    policy.velocity(*batch_of(policy)).sum().backward()
    worked = {name for name, count in seen if count}
    assert worked == {name for name, _ in seen if not IDLE.search(name)} != set()


def test_what_is_of_audio_is_held_and_neither_trained_nor_pushed(folder):
    for lora in (LoraConfig(rank=2), None):
        policy = load_tiny(folder, "ltx2")
        names = {name for name, _ in policy.transformer.named_parameters()}
        idle = {name for name in names if IDLE.search(name)}
        make_trainable(policy, lora)
        trained = trainable_parameters(policy)
        assert not any(IDLE.search(name) for name in trained)
        if lora is None:
            assert trained.keys() == names - idle
            policy.velocity(*batch_of(policy)).sum().backward()
            assert all(own.grad is not None for own in trained.values())


def test_a_target_that_is_of_audio_alone_is_refused(policy, folder):
    with pytest.raises(UserError, match=r"names 'audio_attn1.to_q', but no linear layer"):
        make_trainable(policy, LoraConfig(targets=("to_k", "audio_attn1.to_q")))


@pytest.mark.families
def test_published_parameters_are_of_video_and_audio():
    """Arithmetic is that of the video; of the audio and between both 5.8 billion are only held."""
    settings = {"family": "ltx2", "path": "Lightricks/LTX-2"}  # 256 x 384 pixels, 49 frames
    config = RunConfig.model_validate({"model": settings, "train": {"lora": None}})
    sizes = sizes_of(config, PUBLISHED)
    assert (sizes.parameters, sizes.trained_parameters) == (18_876_174_592, 13_041_520_768)
    tokens, width, text = 7 * 8 * 12, 4096, 1024
    # q, k, v and out of the video's attention; q and out of that to the text, its k and v; 4 x 2
    linear = 48 * (tokens * (4 + 2 + 8) + text * 2) * width**2
    attention = 48 * 2 * (tokens**2 + tokens * text) * width
    by_hand = 2 * 2 * (linear + attention)  # two FLOPs a product, and guidance
    assert sizes.step_flops == pytest.approx(by_hand, rel=0.02)


def test_an_exported_transformer_has_the_audio_of_the_model(folder, tmp_path):
    policy = load_tiny(folder, "ltx2")
    before = load_file(Path(folder) / "transformer/diffusion_pytorch_model.safetensors")
    make_trainable(policy, None)
    weights = moved_weights(policy, scale=0.02)
    save_transformer(policy.transformer, tmp_path, weights)
    found = load_file(tmp_path / "diffusion_pytorch_model.safetensors")
    assert found.keys() == before.keys()
    same = {name for name, value in found.items() if torch.equal(value, before[name])}
    assert same == {name for name in before if IDLE.search(name)}
    assert found.keys() - same == to_arrays(trainable_parameters(policy)).keys()


def test_a_saved_adapter_names_the_layers_that_it_has(policy, tmp_path):
    make_trainable(policy, LoraConfig(rank=2))
    save_adapter(policy, tmp_path)
    with safe_open(tmp_path / "pytorch_lora_weights.safetensors", "pt") as opened:
        settings = json.loads(opened.metadata()["lora_adapter_metadata"])
    names = load_file(tmp_path / "pytorch_lora_weights.safetensors")
    layers = {name.removeprefix("transformer.").partition(".lora_")[0] for name in names}
    assert set(settings["transformer.target_modules"]) == layers
    assert len(layers) == 2 * 2 * 4  # of two blocks, in two attentions


def test_the_connectors_are_with_the_text_encoders_and_audio_is_not_loaded(folder):
    policy = load_tiny(folder, "ltx2")
    whole = policy.pipeline
    of_texts = [*whole.text_encoder.parameters(), *whole.connectors.parameters()]
    assert text_encoder_bytes(policy.config, Path(folder)) == sum(own.nbytes for own in of_texts)
    assert (whole.audio_vae, whole.vocoder) == (None, None)
    assert not any(own.requires_grad for own in whole.connectors.parameters())
    trainer = load_tiny(folder, "ltx2", parts=TRAINER_PARTS).pipeline
    assert (trainer.connectors, trainer.text_encoder) == (None, None)


@pytest.mark.parametrize(("registers", "length"), [(16, 24), (None, 24)])
def test_texts_that_the_connectors_do_not_take_are_refused(folder, tmp_path, registers, length):
    shutil.copytree(folder, tmp_path / "model")
    file = tmp_path / "model/connectors/config.json"
    name = "video_connector_num_learnable_registers"
    file.write_text(json.dumps(json.loads(file.read_text()) | {name: registers}))
    settings = {**TINY, "family": "ltx2", "path": str(tmp_path / "model")}
    config = ModelConfig(**settings | {"max_sequence_length": length})
    message = rf"max_sequence_length is 24; .* multiple of their registers, {registers}"
    with pytest.raises(UserError, match=message):
        check_model_folder(config)
    if registers:
        check_model_folder(config.model_copy(update={"max_sequence_length": 32}))


def test_only_long_texts_families_take_them():
    assert ModelConfig(family="ltx2", path="a/b").max_sequence_length == 1024
    with pytest.raises(ValueError, match="is 513, but wan takes at most 512"):
        ModelConfig(family="wan", path="a/b", max_sequence_length=513)


def test_its_latent_frames_are_of_8_and_its_tokens_of_32_pixels():
    size = {"height": 64, "width": 96, "num_frames": 17}
    config = ModelConfig(family="ltx2", path="a/b", **size)
    here = config.model_copy(update={"path": str(PUBLISHED)})
    policy = adapter_of("ltx2").without_weights(config, PUBLISHED)
    assert policy.latent_shape == (3 * 2 * 3, 128)
    for refusing in (policy.at_size, lambda size: check_local_size(here.at_size(size))):
        with pytest.raises(UserError, match="is 13; this ltx2 model needs 1 more than a mult"):
            refusing((64, 96, 13))
    settings = read_settings(PUBLISHED)
    run = RunConfig.model_validate(
        {"model": {"family": "ltx2", **size}, "parallel": {"context_parallel": 4}}
    )
    with pytest.raises(UserError, match=r"does not divide the 18 tokens of samples"):
        check_degree(run, 4, settings)


def test_sigmas_of_the_published_schedule_by_hand(policy):
    """At 256 x 384 and 49 frames: 672 tokens of 1024 and 4096, which have 0.95 and 2.05."""
    mu = 0.95 + (672 - 1024) * (2.05 - 0.95) / (4096 - 1024)
    u = torch.tensor([1, 0.75, 0.5, 0.25], dtype=torch.float64)
    shifted = torch.tensor(mu).exp() / (torch.tensor(mu).exp() + 1 / u - 1)
    stretched = 1 - (1 - shifted) * (1 - 0.1) / (1 - shifted[-1])  # the last is 0.1
    policy.latent_shape = (672, 4)
    expected = torch.cat([stretched, torch.zeros(1)]).float()
    torch.testing.assert_close(policy.sigmas(4), expected, rtol=0, atol=1e-6)
