"""Guidance by noise level, and in training alone: which scale a row has, and what it costs."""

from pathlib import Path

import pytest
import torch
from diffusers import StableDiffusion3Pipeline

from digen_core.config.model import ModelConfig
from digen_core.config.run import RunConfig
from digen_core.config.train import LoraConfig
from digen_core.data.prompts import Prompt
from digen_core.models.trainable import make_trainable
from digen_core.planning.sizes import sizes_of
from digen_core.rollout.evaluation import sample_images
from digen_core.rollout.sampler import initial_latent
from digen_core.seeding import EVALUATION_NOISE
from digen_core.training.gradient import pack_loss
from digen_core.training.pairs import CleanPairs
from support.families import GUIDED, HEIGHT, NEGATIVE, TOKENS, WIDTH, load_tiny, sliced
from support.stock import stock

EMBEDDED = ("flux", "hunyuan_video")
INTERVAL = ((0.8, 4.0), (0.3, 0.0))
"""With a scale of 0 above it: guidance between noise levels of 0.3 and 0.8."""
LEVELS = (0.9, 0.8, 0.5, 0.3, 0.1)
SCALES = (0.0, 0.0, 4.0, 4.0, 0.0)  # a bound belongs to the levels above it
PROMPT = "a red circle"


def batch(policy, levels=LEVELS) -> tuple:
    x = initial_latent(policy, seed=5, group=(0, 0), samples=range(len(levels)))
    return x, torch.tensor(levels), policy.encode([PROMPT] * len(levels))


def rows_of_passes(policy) -> list[int]:
    """How many rows each forward pass of the transformer has from now on."""
    sizes = []
    policy.transformer.register_forward_pre_hook(
        lambda _, args, kwargs: sizes.append(len([*args, *kwargs.values()][0])), with_kwargs=True
    )
    return sizes


@pytest.mark.parametrize("name", sliced((*GUIDED, *EMBEDDED)))
def test_each_row_has_the_scale_of_its_noise_level(tiny_families, name):
    folder = tiny_families[name]
    policy = load_tiny(folder, name, guidance_scale=0.0, guidance_schedule=INTERVAL)
    found = policy.velocity(*batch(policy))
    for row, scale in enumerate(SCALES):
        constant = load_tiny(folder, name, guidance_scale=scale)
        expected = constant.velocity(*batch(constant))
        torch.testing.assert_close(found[row], expected[row], rtol=0, atol=2e-5)
    guided = load_tiny(folder, name, guidance_scale=4.0)
    assert (found - guided.velocity(*batch(guided)))[0].abs().max() > 1e-3


@pytest.mark.ci_but_one
@pytest.mark.parametrize("name", GUIDED)
def test_rows_without_guidance_have_no_second_half(tiny_families, name):
    policy = load_tiny(tiny_families[name], name, guidance_scale=0.0, guidance_schedule=INTERVAL)
    sizes = rows_of_passes(policy)
    policy.velocity(*batch(policy))
    assert sorted(sizes) == [3, 4]
    del sizes[:]
    policy.velocity(*batch(policy, (0.9, 0.1)))
    assert sizes == [2]


def test_two_experts_have_a_scale_by_noise_level(tiny_families):
    """Expert and scale change at levels of their own: 0.875, and those of the schedule."""
    schedule = ((0.95, 2.0), (0.5, 1.0))
    policy, *constant = (
        load_tiny(tiny_families["wan-a14b"], "wan-a14b", guidance_scale_2=None, **settings)
        for settings in (
            {"guidance_scale": 4.0, "guidance_schedule": schedule},
            *({"guidance_scale": scale} for scale in (4.0, 2.0, 1.0)),
        )
    )
    levels = (0.97, 0.9, 0.7, 0.2)
    assert [policy.part_at(level) for level in levels] == [0, 2, 3, 5]
    found = policy.velocity(*batch(policy, levels))
    of_scales = [own.velocity(*batch(own, levels)) for own in constant]
    for row, which in enumerate((0, 1, 1, 2)):
        torch.testing.assert_close(found[row], of_scales[which][row], rtol=0, atol=1e-5)


@pytest.mark.parametrize("named", [0.7, 0.8])
def test_a_level_is_not_below_itself_in_a_batch_and_by_itself(tiny_families, named):
    """0.7 in float32 is a little less than 0.7, and 0.8 a little more than 0.8."""
    policy = load_tiny(
        tiny_families["sd3"], "sd3", guidance_scale=1.0, guidance_schedule=((named, 3.0),)
    )
    at, below = torch.tensor([named, named - 1e-6]).tolist()
    sizes = rows_of_passes(policy)
    for level, is_guided in ((at, False), (below, True)):
        policy.velocity(*batch(policy, (level,)))
        assert policy.part_at(level) == is_guided
        assert sizes.pop() == 1 + is_guided


def test_an_interval_is_what_the_stock_pipeline_does_whose_guidance_ends(tiny_families):
    """As the documentation of diffusers turns guidance off: by a callback after a step."""

    def stop(pipeline, step, timestep, tensors):
        if step == 1:
            pipeline._guidance_scale = 1.0
            return {name: value.chunk(2)[1] for name, value in tensors.items() if "embeds" in name}
        return {}

    folder = tiny_families["sd3"]
    policy = load_tiny(folder, "sd3")
    levels = policy.sigmas(4).tolist()
    schedule = (((levels[1] + levels[2]) / 2, 1.0),)
    policy = load_tiny(folder, "sd3", guidance_schedule=schedule)
    made = sample_images(policy, [Prompt(PROMPT)], [3], num_samples=1, num_steps=4, seed=11)
    noise = initial_latent(
        policy, seed=11, group=(0, 3), samples=range(1), purpose=EVALUATION_NOISE
    )
    pipeline: StableDiffusion3Pipeline = stock(folder)
    settings = {
        "prompt": [PROMPT],
        "negative_prompt": [NEGATIVE],
        "guidance_scale": 3.0,
        "num_inference_steps": 4,
        "height": HEIGHT,
        "width": WIDTH,
        "max_sequence_length": TOKENS,
        "latents": noise,
        "output_type": "pt",
    }
    names = ["prompt_embeds", "pooled_prompt_embeds"]
    expected = pipeline(
        **settings, callback_on_step_end=stop, callback_on_step_end_tensor_inputs=names
    ).images
    torch.testing.assert_close(made, expected, rtol=0, atol=1e-5)
    assert (made - pipeline(**settings).images).abs().max() > 1e-3


@pytest.mark.ci_but_one
@pytest.mark.parametrize(("sampled", "trained"), [(0.0, 4.0), (4.0, 0.0)], ids=str)
@pytest.mark.parametrize("name", sliced((*GUIDED, *EMBEDDED, "wan-a14b")))
def test_training_has_a_scale_of_its_own(tiny_families, name, sampled, trained):
    """As models that have it throughout: also of two experts, and whatever a schedule says."""
    scales = {"guidance_scale": sampled, "guidance_schedule": ((0.5, sampled),)}
    if name == "wan-a14b":
        scales = {"guidance_scale": sampled, "guidance_scale_2": sampled}
    policy = load_tiny(tiny_families[name], name, train_guidance_scale=trained, **scales)
    found = [own.velocity(*batch(policy)) for own in (policy, policy.in_training())]
    for own, scale in zip(found, (sampled, trained), strict=True):
        constant = load_tiny(tiny_families[name], name, guidance_scale=scale, guidance_scale_2=None)
        torch.testing.assert_close(own, constant.velocity(*batch(constant)), rtol=0, atol=2e-5)
    assert (found[0] - found[1]).abs().max() > 1e-3
    if name not in EMBEDDED:
        sizes = rows_of_passes(policy)
        for own in (policy, policy.in_training()):
            own.velocity(*batch(policy, (0.9, 0.9)))
        assert sizes == [2 * own.num_passes for own in (policy, policy.in_training())]
        assert sorted(sizes) == [2, 4]


def test_without_a_scale_of_its_own_training_has_the_policy_itself(tiny_families):
    policy = load_tiny(tiny_families["sd3"], "sd3")
    assert policy.in_training() is policy
    assert policy.num_passes == 2


def trained_config(**model) -> RunConfig:
    return RunConfig.model_validate(
        {
            "model": {"family": "sd3", "guidance_scale": 1.0, **model},
            "algorithm": {"type": "diffusion_nft", "kl_coefficient": 0.5, "max_advantage": 1.0},
        }
    )


def test_a_loss_is_of_the_guided_velocity(tiny_families):
    """By the formulas, of what one forward pass gives for the prompt and one for its negative.

    With an advantage of 0 half of the loss is of each branch, which are v_old plus and minus
    v - v_old; v_old is v in a first update. So it is half of ||x - sigma v - x_0||^2 twice, over
    its own mean distance, which is 1: the mean of squares by the mean of distances.
    """
    config = trained_config(train_guidance_scale=3.0)
    policy = load_tiny(tiny_families["sd3"], "sd3", guidance_scale=1.0, train_guidance_scale=3.0)
    x_0, sigma, condition = batch(policy, (0.8, 0.4))
    noise = torch.randn_like(x_0)
    reference = torch.zeros_like(x_0)
    pairs = CleanPairs(x_0, noise, torch.zeros(2), sigma, condition, reference_velocity=reference)
    _, read = pack_loss(policy, pairs, config)
    metrics = read()
    names = [name for name in condition if not name.startswith("negative_")]
    positive, negative = (
        policy.predicted(pairs.x, sigma, {name: condition[start + name] for name in names})
        for start in ("", "negative_")
    )
    velocity = negative + 3 * (positive - negative)
    left = (pairs.x - sigma.view(-1, 1, 1, 1) * velocity - x_0).double().flatten(1)
    of_branches = left.square().mean(1) / left.abs().mean(1)
    kl = velocity.double().square().flatten(1).mean(1)
    assert metrics.kl == pytest.approx(float(kl.sum()), rel=1e-5)
    assert metrics.loss == pytest.approx(float((of_branches + 0.5 * kl).sum()), rel=1e-5)
    unguided = positive.double().square().flatten(1).mean(1)
    assert abs(metrics.kl - float(unguided.sum())) > 1e-3 * metrics.kl


def test_a_guided_velocity_by_hand(tiny_families):
    """1 without guidance and 2 for the prompt are 1 + 3 (2 - 1) with a scale of 3."""
    policy = load_tiny(tiny_families["sd3"], "sd3", guidance_scale=1.0, train_guidance_scale=3.0)
    one = torch.ones(1, 4)
    assert policy.guide(2 * one, one, policy.in_training().guidance_scale).tolist() == [[4.0] * 4]


@pytest.mark.ci_but_one
@pytest.mark.parametrize(("sampled", "trained"), [(1.0, 3.0), (3.0, 1.0)], ids=str)
def test_sizes_count_each_guidance_where_it_is(tiny_families, sampled, trained):
    """A guided velocity takes what two do: of steps, of pairs, or of neither."""
    folder = Path(tiny_families["sd3"])
    size = {"height": HEIGHT, "width": WIDTH, "max_sequence_length": TOKENS}
    found, samples, training = (
        sizes_of(trained_config(**size, **scales), folder)
        for scales in (
            {"guidance_scale": sampled, "train_guidance_scale": trained},
            {"guidance_scale": sampled},
            {"guidance_scale": trained},
        )
    )
    assert found.step_flops == samples.step_flops != training.step_flops
    assert found.pair_flops == training.pair_flops != samples.pair_flops


@pytest.mark.parametrize("scale", [None, 3.0])
def test_the_reference_policy_has_a_scale_of_its_own(tiny_families, scale):
    """New adapters change nothing: v is that of the prompt, and guided it is v + 2 (v - v_neg)."""
    config = trained_config(reference_guidance_scale=scale)
    policy = load_tiny(
        tiny_families["sd3"], "sd3", guidance_scale=1.0, reference_guidance_scale=scale
    )
    make_trainable(policy, LoraConfig(rank=2, alpha=4))
    x_0, sigma, condition = batch(policy, (0.8, 0.4))
    pairs = CleanPairs(x_0, torch.randn_like(x_0), torch.zeros(2), sigma, condition)
    _, read = pack_loss(policy, pairs, config)
    metrics = read()
    if scale is None:
        assert metrics.kl == 0
        return
    names = [name for name in condition if not name.startswith("negative_")]
    with torch.no_grad():
        positive, negative = (
            policy.predicted(pairs.x, sigma, {name: condition[start + name] for name in names})
            for start in ("", "negative_")
        )
    expected = (2 * (positive - negative)).double().square().flatten(1).mean(1).sum()
    assert metrics.kl == pytest.approx(float(expected), rel=1e-5)


def test_sizes_count_the_guidance_of_the_reference_policy(tiny_families):
    folder = Path(tiny_families["sd3"])
    size = {"height": HEIGHT, "width": WIDTH, "max_sequence_length": TOKENS}
    plain, guided = (
        sizes_of(trained_config(**size, reference_guidance_scale=scale), folder)
        for scale in (None, 3.0)
    )
    assert guided.step_flops == plain.step_flops
    more = guided.pair_flops - plain.pair_flops
    assert 0.95 * plain.step_flops < more < plain.step_flops  # that of adapters is not in it


@pytest.mark.parametrize(
    ("algorithm", "asker", "asked"),
    [
        ({"type": "dgpo", "num_levels": 2, "kl_coefficient": 0.1}, "training", (1, 1)),
        ({"type": "awm", "kl_coefficient": 0.1}, "generation", (0, 1)),
    ],
    ids=["margins", "generation"],
)
def test_steps_count_the_guidance_of_the_reference_policy(tiny_families, algorithm, asker, asked):
    """A margin asks both policies once, else the reference alone: it takes two passes."""
    folder = Path(tiny_families["sd3"])
    size = {"height": HEIGHT, "width": WIDTH, "max_sequence_length": TOKENS}

    def sizes(**scales):
        config = RunConfig.model_validate(
            {
                "model": {"family": "sd3", "guidance_scale": 1.0, **size, **scales},
                "algorithm": algorithm,
                "schedule": {"reference": asker},
            }
        )
        steps = config.most_reference_steps if asker == "generation" else config.num_trained_steps
        return sizes_of(config, folder).step_flops, steps / config.rollout.num_steps

    (plain, share), (guided, _) = sizes(), sizes(reference_guidance_scale=3.0)
    own, base = asked
    velocity = plain / (1 + (own + base) * share)
    assert guided == pytest.approx(velocity * (1 + (own + 2 * base) * share), rel=1e-6)


def test_a_scale_of_a_reference_policy_that_nobody_asks_is_refused():
    with pytest.raises(ValueError, match="reference_guidance_scale is 3, but nothing asks the ref"):
        RunConfig.model_validate({"model": {"family": "sd3", "reference_guidance_scale": 3.0}})


@pytest.mark.parametrize("type", ["flow_grpo", "dance_grpo", "ddpo"])
@pytest.mark.parametrize("correction", ["none", "recompute"])
def test_ratios_take_no_other_guidance(type, correction):
    settings = {"type": type, "correction": correction}
    match = rf"train_guidance_scale is 3, but algorithm.type {type} takes ratios .* two policies"
    with pytest.raises(ValueError, match=match):
        RunConfig.model_validate(
            {
                "model": {"family": "sd3", "train_guidance_scale": 3.0},
                "rollout": {"transition": "dance"} if type == "dance_grpo" else {},
                "algorithm": settings,
            }
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"guidance_schedule": [[0.3, 1.0], [0.9, 4.0]]}, r"noise levels \[0.3, 0.9\]; name each"),
        ({"guidance_schedule": [[0.9, 1.0], [0.9, 4.0]]}, r"noise levels \[0.9, 0.9\]; name each"),
        ({"guidance_schedule": [[1.0, 4.0]]}, "less than 1"),
        ({"guidance_schedule": [[0.5, -4.0]]}, "greater than or equal to 0"),
        ({"guidance_schedule": [[0.5, float("nan")]]}, "finite|greater than or equal"),
        ({"train_guidance_scale": -1.0}, "greater than or equal to 0"),
        ({"train_guidance_scale": float("nan")}, "finite|greater than or equal"),
        ({"reference_guidance_scale": -1.0}, "greater than or equal to 0"),
        ({"guidance_schedule": [[0.5, 4.0]], "guidance_scale_2": 3.0}, "leave one of them out"),
    ],
)
def test_a_schedule_that_is_none_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig.model_validate({"family": "wan", **changes})
