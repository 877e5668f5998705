import numpy as np
import pytest
import torch
from diffusers import FluxPipeline

from digen_core.models.tiny.flux import PROMPT_TOKENS, build_tiny_flux
from digen_core.models.tiny.pretrain import PretrainConfig, pretrain_shapes
from digen_core.rewards.shapes import shapes
from digen_core.worlds.shapes import all_prompts
from support.paths import ROOT

MODEL = ROOT / "deployments" / "models" / "shapes"
MAX_BYTES = 5_000_000


@pytest.fixture(scope="module")
def tiny():
    return build_tiny_flux(width=32, num_layers=1, num_single_layers=1)


@pytest.fixture(scope="module")
def trained():
    return FluxPipeline.from_pretrained(MODEL, dtype=torch.float32, local_files_only=True)


def generate(pipe, prompts, steps):
    pipe.set_progress_bar_config(disable=True)
    return pipe(
        prompts,
        height=32,
        width=32,
        num_inference_steps=steps,
        max_sequence_length=PROMPT_TOKENS,
        generator=torch.Generator().manual_seed(0),
        output_type="pt",
    ).images


def test_every_prompt_is_words_and_fits(tiny):
    for prompt in all_prompts():
        words = len(prompt.split())
        assert len(tiny.tokenizer(prompt).input_ids) == words + 2 <= PROMPT_TOKENS
        assert len(tiny.tokenizer_2(prompt).input_ids) == words + 1 <= PROMPT_TOKENS


def test_the_seed_decides_the_weights_and_the_global_state_is_left_alone(tiny):
    state = torch.get_rng_state()
    again = build_tiny_flux(width=32, num_layers=1, num_single_layers=1)
    other = build_tiny_flux(width=32, num_layers=1, num_single_layers=1, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    name = "transformer_blocks.0.attn.to_q.weight"
    weights = [pipe.transformer.state_dict()[name] for pipe in (tiny, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_a_width_without_even_rotary_axes_is_refused():
    with pytest.raises(ValueError, match="multiple of 32"):
        build_tiny_flux(width=40)


def test_saved_and_loaded_it_generates_the_same_image(tiny, tmp_path):
    tiny.save_pretrained(tmp_path, safe_serialization=True)
    loaded = FluxPipeline.from_pretrained(tmp_path, dtype=torch.float32)
    images = [generate(pipe, ["a red circle", "two blue squares"], 2) for pipe in (tiny, loaded)]
    assert images[0].shape == (2, 3, 32, 32)
    assert torch.equal(*images)


def test_pretraining_is_reproducible_and_saves_a_pipeline(tmp_path):
    config = PretrainConfig(
        num_images=8, vae_steps=2, vae_batch_size=4, flow_steps=2, flow_batch_size=4
    )
    random_state, threads = torch.get_rng_state(), torch.get_num_threads()
    phases = []
    for run in ("a", "b"):
        pretrain_shapes(
            tmp_path / run,
            config=config,
            num_threads=1,
            on_progress=lambda phase, step, loss: phases.append((phase, step)),
        )
    torch.set_rng_state(random_state)
    torch.set_num_threads(threads)
    files = [
        sorted(path.relative_to(tmp_path / run) for path in (tmp_path / run).rglob("*.safetensors"))
        for run in ("a", "b")
    ]
    assert files[0] == files[1]
    assert len(files[0]) == 4
    for file in files[0]:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert phases == [("vae", 2), ("flow", 2)] * 2


def test_the_committed_model_is_small():
    assert sum(path.stat().st_size for path in MODEL.rglob("*") if path.is_file()) <= MAX_BYTES


def test_the_committed_model_half_knows_the_world(trained):
    prompts = list(all_prompts()[::4])
    images = generate(trained, prompts, 8)
    assert np.isfinite(images.numpy()).all()
    scores = shapes(images, prompts)
    assert 0.25 <= scores["exact"].mean().item() <= 0.8
