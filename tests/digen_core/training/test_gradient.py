"""The gradient of a pack: sums over any split, the formula by hand, replay, and the reference."""

import math
from dataclasses import fields, replace
from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from digen_core.config.rollout import RolloutConfig
from digen_core.config.run import RunConfig
from digen_core.control.protocol import Fragment, Pack, PairBlock
from digen_core.maths.flow_sde import LOGPROBS, flow_sde_transition
from digen_core.models.trainable import reference_weights, set_weights, trainable_parameters
from digen_core.rollout.rows import Rows
from digen_core.rollout.sampler import denoise, initial_latent
from digen_core.training import gradient
from digen_core.training.gradient import Agreement, PackMetrics, add_metrics, pack_loss
from digen_core.training.gradient_sum import (
    GradientSum,
    PackGradient,
    SharedSum,
    UpdateGradient,
    pack_gradient,
)
from digen_core.training.pairs import Pairs, gather_pairs, rows_of
from digen_core.transport.arrays import to_array, to_arrays, to_stored
from digen_core.transport.segment import Segment
from support.packs import make_packs
from support.tiny_policies import LORA, load_trainable, moved_weights

ROLLOUT = RolloutConfig(prompts_per_iteration=1, group_size=4, fragment_size=4, num_steps=3)
TRAINED = range(2)
FRAGMENT = Fragment(iteration=0, group=0, index=0, first_sample=0, num_samples=4)
ADVANTAGES = np.array([1.5, -0.5, -2.0, 1.0])
NUM_PAIRS = 8  # 4 samples at 2 steps
CPU = torch.device("cpu")
KINDS = ["gaussian", "flowgrpo"]


@pytest.fixture(scope="module")
def policy(tiny_flux):
    """Float64 adapters at a version that training might have made."""
    policy = load_trainable(tiny_flux)
    set_weights(policy, moved_weights(policy))
    return policy


@pytest.fixture(scope="module")
def segment(policy) -> Segment:
    return sampled(policy)


def sampled(policy, rollout: RolloutConfig = ROLLOUT) -> Segment:
    """A fragment as a denoise task returns it."""
    x = initial_latent(policy, seed=0, group=(0, 0), samples=FRAGMENT.samples, config=rollout)
    rows = Rows.of((0, 0), FRAGMENT.samples)
    done = list(
        denoise(
            policy,
            x,
            rows.conditions({(0, 0): policy.encode(["a red circle"])}),
            policy.sigmas(rollout.num_steps),
            steps=range(rollout.num_steps),
            noisy_steps=TRAINED,
            config=rollout,
            seed=0,
            rows=rows,
        )
    )
    kept = [to_stored(latent, rollout.storage) for latent in (x, *(step.x_next for step in done))]
    latents = np.stack(kept)
    logprobs = {step.step: to_array(step.logprob) for step in done if step.logprob is not None}
    sigmas = to_array(policy.sigmas(rollout.num_steps))
    return Segment(FRAGMENT, 0, latents, logprobs, 0, sigmas, "rollout-0")


def config_of(rollout=ROLLOUT, dtype="float64", **algorithm) -> RunConfig:
    """An update of one group: 4 samples at 2 steps."""
    model = {"dtype": dtype}
    train = {"max_replay_error": 10.0}  # what another version sampled is not told apart here
    tree = {"rollout": rollout.model_dump(), "algorithm": algorithm, "model": model, "train": train}
    return RunConfig.model_validate(tree)


def pairs_of(policy, segment: Segment, pack: Pack, advantages=ADVANTAGES, **algorithm) -> Pairs:
    gathered = gather_pairs(
        pack,
        [segment],
        {0: to_arrays(policy.encode(["a red circle"]))},
        {0: advantages},
        CPU,
        config_of(**algorithm),
        version=0,
        trained_from=0,
        trained_steps=TRAINED,
    )
    return rows_of(gathered, slice(None), CPU)


def all_pairs(policy, segment: Segment) -> Pairs:
    (pack,) = make_packs([FRAGMENT], TRAINED, iteration=0, pack_size=NUM_PAIRS)
    return pairs_of(policy, segment, pack)


def off_policy(pairs: Pairs, spread: float = 1e-3) -> Pairs:
    """As if another version had sampled: ratios on both sides of the clip range, and inside."""
    shift = spread * torch.linspace(-1, 1, len(pairs.x), dtype=pairs.behaviour_logprob.dtype)
    return replace(pairs, behaviour_logprob=pairs.behaviour_logprob + shift)


def take(pairs: Pairs, rows: list[int]) -> Pairs:
    columns = {f.name: getattr(pairs, f.name) for f in fields(Pairs)}
    of_rows = {name: v[rows] for name, v in columns.items() if isinstance(v, torch.Tensor)}
    condition = {name: value[rows] for name, value in pairs.condition.items()}
    return replace(pairs, condition=condition, **of_rows)


def gradient_of(policy, pairs: Pairs, num_groups=1, **algorithm) -> PackGradient:
    rollout = ROLLOUT.model_copy(update={"prompts_per_iteration": num_groups})
    return pack_gradient(policy, pairs, config_of(rollout, **algorithm))


def assert_close(left: dict, right: dict, tolerance: float = 1e-12) -> None:
    assert left.keys() == right.keys()
    scale = np.max([float(value.abs().max()) for value in right.values()])
    assert scale > 0
    for name, value in right.items():
        np.testing.assert_allclose(left[name], value, rtol=0, atol=tolerance * scale, err_msg=name)


# --- sums over packs --------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(
    order=st.permutations(range(NUM_PAIRS)),
    cuts=st.sets(st.integers(1, NUM_PAIRS - 1)),
    kl=st.sampled_from(KINDS),
)
def test_packs_of_any_split_add_up_to_one_gradient(policy, segment, order, cuts, kl):
    pairs = off_policy(all_pairs(policy, segment))
    algorithm = {"kl_coefficient": 0.1, "kl": kl, "clip_range": 3e-4}
    whole = gradient_of(policy, pairs, **algorithm)
    bounds = [0, *sorted(cuts), NUM_PAIRS]
    sums = GradientSum(), GradientSum()  # of two devices
    for index, (first, stop) in enumerate(pairwise(bounds)):
        part = gradient_of(policy, take(pairs, list(order[first:stop])), **algorithm)
        sums[index % 2].add(index, [part])
    total = reduced(*sums)
    assert_close(total.gradient, whole.gradient)
    assert total.metrics.num_pairs == NUM_PAIRS
    assert 0 < whole.metrics.clipped < NUM_PAIRS
    for item in fields(PackMetrics):
        expected = getattr(whole.metrics, item.name)
        if not isinstance(expected, str | Agreement):
            expected = pytest.approx(expected, rel=1e-9)
        assert getattr(total.metrics, item.name) == expected


def test_the_gradient_is_divided_by_the_pairs_of_the_update_not_of_the_pack(policy, segment):
    pairs = take(all_pairs(policy, segment), [0, 5])
    one, two = (gradient_of(policy, pairs, num_groups=n) for n in (1, 2))
    for name, value in two.gradient.items():
        np.testing.assert_array_equal(one.gradient[name], 2 * value)
    assert one.metrics == two.metrics  # sums: the update divides them


def part_of(num_pairs: int, **gradient: list[float]) -> PackGradient:
    values = {name: torch.tensor(value) for name, value in gradient.items()}
    return PackGradient(
        values, PackMetrics(num_pairs, 0.5, 0.1, 1.0, 0.01, 0.3 / num_pairs, {"a": 0.2})
    )


def sum_of(*packs: tuple[int, PackGradient]) -> GradientSum:
    total = GradientSum()
    for index, pack in packs:
        total.add(index, [pack])
    return total


def reduced(own: GradientSum, *others: GradientSum) -> UpdateGradient:
    """The sum of several devices' sums."""
    total = UpdateGradient.of(own)
    for other in others:
        rows = {name: value.numpy().copy() for name, value in other.gradient.items()}
        total.add(SharedSum({}, other.metrics, other.packs), rows)
    return total


def test_sums_by_hand():
    one, two = part_of(2, a=[1.0]), part_of(3, a=[2.0], b=[5.0])
    total = sum_of((0, one), (3, two))
    assert total.gradient == {"a": torch.tensor([3.0]), "b": torch.tensor([5.0])}
    assert total.packs == {0, 3}
    assert total.metrics == PackMetrics(5, 1.0, 0.2, 2.0, pytest.approx(0.02), 0.15, {"a": 0.2})
    assert one.gradient == {"a": torch.tensor([1.0])}


def test_a_pack_that_is_trained_again_counts_once():
    pack = part_of(2, a=[1.0])
    total = sum_of((0, pack), (1, pack), (0, pack))
    assert total.gradient == {"a": torch.tensor([2.0])}
    assert total.metrics.num_pairs == 4


def test_a_sum_is_not_what_autograd_gave():
    """It may give the same tensor to two parameters, and half-precision ones."""
    shared = torch.tensor([1.0, 2.0], dtype=torch.bfloat16)
    pack = PackGradient({"a": shared, "b": shared}, PackMetrics(1))
    total = sum_of((0, pack), (1, pack))
    for value in total.gradient.values():
        assert value.dtype == torch.float32
        assert value.tolist() == [2.0, 4.0]
    assert shared.tolist() == [1.0, 2.0]


def test_gradients_of_several_dtypes_are_added_as_one_by_one():
    dtypes = {"a": torch.float32, "b": torch.bfloat16, "c": torch.float64, "d": torch.float16}
    packs = [
        PackGradient({n: torch.randn(3, 5).to(own) for n, own in dtypes.items()}, PackMetrics(1))
        for _ in range(3)
    ]
    total = sum_of(*enumerate(packs))
    for name, value in total.gradient.items():
        expected = torch.zeros_like(value)
        for pack in packs:
            expected.add_(pack.gradient[name])
        assert torch.equal(value, expected)


def test_a_reduction_leaves_the_sums_as_they_are():
    """It is repeated if a device is lost meanwhile, with packs that were trained since."""
    left, right = sum_of((0, part_of(2, a=[1.0]))), sum_of((1, part_of(3, a=[2.0], b=[5.0])))
    reduced(left, right)
    left.add(2, [part_of(1, a=[4.0])])
    total = reduced(left, right)
    assert total.gradient == {"a": torch.tensor([7.0]), "b": torch.tensor([5.0])}
    assert total.metrics.num_pairs == 6
    assert reduced(left).gradient["a"] is left.gradient["a"]  # nothing is copied


def test_no_pack_counts_in_two_sums():
    pack = part_of(1, a=[1.0])
    with pytest.raises(ValueError, match=r"packs \[1\] are in two sums"):
        reduced(sum_of((0, pack), (1, pack)), sum_of((1, pack)))


def test_a_sum_that_does_not_fit_takes_nothing_of_a_pack(monkeypatch):
    total = sum_of((0, part_of(2, a=[1.0])))
    zeros = torch.zeros_like

    def too_large(value, **settings):
        if value.shape == torch.Size([2]):
            raise torch.OutOfMemoryError
        return zeros(value, **settings)

    monkeypatch.setattr(torch, "zeros_like", too_large)
    with pytest.raises(torch.OutOfMemoryError):
        total.add(1, [part_of(1, a=[1.0]), part_of(1, b=[5.0, 6.0])])
    assert total.gradient == {"a": torch.tensor([1.0])}
    assert (total.packs, total.metrics.num_pairs) == ({0}, 2)


# --- values -----------------------------------------------------------------------------------


def logprob_by_hand(x, x_next, velocity, sigma, sigma_next, *, noise_level, sigma_max):
    """Flow-GRPO's update as published, with dt < 0, at one noise level for all rows."""
    bounded = sigma_max if sigma == 1 else sigma
    std_t = noise_level * math.sqrt(sigma / (1 - bounded))
    dt = sigma_next - sigma
    mean = x * (1 + std_t**2 / (2 * sigma) * dt)
    mean = mean + velocity * (1 + std_t**2 * (1 - sigma) / (2 * sigma)) * dt
    std = std_t * math.sqrt(-dt)
    density = -((x_next - mean) ** 2) / (2 * std**2) - math.log(std * math.sqrt(2 * math.pi))
    return density.flatten(1).mean(1)


def test_on_policy_the_gradient_is_that_of_reinforce(policy, segment):
    # At ratio 1 the surrogate's gradient is that of -advantage * logprob.
    sigmas = [float(sigma) for sigma in policy.sigmas(ROLLOUT.num_steps)]
    latents, advantage = torch.tensor(segment.latents), torch.tensor(ADVANTAGES)
    condition = {
        name: value.repeat(4, *[1] * (value.ndim - 1))
        for name, value in policy.encode(["a red circle"]).items()
    }
    loss = 0.0
    for step in TRAINED:
        x, sigma = latents[step], sigmas[step]
        velocity = policy.velocity(x, torch.full((4,), sigma), condition)
        logprob = logprob_by_hand(
            x, latents[step + 1], velocity, sigma, sigmas[step + 1], noise_level=0.7,
            sigma_max=sigmas[1],
        )  # fmt: skip
        torch.testing.assert_close(logprob, torch.tensor(segment.logprobs[step]), rtol=1e-9, atol=0)
        loss = loss - (advantage * logprob).sum() / NUM_PAIRS
    parameters = trainable_parameters(policy)
    expected = torch.autograd.grad(loss, list(parameters.values()))
    got = gradient_of(policy, all_pairs(policy, segment))
    assert_close(got.gradient, dict(zip(parameters, expected, strict=True)))


def test_the_loss_by_hand(policy, segment):
    # On-policy the ratio is 1: the sum of -advantage over 4 samples at 2 steps, nothing clipped.
    metrics = gradient_of(policy, all_pairs(policy, segment)).metrics
    assert metrics.loss == pytest.approx(-2 * ADVANTAGES.sum(), abs=1e-12)
    assert (metrics.num_pairs, metrics.kl, metrics.clipped) == (NUM_PAIRS, 0, 0)


def test_a_clipped_pair_has_no_gradient(policy, segment):
    # Ratio e^(-1) = 0.37 with a negative advantage: already rare enough.
    pairs = take(all_pairs(policy, segment), [1])
    pairs = replace(pairs, behaviour_logprob=pairs.behaviour_logprob + 1)
    result = gradient_of(policy, pairs)
    assert not any(value.any() for value in result.gradient.values())
    assert result.metrics.clipped == 1
    assert result.metrics.approx_kl == pytest.approx(math.exp(-1))  # e^r - 1 - r at r = -1


# --- replay -----------------------------------------------------------------------------------


@pytest.mark.parametrize("transition", ["flow_sde", "cps", "dance"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_replay_in_the_batch_of_the_rollout_is_exact(tiny_flux, dtype, transition):
    policy = load_trainable(tiny_flux, dtype)
    set_weights(policy, moved_weights(policy))
    rollout = ROLLOUT.model_copy(update={"transition": transition})
    segment = sampled(policy, rollout)
    for pack in make_packs([FRAGMENT], TRAINED, iteration=0, pack_size=4):
        pairs = pairs_of(policy, segment, pack)
        result = pack_gradient(policy, pairs, config_of(rollout, dtype))
        assert result.metrics.max_log_ratio == 0
        assert result.metrics.clipped == 0


@pytest.mark.parametrize("storage", ["float16", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_replay_of_rounded_latents_is_exact(tiny_flux, dtype, storage):
    policy = load_trainable(tiny_flux, dtype)
    set_weights(policy, moved_weights(policy))
    rollout = ROLLOUT.model_copy(update={"storage": storage})
    segment, whole = sampled(policy, rollout), sampled(policy)
    assert 2 * segment.latents.nbytes == whole.latents.nbytes
    step = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[storage]
    np.testing.assert_allclose(segment.before(0), whole.before(0), rtol=step, atol=1e-6)
    assert not np.array_equal(segment.before(0), whole.before(0))
    for pack in make_packs([FRAGMENT], TRAINED, iteration=0, pack_size=4):
        pairs = pairs_of(policy, segment, pack)
        metrics = pack_gradient(policy, pairs, config_of(rollout, dtype)).metrics
        assert metrics.max_log_ratio == 0


@pytest.mark.parametrize("pack_size", [1, 3, 8])
def test_replay_in_other_batches_is_exact_but_for_rounding(tiny_flux, pack_size):
    policy = load_trainable(tiny_flux, "float32")
    set_weights(policy, moved_weights(policy))
    segment = sampled(policy)
    for pack in make_packs([FRAGMENT], TRAINED, iteration=0, pack_size=pack_size):
        metrics = gradient_of(policy, pairs_of(policy, segment, pack)).metrics
        assert metrics.max_log_ratio <= 1e-6


@pytest.mark.parametrize("lora", [LORA, None], ids=["adapters", "all weights"])
@pytest.mark.parametrize("num_groups", [1, 10_000])
def test_half_precision_loses_no_gradient(tiny_flux, num_groups, lora):
    """Of a large update each pair is worth so little that float16 alone would make it 0."""
    gradients, weights = {}, {}
    for dtype in ("float32", "float16"):
        policy = load_trainable(tiny_flux, dtype, lora)
        weights = weights or moved_weights(policy, scale=0.1 if lora else 0.01)
        set_weights(policy, weights)
        rollout = ROLLOUT.model_copy(update={"prompts_per_iteration": num_groups})
        (pack,) = make_packs([FRAGMENT], TRAINED, iteration=0, pack_size=NUM_PAIRS)
        pairs = pairs_of(policy, sampled(policy), pack)
        result = pack_gradient(policy, pairs, config_of(rollout, dtype))
        assert all(value.dtype == torch.float32 for value in result.gradient.values())
        gradients[dtype] = np.concatenate([v.numpy().ravel() for v in result.gradient.values()])
    exact, half = gradients["float32"], gradients["float16"]
    assert np.linalg.norm(half - exact) < 0.05 * np.linalg.norm(exact)
    assert np.mean(half == 0) < np.mean(exact == 0) + 0.02


# --- the reference policy ---------------------------------------------------------------------


@pytest.mark.parametrize("kl", KINDS)
@pytest.mark.parametrize("adapters", [True, False], ids=["adapters", "all weights"])
def test_kl_is_zero_at_the_base_model_and_positive_elsewhere(tiny_flux, adapters, kl):
    settings = {"keep_reference": True} if adapters else {"lora": None, "keep_reference": True}
    policy = load_trainable(tiny_flux, **settings)
    pairs = all_pairs(policy, sampled(policy))
    base = gradient_of(policy, pairs, kl_coefficient=0.5, kl=kl)
    assert base.metrics.kl == 0
    assert_close(base.gradient, gradient_of(policy, pairs).gradient)  # a minimum
    set_weights(policy, moved_weights(policy, scale=0.05))
    moved = gradient_of(policy, pairs, kl_coefficient=0.5, kl=kl).metrics
    without = gradient_of(policy, pairs).metrics
    assert moved.kl > 0
    assert moved.loss == pytest.approx(without.loss + 0.5 * moved.kl)
    assert without.kl == 0


def test_kl_by_hand(policy, segment):
    # Equal stds: mean over elements of (difference of means)^2 / (2 std^2), and at one step
    # Flow-GRPO's is that times the step size. dance's mean differs by the velocities times
    # dt (1 + g^2 (1 - sigma) / (2 sigma)), and its std is g sqrt(dt).
    g, step = 0.3, 1
    sigma, after = (float(value) for value in policy.sigmas(ROLLOUT.num_steps)[step : step + 2])
    (pack,) = make_packs([FRAGMENT], [step], iteration=0, pack_size=4)
    pairs = pairs_of(policy, segment, pack)
    with torch.no_grad():
        velocity = policy.velocity(pairs.x, pairs.sigma, pairs.condition)
        with reference_weights(policy):
            difference = velocity - policy.velocity(pairs.x, pairs.sigma, pairs.condition)
    dt = sigma - after
    difference = difference * dt * (1 + g**2 * (1 - sigma) / (2 * sigma))
    expected = float((difference**2 / (2 * g**2 * dt)).flatten(1).mean(1).sum())
    for kl, factor in (("gaussian", 1.0), ("flowgrpo", dt)):
        rollout = ROLLOUT.model_copy(update={"transition": "dance", "noise_level": g})
        config = config_of(rollout, kl_coefficient=1.0, kl=kl, clip_range=0.99)
        result = pack_gradient(policy, pairs, config)
        assert result.metrics.kl == pytest.approx(factor * expected, rel=1e-9)


@pytest.mark.parametrize("algorithm", [{"kl": "gaussian"}, {"type": "diffusion_nft"}])
def test_a_reference_that_came_with_the_samples_is_not_asked_again(
    policy, segment, algorithm, monkeypatch
):
    algorithm = {**algorithm, "kl_coefficient": 0.5}
    (pack,) = make_packs([FRAGMENT], TRAINED, iteration=0, pack_size=NUM_PAIRS)
    pairs = pairs_of(policy, segment, pack, **algorithm)
    asked = gradient_of(policy, pairs, **algorithm)
    with torch.no_grad(), reference_weights(policy):
        base = policy.velocity(pairs.x, pairs.sigma, pairs.condition)

    def refuse(policy):
        raise AssertionError("the reference policy is asked")

    monkeypatch.setattr(gradient, "reference_weights", refuse)
    given = gradient_of(policy, replace(pairs, reference_velocity=base), **algorithm)
    assert given.metrics == asked.metrics
    assert_close(given.gradient, asked.gradient, 1e-15)
    moved = gradient_of(policy, replace(pairs, reference_velocity=base + 0.1), **algorithm)
    assert moved.metrics.kl > asked.metrics.kl, "what came is what counts"


def test_advantages_may_differ_between_the_steps_of_a_sample(policy, segment):
    """KL as a reward: a pair takes the column of its step."""
    (pack,) = make_packs([FRAGMENT], TRAINED, iteration=0, pack_size=NUM_PAIRS)
    table = np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0], [4.0, 40.0]])
    found = pairs_of(policy, segment, pack, advantages=table).advantage
    expected = [table[row, b.step] for b in pack.blocks for row in b.samples]
    assert found.tolist() == expected


def test_adapters_are_on_again_after_the_reference(policy, segment):
    pairs = all_pairs(policy, segment)

    def velocity():
        return policy.velocity(pairs.x, pairs.sigma, pairs.condition)

    before = velocity()
    with reference_weights(policy):
        base = velocity()
    assert not base.requires_grad
    assert not torch.equal(base, before)
    assert torch.equal(velocity(), before)
    with pytest.raises(KeyError), reference_weights(policy):
        raise KeyError
    assert torch.equal(velocity(), before)
    assert velocity().requires_grad


def test_the_policys_transformer_is_back_after_the_reference(tiny_flux):
    policy = load_trainable(tiny_flux, lora=None, keep_reference=True)
    trained = policy.transformer
    with reference_weights(policy):
        assert policy.transformer is policy.reference_transformer
    with pytest.raises(KeyError), reference_weights(policy):
        raise KeyError
    assert policy.transformer is trained
    assert not any(p.requires_grad for p in policy.reference_transformer.parameters())


# --- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("column", ["behaviour_logprob", "advantage"])
@pytest.mark.parametrize("correction", ["none", "truncate", "reject"])
def test_a_loss_that_is_not_finite_is_named(policy, segment, column, value, correction):
    pairs = take(all_pairs(policy, segment), [0, 1])
    getattr(pairs, column)[1] = value
    found = gradient_of(policy, pairs, correction=correction).metrics
    assert found.nonfinite.startswith("the loss of 2 pairs is NaN or infinite")
    both = add_metrics(gradient_of(policy, take(pairs, [0])).metrics, found)
    assert both.nonfinite == found.nonfinite


def test_a_gradient_that_is_not_finite_is_named(policy, segment):
    pairs = take(all_pairs(policy, segment), [0, 1])
    pairs.advantage[1] = 1e308  # the loss is finite, what it is differentiated to is not
    found = gradient_of(policy, pairs).metrics
    assert found.nonfinite == "the gradient of 2 pairs is NaN or infinite"
    assert not gradient_of(policy, take(pairs, [0])).metrics.nonfinite


def test_replay_that_differs_from_the_rollout_is_an_error(policy, segment):
    pairs = all_pairs(policy, segment)
    moved = replace(pairs, behaviour_logprob=pairs.behaviour_logprob + 2e-5)
    config = RunConfig.model_validate({"rollout": ROLLOUT.model_dump()})
    with pytest.raises(FloatingPointError, match=r"differ by up to 2e-05, more than .* \(1e-05\)"):
        pack_gradient(policy, moved, config)
    none = torch.zeros(NUM_PAIRS, dtype=torch.bool)
    metrics = pack_gradient(policy, replace(moved, is_own=none, is_stale=~none), config).metrics
    assert metrics.max_log_ratio == pytest.approx(2e-5, rel=1e-3)
    assert metrics.replay_error is None


def test_samples_in_float8_may_differ_by_more(policy, segment):
    """Up to 0.05, unless the config says otherwise; what is trained does not depend on them."""
    pairs = all_pairs(policy, segment)
    moved = replace(pairs, behaviour_logprob=pairs.behaviour_logprob + 0.04)
    rollout = {**ROLLOUT.model_dump(), "precision": "float8"}
    tree = {"rollout": rollout, "algorithm": {"correction": "recompute"}}
    config = RunConfig.model_validate(tree)
    found = pack_gradient(policy, moved, config)
    assert found.metrics.replay_error == pytest.approx(0.04, rel=1e-3)
    own = pack_gradient(policy, pairs, config).gradient
    assert all(torch.equal(value, own[name]) for name, value in found.gradient.items())
    further = replace(pairs, behaviour_logprob=pairs.behaviour_logprob + 0.06)
    with pytest.raises(FloatingPointError, match=r"differ by up to 0\.06, more than .* \(0\.05\)"):
        pack_gradient(policy, further, config)
    config = RunConfig.model_validate({**tree, "train": {"max_replay_error": 0.01}})
    with pytest.raises(FloatingPointError, match=r"by up to 0\.04, more than .* \(0\.01\)"):
        pack_gradient(policy, moved, config)


def test_clipped_pairs_that_are_stale_are_counted_apart(policy, segment):
    """Of 8 pairs the odd ones are stale, and the first three have left the range of 1e-4."""
    pairs = all_pairs(policy, segment)
    row = torch.arange(NUM_PAIRS)
    moved = torch.where(row < 3, 1e-3, 0.0)
    pairs = replace(
        pairs,
        behaviour_logprob=pairs.behaviour_logprob + moved,
        is_own=torch.zeros(NUM_PAIRS, dtype=torch.bool),
        is_stale=row % 2 == 1,
    )
    config = RunConfig.model_validate({"rollout": ROLLOUT.model_dump()})
    halves = [
        pack_gradient(policy, rows_of(pairs, rows, policy.device), config).metrics
        for rows in (slice(0, 4), slice(4, NUM_PAIRS))
    ]
    found = add_metrics(*halves)
    assert (found.num_pairs, found.clipped) == (NUM_PAIRS, 3)
    assert (found.num_stale, found.stale_clipped) == (NUM_PAIRS // 2, 1)


def test_replay_errors_are_those_of_the_device_that_sampled(policy, segment):
    """Also of a part of the rows, as a member of a gang has; and the one that is off is named."""
    devices = tuple("ab"[row % 2] for row in range(NUM_PAIRS))
    off = torch.tensor([1e-6 * row if name == "b" else 0.0 for row, name in enumerate(devices)])
    pairs = all_pairs(policy, segment)
    assert set(pairs.sampled_by) == {"rollout-0"}
    pairs = replace(
        pairs, sampled_by=devices, behaviour_logprob=pairs.behaviour_logprob + off.double()
    )
    config = RunConfig.model_validate({"rollout": ROLLOUT.model_dump()})
    parts = [slice(0, 3), slice(3, NUM_PAIRS)]
    found = [
        pack_gradient(policy, rows_of(pairs, rows, policy.device), config).metrics for rows in parts
    ]
    assert found[0].replay_errors == pytest.approx({"a": 0.0, "b": 1e-6}, abs=1e-12)
    both = add_metrics(*found)
    assert both.replay_errors == pytest.approx({"a": 0.0, "b": float(off.max())}, abs=1e-12)
    assert both.replay_error == both.replay_errors["b"]
    assert both.mean_replay_error == pytest.approx(float(off.mean()), abs=1e-12)
    none = torch.zeros(NUM_PAIRS, dtype=torch.bool)
    stale = pack_gradient(policy, replace(pairs, is_own=none, is_stale=~none), config).metrics
    assert (stale.replay_error, stale.mean_replay_error) == (None, None)
    half = replace(pairs, is_own=torch.arange(NUM_PAIRS) % 2 == 1)
    found_half = pack_gradient(policy, half, config).metrics.mean_replay_error
    assert found_half == pytest.approx(2 * float(off.mean()), abs=1e-12)
    worse = replace(pairs, behaviour_logprob=pairs.behaviour_logprob + 10 * off.double())
    with pytest.raises(FloatingPointError, match=r"sampled them by b, log-probs differ by up to"):
        pack_gradient(policy, worse, config)


@pytest.mark.parametrize("kind", ["grpo_guard", "flow_dppo"])
def test_the_mean_that_sampled_is_found_from_the_noise(policy, segment, kind):
    # On-policy the divergence from the sampling policy is 0, and moved it is that of the means.
    (pack,) = make_packs([FRAGMENT], TRAINED, iteration=0, pack_size=NUM_PAIRS)
    pairs = pairs_of(policy, segment, pack, type=kind)
    config = config_of(type=kind)
    settings = {"noise_level": 0.7, "sigma_max": float(policy.sigmas(3)[1])}
    with torch.no_grad():
        velocity = policy.velocity(pairs.x, pairs.sigma, pairs.condition)
    mean, std = flow_sde_transition(pairs.x, velocity, pairs.sigma, pairs.sigma_next, **settings)
    torch.testing.assert_close(pairs.x_next - std * pairs.noise, mean, rtol=1e-12, atol=1e-12)
    result = pack_gradient(policy, pairs, config)
    assert result.metrics.clipped == 0
    if kind == "grpo_guard":  # the losses at ratio 1 are -advantage / step size
        steps = pairs.sigma - pairs.sigma_next
        assert result.metrics.loss == pytest.approx(float((-pairs.advantage / steps).sum()))


@pytest.mark.parametrize(
    ("correction", "weights"),
    [
        ("recompute", [1.0, 1.0, 1.0]),
        ("truncate", [0.5, 1.0, 1.1]),
        ("icepop", [0.0, 1.0, 0.0]),
        ("reject", [0.0, 1.0, 0.0]),
    ],
)
def test_corrections_weigh_what_another_version_sampled(policy, segment, correction, weights):
    pairs = take(all_pairs(policy, segment), [0, 1, 2])
    ratios = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    stale = replace(pairs, behaviour_logprob=pairs.behaviour_logprob - ratios.log())
    settings = {"correction": correction, "correction_bounds": (0.9, 1.1)}
    found = gradient_of(policy, stale, **settings)
    expected = -(pairs.advantage * torch.tensor(weights, dtype=torch.float64)).sum()
    assert found.metrics.loss == pytest.approx(float(expected))


def test_after_the_first_update_ratios_are_to_what_the_iteration_began_with(policy, segment):
    """With a correction: current to proximal in the loss, proximal to behaviour in its weight."""
    pairs, half = take(all_pairs(policy, segment), [0, 1, 2]), 0.01 / 2
    with torch.no_grad():
        velocity = policy.velocity(pairs.x, pairs.sigma, pairs.condition)
    start = velocity + half * torch.ones_like(velocity)
    settings = {"noise_level": 0.7, "sigma_max": float(policy.sigmas(3)[1])}
    levels = (pairs.sigma, pairs.sigma_next)
    own, proximal = (
        LOGPROBS["flow_sde"](pairs.x_next, flow_sde_transition(pairs.x, v, *levels, **settings))
        for v in (velocity, start)
    )
    stale = replace(pairs, start_velocity=start, behaviour_logprob=own - 0.2)
    config = {"correction": "truncate", "correction_bounds": (0.9, 1.1), "clip_range": 0.5}
    found = gradient_of(policy, stale, **config)
    weights = (proximal - stale.behaviour_logprob).exp().clamp(max=1.1)
    expected = -(weights * pairs.advantage * (own - proximal).exp()).sum()
    assert (own - proximal).abs().min() > 1e-6, "the two policies are one"
    assert found.metrics.loss == pytest.approx(float(expected), rel=1e-9)
    assert found.metrics.clipped == 0


def test_pairs_count_by_the_noise_of_their_step(policy, segment):
    """TempFlow-GRPO: the surrogate times 1.73 times the std of the step's noise; not the KL."""
    sigmas = policy.sigmas(ROLLOUT.num_steps)
    for step in TRAINED:
        (pack,) = make_packs([FRAGMENT], [step], iteration=0, pack_size=4)
        pairs = pairs_of(policy, segment, pack)
        sigma, after = (float(value) for value in sigmas[step : step + 2])
        below = sigma if sigma < 1 else float(sigmas[1])
        std = 0.7 * math.sqrt(sigma / (1 - below)) * math.sqrt(sigma - after)
        plain, weighted = (
            gradient_of(policy, pairs, noise_weight=weight) for weight in (0.0, 1.73)
        )
        expected = {name: 1.73 * std * value for name, value in plain.gradient.items()}
        assert_close(weighted.gradient, expected, 1e-5)  # the schedule is float32
        assert weighted.metrics.loss == pytest.approx(1.73 * std * plain.metrics.loss, rel=1e-5)
        with_kl = gradient_of(policy, pairs, noise_weight=1.73, kl_coefficient=0.5)
        assert with_kl.metrics.loss == pytest.approx(
            weighted.metrics.loss + 0.5 * with_kl.metrics.kl
        )


def test_a_correction_leaves_mixgrpos_penalty_to_the_sampling_policy(policy, segment):
    pairs = off_policy(all_pairs(policy, segment))
    log_ratio = pairs.behaviour_logprob - all_pairs(policy, segment).behaviour_logprob
    for correction in ("none", "recompute"):
        plain, penalised = (
            gradient_of(
                policy,
                pairs,
                type="mix_grpo",
                window_size=1,
                correction=correction,
                log_ratio_coefficient=coefficient,
            )
            for coefficient in (0.0, 10.0)
        )
        expected = float(10 * (log_ratio**2 / 2).sum())
        assert penalised.metrics.loss - plain.metrics.loss == pytest.approx(expected, rel=1e-6)
        with pytest.raises(AssertionError):
            assert_close(penalised.gradient, plain.gradient, 1e-6)


# --- clean latents ----------------------------------------------------------------------------


def test_nft_pairs_are_the_last_latents_with_noise_of_their_own(policy, segment):
    (pack,) = make_packs([FRAGMENT], [0, 1], iteration=0, pack_size=NUM_PAIRS)
    pairs = pairs_of(policy, segment, pack, type="diffusion_nft")
    expected = np.concatenate([segment.latents[-1]] * 2)
    np.testing.assert_array_equal(pairs.x_0.numpy(), expected)
    assert pairs.sigma.tolist() == policy.sigmas(3)[[0] * 4 + [1] * 4].tolist()
    assert len({row.sum().item() for row in pairs.noise}) == NUM_PAIRS
    whole = gradient_of(policy, pairs, type="diffusion_nft")
    total = GradientSum()
    for small in make_packs([FRAGMENT], [0, 1], iteration=0, pack_size=3):
        own = pairs_of(policy, segment, small, type="diffusion_nft")
        total.add(small.index, [gradient_of(policy, own, type="diffusion_nft")])
    assert_close(total.gradient, whole.gradient)


def test_a_ratio_that_underflows_leaves_its_metric_a_number(policy, segment, monkeypatch):
    """exp of minus ten thousand is 0, whose logarithm is infinite: no metric may be."""
    (pack,) = make_packs([FRAGMENT], [1], iteration=0, pack_size=4)
    settings = {"type": "awm", "num_levels": 1, "weighting": "uniform"}
    pairs = pairs_of(policy, segment, pack, **settings)
    start = pairs.noise - pairs.x_0  # where the flow-matching loss is 0
    monkeypatch.setattr(type(policy), "velocity", lambda self, x, *asked: x * 0 + start + 100)
    loss, read = pack_loss(policy, replace(pairs, start_velocity=start), config_of(**settings))
    metrics = read()
    assert bool(loss.isfinite())
    assert 700 < metrics.max_log_ratio < 1000, "the least number above 0 stands for 0"


@pytest.mark.parametrize("shared", [True, False])
def test_samples_of_a_group_may_be_noised_alike(policy, segment, shared):
    (pack,) = make_packs([FRAGMENT], [0, 1], iteration=0, pack_size=NUM_PAIRS)
    settings = {"type": "dgpo", "num_levels": 2, "shared_noise": shared}
    pairs = pairs_of(policy, segment, pack, **settings)
    assert len({row.sum().item() for row in pairs.noise}) == (2 if shared else NUM_PAIRS)


def test_nft_by_hand(policy, segment):
    # With beta 1 and v = v_old both branches predict x - sigma v, so a certain sample (r = 1) and
    # an uncertain one (r = 1/2) lose the same; gradients differ: r L+ pulls, (1 - r) L- pushes.
    (pack,) = make_packs([FRAGMENT], [1], iteration=0, pack_size=4)
    settings = {"type": "diffusion_nft", "kl_coefficient": 0.0}
    pairs = pairs_of(policy, segment, pack, **settings)
    sigma = float(pairs.sigma[0])
    with torch.no_grad():
        x = (1 - sigma) * pairs.x_0 + sigma * pairs.noise
        velocity = policy.velocity(x, pairs.sigma, pairs.condition)
    error = (x - sigma * velocity - pairs.x_0).flatten(1)
    expected = 5 * (error**2).mean(1) / error.abs().mean(1)
    found = gradient_of(policy, pairs, **settings)
    assert found.metrics.loss == pytest.approx(float(expected.sum()))
    even = replace(pairs, advantage=torch.zeros(4, dtype=torch.float64))
    nothing = gradient_of(policy, even, **settings).gradient  # r = 1/2: pull and push cancel
    assert all(float(value.abs().max()) < 1e-12 for value in nothing.values())


# --- gather_pairs -----------------------------------------------------------------------------


def numbered(fragment: Fragment, first_step: int, num_steps: int, logprob_steps, sigmas) -> Segment:
    """Latent of step s, row r in group g: 100 g + 10 (its sample) + s; log-probs minus that."""
    samples = np.array(fragment.samples, dtype=float)
    rows = 100 * fragment.group + 10 * samples
    latents = np.stack([rows + s for s in range(first_step, first_step + num_steps + 1)])
    logprobs = {step: -(rows + step) for step in logprob_steps}
    latents, sigmas = latents[..., None], np.array(sigmas)
    return Segment(
        fragment, first_step, latents, logprobs, version=0, sigmas=sigmas, device="rollout-0"
    )


def test_rows_of_a_pack_by_hand():
    a = Fragment(iteration=0, group=0, index=0, first_sample=0, num_samples=2)
    b = Fragment(iteration=0, group=0, index=1, first_sample=2, num_samples=2)
    c = Fragment(iteration=0, group=1, index=0, first_sample=0, num_samples=2)
    sigmas = [1.0, 0.75, 0.5, 0.0]
    segments = [
        numbered(c, 0, 3, [0, 1], sigmas),  # a whole trajectory in one stretch
        numbered(b, 2, 1, [], sigmas),
        numbered(b, 0, 2, [0, 1], sigmas),
        numbered(a, 1, 2, [1], sigmas),
        numbered(a, 0, 1, [0], sigmas),
    ]
    blocks = (PairBlock(a, 1, 1, 1), PairBlock(b, 0, 0, 2), PairBlock(b, 1, 0, 1))
    pack = Pack(0, 0, (*blocks, PairBlock(c, 1, 1, 1)))
    pairs = gather_pairs(
        pack,
        segments,
        {0: {"text": np.array([[7.0, 8.0]])}, 1: {"text": np.array([[9.0, 6.0]])}},
        {0: np.array([0.0, 0.1, 0.2, 0.3]), 1: np.array([1.0, 1.1])},
        CPU,
        config_of(),
        version=0,
        trained_from=0,
        trained_steps=TRAINED,
    )
    # group 0: sample 1 at step 1, samples 2 and 3 at step 0, sample 2 at step 1; then group 1
    assert pairs.x.flatten().tolist() == [11, 20, 30, 21, 111]
    assert pairs.x_next.flatten().tolist() == [12, 21, 31, 22, 112]
    assert pairs.behaviour_logprob.tolist() == [-11, -20, -30, -21, -111]
    assert pairs.advantage.tolist() == [0.1, 0.2, 0.3, 0.2, 1.1]
    assert pairs.sigma.tolist() == [0.75, 1.0, 1.0, 0.75, 0.75]
    assert pairs.sigma_next.tolist() == [0.5, 0.75, 0.75, 0.5, 0.5]
    assert pairs.sigma_max == 0.75
    assert pairs.condition["text"][:, 0].tolist() == [7, 9], "pairs of a group share it"
    own = rows_of(pairs, slice(None), CPU)
    assert own.condition["text"].tolist() == [[7, 8]] * 4 + [[9, 6]]
    assert rows_of(own, slice(3, 5), CPU).condition["text"].tolist() == [[7, 8], [9, 6]]
    for rows in (slice(1, 2), slice(3, 5), slice(4, 5)):
        some = rows_of(pairs, rows, CPU)
        assert torch.equal(some.condition["text"], own.condition["text"][rows])
        assert some.condition["text"].is_contiguous()
        assert not some.condition_of


def test_pairs_of_fewer_steps_weigh_more(policy, segment):
    """Of 3 steps 2 are trained; of the 5 that the config has 4 would be, so pairs count twice."""
    (pack,) = make_packs([FRAGMENT], TRAINED, iteration=0, pack_size=NUM_PAIRS)
    most = RolloutConfig(**{**ROLLOUT.model_dump(), "num_steps": 5})
    conditions = {0: to_arrays(policy.encode(["a red circle"]))}
    losses = []
    for rollout in (ROLLOUT, most):
        config, versions = config_of(rollout), {"version": 0, "trained_from": 0}
        given = conditions, {0: ADVANTAGES}, CPU, config
        pairs = gather_pairs(pack, [segment], *given, **versions, trained_steps=TRAINED)
        loss, read = pack_loss(policy, rows_of(pairs, slice(None), CPU), config)
        metrics = read()
        losses.append(float(loss.detach()) * config.pairs_per_update)
        assert metrics.loss == pytest.approx(losses[0])  # metrics are of pairs, however they count
    assert (config.pair_weight(3), losses[1]) == (2.0, pytest.approx(2 * losses[0]))


@settings(deadline=None)
@given(
    num_steps=st.integers(2, 5),
    steps_per_task=st.integers(1, 5),
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    pack_size=st.integers(1, 7),
    shuffled=st.randoms(use_true_random=False),
)
def test_every_pair_is_its_own_transition(num_steps, steps_per_task, sizes, pack_size, shuffled):
    fragments, segments = [], []
    for index, size in enumerate(sizes):
        fragments.append(Fragment(0, 0, index, sum(sizes[:index]), size))
        for first in range(0, num_steps, steps_per_task):
            length = min(steps_per_task, num_steps - first)
            stretch = range(first, first + length)
            schedule = range(num_steps + 1)  # that tells the step
            segments.append(numbered(fragments[-1], first, length, stretch, schedule))
    shuffled.shuffle(segments)
    advantages = np.arange(sum(sizes), dtype=float)
    seen = []
    for pack in make_packs(fragments, range(num_steps), iteration=0, pack_size=pack_size):
        pairs = gather_pairs(
            pack,
            segments,
            {0: {"text": np.zeros((1, 1))}},
            {0: advantages},
            CPU,
            config_of(),
            version=0,
            trained_from=0,
            trained_steps=range(num_steps),
        )
        expected = 10 * pairs.advantage + pairs.sigma
        assert torch.equal(pairs.x.flatten(), expected)
        assert torch.equal(pairs.x_next.flatten(), expected + 1)
        assert torch.equal(pairs.behaviour_logprob, -expected)
        seen += expected.tolist()
    assert sorted(seen) == sorted(10 * s + t for s in range(sum(sizes)) for t in range(num_steps))
