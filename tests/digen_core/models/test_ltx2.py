"""LTX-2's video without its audio: what is computed, trained, saved and refused.

And LTX-2.3's and 2.5's.
"""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from diffusers import LTX2VideoTransformer3DModel
from diffusers.pipelines.ltx2.connectors import LTX2TextConnectors
from diffusers.pipelines.ltx2.utils import DISTILLED_SIGMA_VALUES
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import Gemma4UnifiedConfig, Gemma4UnifiedForConditionalGeneration

from digen_core.checkpoints.export import save_adapter, save_transformer
from digen_core.config.model import ModelConfig
from digen_core.config.run import RunConfig
from digen_core.config.train import LoraConfig
from digen_core.data.prompts import Prompt
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
from digen_core.rollout.evaluation import sample_images
from digen_core.rollout.sampler import initial_latent
from digen_core.seeding import EVALUATION_NOISE
from digen_core.transport.arrays import to_arrays
from support.families import TOKENS, load_tiny
from support.stock import generate, stock
from support.tiny_policies import TINY, moved_weights

IDLE = re.compile("audio|a2v|av_cross|keyframes")
GEMMA_4 = {  # of the published gemma-4-12B
    "text_config": {
        "hidden_size": 3840,
        "num_hidden_layers": 48,
        "intermediate_size": 15360,
        "num_attention_heads": 16,
        "head_dim": 256,
        "num_key_value_heads": 8,
        "global_head_dim": 512,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "vocab_size": 262144,
    },
    "vision_config": {},
    "audio_config": {},
}
KINDS = ("ltx2", "ltx2-2.3", "ltx2-2.5")


@pytest.fixture(scope="module", params=KINDS)
def model(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def folder(tiny_families, model) -> str:
    return tiny_families[model]


@pytest.fixture
def policy(folder):
    return load_tiny(folder, "ltx2", guidance_scale=1.0)


@pytest.fixture
def plain(tiny_families):
    """Of LTX-2, for what its kinds have alike."""
    return load_tiny(tiny_families["ltx2"], "ltx2", guidance_scale=1.0)


def batch_of(policy) -> tuple:
    x = torch.randn(3, *policy.latent_shape, generator=torch.Generator().manual_seed(0))
    return x, torch.linspace(0.2, 0.9, 3), policy.encode(["a red circle"] * 3)


def stock_velocity(policy, folder, tokens: int, *, isolated: bool) -> torch.Tensor:
    """What diffusers' own transformer says of the video, beside so many tokens of some audio."""
    transformer = LTX2VideoTransformer3DModel.from_pretrained(Path(folder) / "transformer")
    x, sigma, condition = batch_of(policy)
    own = transformer.config
    text = own["caption_channels" if own.use_prompt_embeddings else "audio_cross_attention_dim"]
    with torch.no_grad():
        video, _ = transformer(
            hidden_states=x,
            audio_hidden_states=torch.randn(3, tokens, transformer.config.audio_in_channels),
            encoder_hidden_states=condition["prompt_embeds"],
            audio_encoder_hidden_states=torch.randn(3, TOKENS, text),
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


def test_tokens_are_where_the_transformer_places_them(policy):
    view = policy.at_size((96, 64, 13))
    places = {"device": "cpu", "fps": 24.0}
    expected = view.transformer.rope.prepare_video_coords(2, *view._grid, **places)
    assert torch.equal(view._coordinates(2), expected)
    assert expected.unique().numel() > 8


def test_texts_are_those_of_the_stock_pipelines_connectors(policy, folder):
    """Bit for bit: registers in place of padding, all layers of Gemma, the negative prompt."""
    pipeline, shown = stock(folder), []
    pipeline.transformer.register_forward_pre_hook(
        lambda _, args, named: shown.append(named["encoder_hidden_states"]), with_kwargs=True
    )
    texts = ["a red circle", "two blue squares that are not red"]
    noise = torch.zeros(2, *policy.latent_shape)
    generate(pipeline, "ltx2", texts, noise, output_type="latent", num_inference_steps=2)
    negative, positive = shown[0].chunk(2)
    found = load_tiny(folder, "ltx2").encode(texts)
    assert torch.equal(found["prompt_embeds"], positive)
    assert torch.equal(found["negative_prompt_embeds"], negative)
    assert (positive - negative).abs().max() > 0.1
    assert found["prompt_embeds"].shape[1:] == policy.shapes_of_embeddings()["prompt_embeds"]


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
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("LTX-2", (18_876_174_592, 13_041_520_768)),
        ("LTX-2.3-Diffusers", (18_988_838_144, 13_124_316_288)),
        ("LTX-2.5-Diffusers", (18_987_859_200, 13_123_333_248)),
    ],
)
def test_published_parameters_are_of_video_and_audio(name, parameters):
    """Arithmetic is that of the video; of the audio and between both 5.8 billion are only held.

    LTX-2.3 has a gate for each of 32 heads of the video's two attentions, and modulates more; 2.5
    has no bias in its feed-forward layers, of 4 and 1 times 4096.
    """
    settings = {"family": "ltx2", "path": f"a/{name}"}  # 256 x 384 pixels, 49 frames
    config = RunConfig.model_validate({"model": settings, "train": {"lora": None}})
    sizes = sizes_of(config, MODEL_CONFIGS / name)
    assert (sizes.parameters, sizes.trained_parameters) == parameters
    tokens, width, text = 7 * 8 * 12, 4096, 1024
    # q, k, v and out of the video's attention; q and out of that to the text, its k and v; 4 x 2
    linear = 48 * (tokens * (4 + 2 + 8) + text * 2) * width**2
    attention = 48 * 2 * (tokens**2 + tokens * text) * width
    by_hand = 2 * 2 * (linear + attention)  # two FLOPs a product, and guidance
    assert sizes.step_flops == pytest.approx(by_hand, rel=0.02)


def test_published_parameters_of_the_video_by_hand():
    """From LTX-2's to 2.3's: no projection of texts, gates, and modulation of texts."""
    wide, blocks = 4096, 48
    gates = blocks * 2 * (wide * 32 + 32)
    tables = blocks * (3 + 2) * wide  # 9 in place of 6 of the video, and 2 of the text
    embedder = 256 * wide + wide + wide * wide + wide
    modulation = 3 * wide * (wide + 1) + embedder + 2 * wide * (wide + 1)
    projection = 3840 * wide + wide + wide * wide + wide
    of_23 = 13_041_520_768 + gates + tables + modulation - projection
    assert of_23 == 13_124_316_288
    assert of_23 - blocks * (4 + 1) * wide == 13_123_333_248  # 2.5's


@pytest.mark.parametrize(
    ("name", "billions"),
    [("LTX-2", 13.619), ("LTX-2.3-Diffusers", 15.360), ("LTX-2.5-Diffusers", 15.132)],
)
def test_text_encoders_are_known_by_the_settings_of_the_transformer(name, billions):
    """With LTX-2.3 come larger connectors, with 2.5 these and another Gemma."""
    model = ModelConfig(family="ltx2", path=f"a/{name}", dtype="bfloat16")
    assert text_encoder_bytes(model, MODEL_CONFIGS / name) == pytest.approx(2e9 * billions)


def test_published_connectors_and_gemma_4_have_the_parameters_that_are_counted():
    """Gemma-4-12B's file is of 23.92 GB in bfloat16."""
    newer = {
        f"{name}_{key}": value
        for name, head in (("video", 128), ("audio", 64))
        for key, value in {
            "connector_num_attention_heads": 32,
            "connector_attention_head_dim": head,
            "connector_num_layers": 8,
            "gated_attn": True,
        }.items()
    }
    with torch.device("meta"):
        small = LTX2TextConnectors(rope_type="split")
        large = LTX2TextConnectors(
            rope_type="split", per_modality_projections=True, proj_bias=True, **newer
        )
        gemma = Gemma4UnifiedForConditionalGeneration(Gemma4UnifiedConfig(**GEMMA_4))
    small, large, gemma = (
        sum(own.numel() for own in part.parameters()) for part in (small, large, gemma)
    )
    assert 2e-9 * gemma == pytest.approx(23.92, abs=0.005)
    assert 1e-9 * (13.619e9 - small + large) == pytest.approx(15.360, abs=5e-4)
    assert 1e-9 * (gemma + large) == pytest.approx(15.132, abs=5e-4)


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
    parts = (whole.text_encoder, whole.connectors)
    of_texts = {  # Gemma's head is its embedding
        own.data_ptr(): own.nbytes for part in parts for own in part.state_dict().values()
    }
    assert text_encoder_bytes(policy.config, Path(folder)) == sum(of_texts.values())
    assert (whole.audio_vae, whole.vocoder) == (None, None)
    assert not any(own.requires_grad for own in whole.connectors.parameters())
    trainer = load_tiny(folder, "ltx2", parts=TRAINER_PARTS).pipeline
    assert (trainer.connectors, trainer.text_encoder) == (None, None)


def test_what_else_comes_with_ltx25_is_not_loaded(tiny_families, tmp_path):
    """Of what its index names diffusers' pipeline takes some and ignores others."""
    shutil.copytree(tiny_families["ltx2-2.5"], tmp_path / "model")
    file = tmp_path / "model/model_index.json"
    taken = {
        "duration_head": ["ltx2", "LTX2DurationHead"],
        "prompt_enhancer": ["transformers", "Gemma4ForConditionalGeneration"],
        "processor": ["transformers", "Gemma4UnifiedProcessor"],
    }
    ignored = {"diffusion_decoder": ["diffusers", "LTX2VideoDiffusionDecoderModel"]}
    file.write_text(json.dumps(json.loads(file.read_text()) | taken | ignored))
    parts = load_tiny(str(tmp_path / "model"), "ltx2").pipeline.components
    assert not any(parts[name] for name in taken)
    assert not parts.keys() & ignored.keys()


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


@pytest.mark.ci_but_one
def test_samples_of_the_distilled_models_are_the_stock_pipelines(folder, tmp_path):
    """Whose scheduler shifts nothing, and whose noise levels are an argument of the call."""
    shutil.copytree(folder, tmp_path / "model")
    file = tmp_path / "model/scheduler/scheduler_config.json"
    plain = {"use_dynamic_shifting": False, "shift_terminal": None}
    file.write_text(json.dumps(json.loads(file.read_text()) | plain))
    path, levels = str(tmp_path / "model"), tuple(DISTILLED_SIGMA_VALUES)
    policy = load_tiny(path, "ltx2", guidance_scale=1.0, sigmas=levels)
    made = sample_images(policy, [Prompt("a dog")], [0], num_samples=1, num_steps=8, seed=3)
    noise = initial_latent(policy, seed=3, group=(0, 0), samples=range(1), purpose=EVALUATION_NOISE)
    call = {"guidance_scale": 1.0, "num_inference_steps": 8, "output_type": "pt"}
    expected = generate(stock(path), "ltx2", ["a dog"], noise, sigmas=list(levels), **call)
    torch.testing.assert_close(made, expected, rtol=0, atol=1e-5)
    others = generate(stock(path), "ltx2", ["a dog"], noise, **call)
    assert (made - others).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["LTX-2", "LTX-2.3-Diffusers"])
def test_its_latent_frames_are_of_8_and_its_tokens_of_32_pixels(name):
    published = MODEL_CONFIGS / name
    size = {"height": 64, "width": 96, "num_frames": 17}
    config = ModelConfig(family="ltx2", path="a/b", **size)
    here = config.model_copy(update={"path": str(published)})
    policy = adapter_of("ltx2").without_weights(config, published)
    assert policy.latent_shape == (3 * 2 * 3, 128)
    for refusing in (policy.at_size, lambda size: check_local_size(here.at_size(size))):
        with pytest.raises(UserError, match="is 13; this ltx2 model needs 1 more than a mult"):
            refusing((64, 96, 13))
    settings = read_settings(published)
    run = RunConfig.model_validate(
        {"model": {"family": "ltx2", **size}, "parallel": {"context_parallel": 4}}
    )
    with pytest.raises(UserError, match=r"does not divide the 18 tokens of samples"):
        check_degree(run, 4, settings)


def test_sigmas_of_the_published_schedule_by_hand(plain):
    """At 256 x 384 and 49 frames: 672 tokens of 1024 and 4096, which have 0.95 and 2.05."""
    mu = 0.95 + (672 - 1024) * (2.05 - 0.95) / (4096 - 1024)
    u = torch.tensor([1, 0.75, 0.5, 0.25], dtype=torch.float64)
    shifted = torch.tensor(mu).exp() / (torch.tensor(mu).exp() + 1 / u - 1)
    stretched = 1 - (1 - shifted) * (1 - 0.1) / (1 - shifted[-1])  # the last is 0.1
    plain.latent_shape = (672, 4)
    expected = torch.cat([stretched, torch.zeros(1)]).float()
    torch.testing.assert_close(plain.sigmas(4), expected, rtol=0, atol=1e-6)
