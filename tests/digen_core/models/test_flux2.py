"""FLUX.2: the pipelines of dev and of distilled klein, whole prompts, what the configs tell."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from diffusers import UniPCMultistepScheduler

from digen_core.config.families import FAMILIES
from digen_core.config.model import ModelConfig
from digen_core.config.train import LoraConfig
from digen_core.data.prompts import Prompt
from digen_core.errors import ConfigError
from digen_core.models.families import adapter_of, flux2
from digen_core.models.policy import TRAINER_PARTS
from digen_core.models.trainable import make_trainable
from digen_core.planning.memory_count import text_encoder_bytes
from digen_core.planning.model_settings import MODEL_CONFIGS
from digen_core.preflight.model import check_model_folder
from digen_core.rollout.evaluation import sample_images
from digen_core.rollout.sampler import initial_latent
from digen_core.seeding import EVALUATION_NOISE
from support.families import NEGATIVE, load_tiny
from support.flux2 import BEFORE_IN_DEV, write_dev, write_distilled
from support.stock import generate, stock
from support.tiny_policies import TINY

SHORT, LONG = "a red circle", "two blue squares to the left of a large green triangle"
VARIANTS = ("klein", "distilled", "dev")


@pytest.fixture(scope="module")
def variants(tiny_families, tmp_path_factory) -> dict[str, str]:
    klein, folder = tiny_families["flux2"], tmp_path_factory.mktemp("flux2")
    return {
        "klein": klein,
        "distilled": write_distilled(klein, folder / "distilled"),
        "dev": write_dev(klein, folder / "dev"),
    }


def tokens_for(name: str) -> int:
    """So many that the longer prompt is whole, and the shorter padded."""
    return (BEFORE_IN_DEV if name == "dev" else 25) + len(LONG)


def test_a_scheduler_with_flow_sigmas_spreads_them_itself(variants):
    """As the stock pipeline lets it: of those that it is given UniPC makes others."""
    policy = load_tiny(variants["klein"], "flux2", parts=TRAINER_PARTS)
    settings = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0}
    pipeline = stock(variants["klein"])
    policy.pipeline.scheduler = pipeline.scheduler = UniPCMultistepScheduler(**settings)
    x = torch.randn(1, *policy.latent_shape)
    generate(pipeline, "flux2", [SHORT], x, output_type="latent", num_inference_steps=5)
    assert torch.equal(policy.sigmas(5), pipeline.scheduler.sigmas)


@pytest.mark.ci_but_one
@pytest.mark.parametrize("scale", [3.0, 1.0])
@pytest.mark.parametrize("name", VARIANTS)
def test_noiseless_sampling_is_the_stock_pipelines(variants, name, scale):
    """At 48 x 80 pixels, of prompts of unequal length."""
    size, length = {"height": 48, "width": 80}, tokens_for(name)
    policy = load_tiny(
        variants[name], "flux2", guidance_scale=scale, max_sequence_length=length, **size
    )
    prompts = [SHORT, LONG]
    made = sample_images(
        policy, [*map(Prompt, prompts)], [3, 7], num_samples=1, num_steps=3, seed=11
    )
    noise = torch.cat(
        [
            initial_latent(
                policy, seed=11, group=(0, i), samples=range(1), purpose=EVALUATION_NOISE
            )
            for i in (3, 7)
        ]
    )
    pipeline, negative = stock(variants[name]), {}
    if name == "klein" and scale > 1:
        embeds, _ = pipeline.encode_prompt([NEGATIVE] * 2, max_sequence_length=length)
        negative = {"negative_prompt_embeds": embeds}
    expected = pipeline(
        prompt=prompts,
        latents=noise.transpose(1, 2).reshape(2, -1, 3, 5),
        guidance_scale=scale,
        num_inference_steps=3,
        max_sequence_length=length,
        output_type="pt",
        **size,
        **negative,
    ).images
    assert expected.std() > 0.03
    torch.testing.assert_close(made, expected, rtol=0, atol=1e-5)


def test_with_the_empty_negative_prompt_it_is_the_pipelines_own_guidance(variants):
    policy = load_tiny(variants["klein"], "flux2", negative_prompt="")
    made = sample_images(policy, [*map(Prompt, [SHORT])], [3], num_samples=1, num_steps=2, seed=11)
    noise = initial_latent(
        policy, seed=11, group=(0, 3), samples=range(1), purpose=EVALUATION_NOISE
    )
    expected = stock(variants["klein"])(
        prompt=[SHORT],
        latents=noise.transpose(1, 2).reshape(1, -1, 2, 3),
        guidance_scale=3.0,
        num_inference_steps=2,
        max_sequence_length=24,
        output_type="pt",
        height=32,
        width=48,
    ).images
    torch.testing.assert_close(made, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", VARIANTS)
def test_only_klein_that_is_not_distilled_has_a_second_half(variants, name):
    policy = load_tiny(variants[name], "flux2")
    condition = policy.encode([SHORT])
    assert policy.guided == ("negative_prompt_embeds" in condition) == (name == "klein")
    config = ModelConfig(**{**TINY, "family": "flux2", "path": variants[name]})
    blank = adapter_of("flux2").without_weights(config, Path(variants[name]))
    assert blank.guided == policy.guided
    assert type(blank.pipeline) is type(policy.pipeline)


def test_guidance_is_an_input_of_dev_alone(variants):
    for name, differs in (("dev", True), ("distilled", False)):
        one, other = (
            load_tiny(variants[name], "flux2", guidance_scale=scale) for scale in (2.0, 6.0)
        )
        x = initial_latent(one, seed=5, group=(0, 0), samples=range(2))
        inputs = x, torch.tensor([0.3, 0.8]), one.encode([SHORT] * 2)
        difference = (one.velocity(*inputs) - other.velocity(*inputs)).abs().max()
        assert (difference > 1e-3) == differs


@pytest.mark.parametrize("name", VARIANTS)
def test_a_prompts_tokens_are_counted_with_its_template(variants, name):
    policy = load_tiny(variants[name], "flux2")
    before = BEFORE_IN_DEV if name == "dev" else 25
    assert policy.num_tokens([SHORT, LONG]) == [before + len(SHORT), before + len(LONG)]


def test_without_the_statistics_of_the_vae_pixels_are_others(variants):
    policy = load_tiny(variants["klein"], "flux2")
    x = initial_latent(policy, seed=5, group=(0, 0), samples=range(1))
    before = policy.decode(x)
    for statistic, neutral in (("running_mean", 0.0), ("running_var", 1.0)):
        other = load_tiny(variants["klein"], "flux2")
        getattr(other.pipeline.vae.bn, statistic).fill_(neutral)
        assert (other.decode(x) - before).abs().max() > 1e-3


@pytest.mark.parametrize("name", VARIANTS)
def test_each_of_its_pipelines_is_taken_before_the_start(variants, name):
    check_model_folder(ModelConfig(**{**TINY, "family": "flux2", "path": variants[name]}))


def test_another_pipeline_is_refused(variants, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(variants["klein"], folder)
    index = folder / "model_index.json"
    index.write_text(index.read_text().replace("Flux2KleinPipeline", "Flux2KleinKVPipeline"))
    message = "holds a Flux2KleinKVPipeline, but model.family 'flux2' needs a Flux2KleinPipeline or"
    with pytest.raises(ConfigError, match=message):
        load_tiny(str(folder), "flux2")
    with pytest.raises(ConfigError, match=message):
        check_model_folder(ModelConfig(**{**TINY, "family": "flux2", "path": str(folder)}))


def test_what_devs_processor_lacks_is_said_in_one_line(variants, tmp_path, monkeypatch):
    """It needs torchvision, which digen itself does not."""
    folder = tmp_path / "model"
    shutil.copytree(variants["dev"], folder)
    index = json.loads((folder / "model_index.json").read_text())
    index["tokenizer"] = ["transformers", "PixtralProcessor"]
    (folder / "model_index.json").write_text(json.dumps(index))
    monkeypatch.setattr(flux2, "find_spec", {"torchvision": None}.get)
    load_tiny(str(folder), "flux2", parts=TRAINER_PARTS)
    with pytest.raises(ConfigError, match="PixtralProcessor, which takes torchvision, and"):
        load_tiny(str(folder), "flux2")


def test_a_target_that_holds_layers_elsewhere_is_refused(variants):
    """In blocks of one stream to_out is a layer, in those of two it holds one."""
    policy = load_tiny(variants["klein"], "flux2")
    message = (
        "names 'attn.to_out', a linear layer of some blocks, which in others holds one, such as "
        "'transformer_blocks.0.attn.to_out.0'; name the layers in full, such as "
        "'single_transformer_blocks.0.attn.to_out'"
    )
    with pytest.raises(ConfigError, match=message):
        make_trainable(policy, LoraConfig(targets=("attn.to_out",)))


def test_text_encoders_are_known_by_the_width_of_what_they_return():
    found = {}
    for folder in MODEL_CONFIGS.glob("FLUX.2*"):
        settings = json.loads((folder / "transformer" / "config.json").read_text())
        model = ModelConfig(family="flux2", path=f"a/{folder.name}", dtype="bfloat16")
        found[folder.name] = text_encoder_bytes(model, folder) / 2e9
        assert found[folder.name] == FAMILIES["flux2"].num_text_parameters(settings) / 1e9
    small, large = pytest.approx(4.022), pytest.approx(8.191)
    assert found == {
        "FLUX.2-klein-4B": small,
        "FLUX.2-klein-base-4B": small,
        "FLUX.2-klein-9B": large,
        "FLUX.2-klein-base-9B": large,
        "FLUX.2-dev": pytest.approx(24.011),
    }


def test_what_ships_says_which_models_are_distilled():
    for name, guided in (("FLUX.2-klein-4B", False), ("FLUX.2-klein-base-4B", True)):
        config = ModelConfig(family="flux2", path=f"a/{name}")
        assert adapter_of("flux2").without_weights(config, MODEL_CONFIGS / name).guided == guided
