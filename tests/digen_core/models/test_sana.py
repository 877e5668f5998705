"""Sana 1.5, whose attention normalizes queries and keys (`qk_norm`), as Sana 1.0's does not."""

from pathlib import Path

import pytest
import torch

from digen_core.checkpoints.export import save_adapter, save_transformer
from digen_core.config.train import LoraConfig
from digen_core.data.prompts import Prompt
from digen_core.models.families import adapter_of
from digen_core.models.policy import TRAINER_PARTS
from digen_core.models.trainable import make_trainable, set_weights, trainable_parameters
from digen_core.rollout.evaluation import sample_images
from digen_core.rollout.sampler import initial_latent
from digen_core.seeding import EVALUATION_NOISE
from digen_core.transport.arrays import to_arrays
from support.families import load_tiny
from support.stock import generate, stock, with_euler_steps
from support.tiny_policies import moved_weights

PROMPTS = ["a red circle", "two blue squares"]
NORMS = {f"attn{number}.norm_{name}" for number in (1, 2) for name in "qk"}


def is_norm(name: str) -> bool:
    return any(f".{norm}." in name for norm in NORMS)


@pytest.fixture(scope="module")
def folder(tiny_families, tmp_path_factory) -> str:
    """Folder of a tiny Sana 1.5 whose norms scale each channel differently."""
    pipeline = stock(tiny_families["sana"])
    kind, config = type(pipeline.transformer), dict(pipeline.transformer.config)
    torch.manual_seed(0)
    pipeline.transformer = kind.from_config(config | {"qk_norm": "rms_norm_across_heads"})
    with torch.no_grad():
        for name, parameter in pipeline.transformer.named_parameters():
            if is_norm(name):
                parameter.uniform_(0.25, 4.0)
    path = tmp_path_factory.mktemp("tiny_sana_1.5")
    pipeline.save_pretrained(path)
    return str(path)


def velocity_of(policy, embeds) -> torch.Tensor:
    x = initial_latent(policy, seed=5, group=(0, 0), samples=range(3))
    with torch.no_grad():
        return policy.velocity(x, torch.linspace(0.2, 0.9, 3), embeds)


def test_tokens_are_counted_of_what_the_pipeline_makes_of_a_prompt(folder):
    """It strips it, and makes it lower case: the letter İ becomes two."""
    policy = load_tiny(folder, "sana", max_sequence_length=40)
    prompts = ["a red circle", "  A RED CIRCLE \n", "İstanbul"]
    counts = policy.num_tokens(prompts)
    assert counts == policy.embed(prompts)["mask"].sum(1).tolist()
    assert counts[0] == counts[1]


def test_in_float16_what_overflows_there_is_bfloat16(folder, tmp_path):
    pipeline = stock(folder)
    for layer in (pipeline.text_encoder.embed_tokens, pipeline.vae.decoder.conv_in):
        layer.weight.data *= 1e6
    pipeline.save_pretrained(tmp_path)
    half = load_tiny(str(tmp_path), "sana", "float16")
    assert half.dtype == torch.float16
    assert half.pipeline.text_encoder.dtype == half.pipeline.vae.dtype == torch.bfloat16
    condition = half.embed(PROMPTS)
    assert condition["prompt_embeds"].dtype == torch.float16
    velocity = velocity_of(half, half.encode(["a red circle"] * 3))
    assert half.decode(velocity).isfinite().all()
    exact = load_tiny(str(tmp_path), "sana").embed(PROMPTS)["prompt_embeds"]
    assert (condition["prompt_embeds"] - exact).norm() < 0.05 * exact.norm()


def test_samples_are_the_stock_pipelines(folder, tiny_families):
    policy = load_tiny(folder, "sana")
    prompts = [*map(Prompt, PROMPTS)]
    made = sample_images(policy, prompts, [3, 7], num_samples=1, num_steps=3, seed=11)
    noise = [
        initial_latent(policy, seed=11, group=(0, i), samples=range(1), purpose=EVALUATION_NOISE)
        for i in (3, 7)
    ]
    x, pipeline = torch.cat(noise), with_euler_steps(stock(folder))
    torch.testing.assert_close(
        made, generate(pipeline, "sana", PROMPTS, x, output_type="pt"), rtol=0, atol=1e-5
    )
    # The norms do something: without them the same weights draw other pictures.
    plain = stock(tiny_families["sana"]).transformer
    missing, unknown = plain.load_state_dict(pipeline.transformer.state_dict(), strict=False)
    assert not missing
    assert {name for name in unknown if is_norm(name)} == set(unknown) != set()
    pipeline.transformer = plain
    other = generate(pipeline, "sana", PROMPTS, x, output_type="pt")
    assert (other - made).abs().max() > 1e-3


@pytest.mark.parametrize("lora", [LoraConfig(rank=3, alpha=10), None], ids=["lora", "all"])
def test_what_is_trained_acts_the_same_in_the_stock_pipeline(folder, lora, tmp_path):
    policy = load_tiny(folder, "sana")
    make_trainable(policy, lora)
    embeds = policy.encode(PROMPTS[:1] * 3)
    base = velocity_of(policy, embeds)
    trained = trainable_parameters(policy)
    assert any(map(is_norm, trained)) == (lora is None)
    x = initial_latent(policy, seed=5, group=(0, 0), samples=range(3))
    policy.velocity(x, torch.linspace(0.2, 0.9, 3), embeds).square().sum().backward()
    ups = [name for name in trained if lora is None or "lora_B" in name]  # of A they begin as 0
    assert all(trained[name].grad.abs().max() > 0 for name in ups)
    set_weights(policy, moved_weights(policy, scale=0.02 if lora is None else 0.1))
    velocity = velocity_of(policy, embeds)
    assert (velocity - base).abs().max() > 1e-4

    pipeline = stock(folder)
    if lora is None:
        save_transformer(policy.transformer, tmp_path, to_arrays(trainable_parameters(policy)))
        pipeline.transformer = type(pipeline.transformer).from_pretrained(tmp_path)
    else:
        save_adapter(policy, tmp_path)
        pipeline.load_lora_weights(tmp_path)
    loaded = load_tiny(folder, "sana", parts=TRAINER_PARTS)
    loaded = type(loaded)(pipeline, loaded.config, loaded.device)
    assert torch.equal(velocity_of(loaded, embeds), velocity)


def test_a_model_without_weights_has_its_parameters(folder):
    """What sizes and plans are counted from."""
    policy = load_tiny(folder, "sana")
    counted = adapter_of("sana").without_weights(policy.config, Path(folder)).transformer
    shapes = {name: own.shape for name, own in counted.named_parameters()}
    assert shapes == {name: own.shape for name, own in policy.transformer.named_parameters()}
    assert {
        name.split(".", 2)[2].removesuffix(".weight") for name in filter(is_norm, shapes)
    } == NORMS
