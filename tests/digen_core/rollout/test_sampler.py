"""Denoising: the same trajectory however it is cut, and noise that is named, not drawn in order."""

from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from digen_core.config.rollout import RolloutConfig
from digen_core.config.run import RunConfig
from digen_core.data.prompts import Prompt
from digen_core.maths.dpm_solver import second_order_step
from digen_core.maths.flow_sde import LOGPROBS, TRANSITIONS
from digen_core.models.loading import prepare
from digen_core.models.trainable import reference_weights, set_weights
from digen_core.rollout.evaluation import sample_images
from digen_core.rollout.references import ReferenceUse
from digen_core.rollout.rows import Rows
from digen_core.rollout.sampler import denoise, initial_latent
from digen_core.seeding import EVALUATION_NOISE, NOISE, noise_of
from support.tiny_policies import load, load_trainable, moved_weights

CONFIG = RolloutConfig(num_steps=4)
GROUP = (2, 1)


@pytest.fixture(scope="module")
def policy(tiny_flux):
    policy = load_trainable(tiny_flux)
    set_weights(policy, moved_weights(policy))
    return policy


def run(
    policy,
    samples=range(4),
    steps=range(4),
    noisy_steps=range(3),
    x=None,
    clean=None,
    reference=None,
    zeroed=False,
    **changes,
):
    """Denoise some steps of some samples, from the initial noise unless ``x`` is given."""
    if x is None:
        x = initial_latent(policy, seed=7, group=GROUP, samples=samples)
    rows = Rows.of(GROUP, samples)
    return list(
        denoise(
            policy,
            x,
            rows.conditions({GROUP: policy.encode(["a red circle"])}),
            policy.sigmas(CONFIG.num_steps),
            steps=steps,
            noisy_steps=noisy_steps,
            config=CONFIG.model_copy(update=changes),
            seed=7,
            rows=rows,
            clean=clean,
            reference=reference,
            zeroed=zeroed,
        )
    )


def assert_close(got, expected, tolerance):
    assert [(a.step, a.logprob is None) for a in got] == [
        (b.step, b.logprob is None) for b in expected
    ]
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a.x, b.x, rtol=0, atol=tolerance)
        torch.testing.assert_close(a.x_next, b.x_next, rtol=0, atol=tolerance)
        if a.logprob is not None:
            torch.testing.assert_close(a.logprob, b.logprob, rtol=0, atol=tolerance)


def test_noise_is_drawn_while_the_device_computes(policy, monkeypatch):
    """The transition looks at its numbers: it waits for the velocities, and the device for it."""
    told, transition = [], TRANSITIONS[CONFIG.transition]

    def saying(what, function):
        def call(*arguments, **parameters):
            told.append(what)
            return function(*arguments, **parameters)

        return call

    monkeypatch.setattr(type(policy), "velocity", saying("velocity", type(policy).velocity))
    monkeypatch.setattr(Rows, "noise", saying("noise", Rows.noise))
    monkeypatch.setitem(TRANSITIONS, CONFIG.transition, saying("transition", transition))
    run(policy, steps=range(2, 4))
    assert told == ["velocity", "noise", "transition", "velocity", "transition"]


# --- the reference policy ---------------------------------------------------------------------


@pytest.mark.parametrize("scaling", ["gaussian", "flowgrpo"])
def test_the_divergence_from_the_base_model_by_hand(policy, scaling):
    # dance's mean moves by the velocities' difference times dt (1 + g^2 (1 - sigma) / (2 sigma)).
    g, reference = 0.3, ReferenceUse(dict.fromkeys((0, 2), range(4)), scaling)
    changes = {"transition": "dance", "noise_level": g}
    steps = run(policy, reference=reference, **changes)
    plain = run(policy, **changes)
    assert_close(steps, plain, 0)  # asking changes nothing that is sampled
    assert [step.kl is not None for step in steps] == [True, False, True, False]
    sigmas, condition = policy.sigmas(CONFIG.num_steps), policy.encode(["a red circle"])
    rows = {
        name: value.expand(4, *value.shape[1:]).contiguous() for name, value in condition.items()
    }
    for step in (steps[0], steps[2]):
        sigma, after = sigmas[step.step].expand(4), float(sigmas[step.step + 1])
        with torch.no_grad():
            velocity = policy.velocity(step.x, sigma, rows)
            with reference_weights(policy):
                difference = velocity - policy.velocity(step.x, sigma, rows)
        s, dt = float(sigma[0]), float(sigma[0]) - after
        difference = difference * dt * (1 + g**2 * (1 - s) / (2 * s))
        expected = (difference**2 / (2 * g**2 * dt)).flatten(1).mean(1)
        factor = dt if scaling == "flowgrpo" else 1.0
        torch.testing.assert_close(step.kl, factor * expected, rtol=1e-9, atol=0)
        assert (step.kl > 0).all()


def test_velocities_of_the_reference_policy_are_kept_for_training(policy):
    kept = ReferenceUse(dict.fromkeys((0, 2), range(4)), kept=True)
    steps = run(policy, reference=kept)
    assert_close(steps, run(policy), 0)  # asking changes nothing that is sampled
    assert [list(step.references) for step in steps] == [[0], [], [2], []]
    assert all(step.kl is None for step in steps)
    rows = {
        name: value.expand(4, *value.shape[1:]).contiguous()
        for name, value in policy.encode(["a red circle"]).items()
    }
    sigma = policy.sigmas(CONFIG.num_steps)[2].expand(4)
    with torch.no_grad(), reference_weights(policy):
        expected = policy.velocity(steps[2].x, sigma, rows)
    assert torch.equal(steps[2].references[2], expected)
    assert not any(step.references for step in run(policy, reference=replace(kept, kept=False)))


def test_the_divergence_is_that_of_the_models_own_precision(tiny_flux):
    """Of the same latents it is what the policy without float8 has."""
    tree = {"rollout": {"precision": "float8"}, "algorithm": {"correction": "recompute"}}
    config, low = RunConfig.model_validate(tree), load(tiny_flux)
    prepare(low, config)
    weights = moved_weights(low)
    set_weights(low, weights)
    found = run(
        low, reference=ReferenceUse(dict.fromkeys((0, 2), range(4)), "gaussian"), precision="float8"
    )
    for step in found:
        assert (step.kl is not None) == (step.step in (0, 2))
    for number in (0, 2):
        step, (sigma, after) = found[number], low.sigmas(CONFIG.num_steps)[number : number + 2]
        rows = {n: v.expand(4, *v.shape[1:]) for n, v in low.encode(["a red circle"]).items()}
        here, there, means = sigma.expand(4), after.expand(4), []
        with torch.no_grad():
            for own in (nullcontext(), reference_weights(low)):
                with own:
                    velocity = low.velocity(step.x, here, rows)
                settings = {"noise_level": 0.7, "sigma_max": float(low.sigmas(4)[1])}
                means.append(TRANSITIONS["flow_sde"](step.x, velocity, here, there, **settings))
        (mean, std), (base, _) = means
        expected = ((mean - base) ** 2 / (2 * std**2)).flatten(1).mean(1)
        torch.testing.assert_close(step.kl, expected, rtol=1e-9, atol=0)
        assert not torch.equal(step.logprob, LOGPROBS["flow_sde"](step.x_next, means[0]))


# --- how the work is cut ----------------------------------------------------------------------


@pytest.mark.parametrize("transition", sorted(TRANSITIONS))
@pytest.mark.parametrize("fragment_size", [1, 2, 3])
def test_a_trajectory_does_not_depend_on_its_fragment(policy, fragment_size, transition):
    whole = run(policy, range(6), transition=transition)
    for first in range(0, 6, fragment_size):
        samples = range(first, first + fragment_size)
        rows = slice(samples.start, samples.stop)
        expected = [
            type(done)(
                done.step,
                done.x[rows],
                done.x_next[rows],
                None if done.logprob is None else done.logprob[rows],
            )
            for done in whole
        ]
        assert_close(run(policy, samples, transition=transition), expected, 1e-12)


@settings(deadline=None, max_examples=8)
@given(cuts=st.sets(st.integers(1, 3)))
def test_a_trajectory_does_not_depend_on_how_its_steps_are_cut(policy, cuts):
    parts, x = [], None
    for first, stop in pairwise([0, *sorted(cuts), 4]):
        parts += run(policy, steps=range(first, stop), x=x)
        x = parts[-1].x_next
    assert_close(parts, run(policy), 0)


def test_branches_are_one_trajectory_up_to_the_noisy_step(policy):
    """Of six samples each three, however they are cut into fragments."""
    config = CONFIG.model_copy(update={"branches": 3})

    def start(samples):
        return initial_latent(policy, seed=7, group=GROUP, samples=samples, config=config)

    x = start(range(6))
    assert torch.equal(x[[0, 1, 2]], x[[0, 0, 0]])
    assert torch.equal(x[[3, 4, 5]], x[[3, 3, 3]])
    assert not torch.equal(x[0], x[3])
    torch.testing.assert_close(torch.cat([start(range(2)), start(range(2, 6))]), x)
    torch.testing.assert_close(x[::3], run(policy, range(6))[0].x[::3])  # as without branches
    done = run(policy, range(6), noisy_steps=range(2, 3), x=x)
    for step in done:
        spread = (step.x_next[:3] - step.x_next[:1]).abs().amax((1, 2))[1:]
        assert (spread > 1e-2).all() if step.step >= 2 else (spread < 1e-12).all()


SECOND = {"solver": "dpmpp_2m", "noisy_steps": range(1)}


@settings(deadline=None, max_examples=8)
@given(cuts=st.sets(st.integers(1, 3)))
def test_a_solver_of_second_order_goes_on_in_another_task(policy, cuts):
    """From what the step before predicted, be it noisy or not."""
    parts, x, clean = [], None, None
    for first, stop in pairwise([0, *sorted(cuts), 4]):
        parts += run(policy, steps=range(first, stop), x=x, clean=clean, **SECOND)
        x, clean = parts[-1].x_next, parts[-1].clean
    assert_close(parts, run(policy, **SECOND), 0)


def test_steps_of_second_order_are_those_after_the_last_noisy_one(policy):
    sigmas = policy.sigmas(CONFIG.num_steps)
    plain, found = (run(policy, **{**SECOND, "solver": name}) for name in ("euler", "dpmpp_2m"))
    assert [step.clean is None for step in plain] == [True] * 4
    assert_close(found[:1], plain[:1], 0)
    for before, step in pairwise(found):
        # the Euler step follows from the prediction: v = (x - clean) / sigma
        s, after = sigmas[step.step], sigmas[step.step + 1]
        euler = step.x - (s - after) * (step.x - step.clean) / s
        levels = {"sigma_before": sigmas[step.step - 1], "sigma": s, "sigma_next": after}
        expected = second_order_step(euler, step.clean, before.clean, **levels)
        torch.testing.assert_close(step.x_next, expected, rtol=0, atol=1e-9)
        is_euler = torch.allclose(step.x_next, euler, rtol=0, atol=1e-6)
        assert is_euler == (step.step in (1, 3)), "after pure noise, and to the end"
    last = {"solver": "dpmpp_2m", "noisy_steps": range(2, 3)}
    assert_close(run(policy, **last), run(policy, **last | {"solver": "euler"}), 0)
    with pytest.raises(ValueError, match="step 2 goes on from what step 1 predicted"):
        run(policy, x=found[1].x, steps=range(2, 3), **SECOND)


def test_each_step_begins_where_the_last_one_ended(policy):
    done = run(policy)
    assert [step.step for step in done] == [0, 1, 2, 3]
    for before, after in pairwise(done):
        assert before.x_next is after.x


# --- values -----------------------------------------------------------------------------------


def test_steps_without_noise_are_plain_euler_steps(policy):
    sigmas = policy.sigmas(CONFIG.num_steps).double()
    condition = policy.encode(["a red circle"] * 4)
    done = run(policy, noisy_steps=range(1, 2))
    assert [step.logprob is None for step in done] == [True, False, True, True]
    for step in (done[0], done[2], done[3]):
        sigma, after = sigmas[step.step], sigmas[step.step + 1]
        with torch.no_grad():
            velocity = policy.velocity(step.x, sigma.expand(4), condition)
        expected = step.x + (after - sigma) * velocity
        torch.testing.assert_close(step.x_next, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("transition", sorted(TRANSITIONS))
def test_a_noisy_step_is_mean_plus_std_times_the_named_noise(policy, transition):
    sigmas = policy.sigmas(CONFIG.num_steps)
    condition = policy.encode(["a red circle"] * 4)
    for done in run(policy, transition=transition)[:3]:
        t = done.step
        with torch.no_grad():
            velocity = policy.velocity(done.x, sigmas[t].expand(4), condition)
        expected = TRANSITIONS[transition](
            done.x, velocity, sigmas[t], sigmas[t + 1], noise_level=0.7, sigma_max=float(sigmas[1])
        )
        drawn = noise_of(
            policy.latent_shape, seed=7, purpose=NOISE, group=GROUP, samples=range(4), step=t + 1
        )
        torch.testing.assert_close(done.x_next, expected.mean + expected.std * drawn.double())
        torch.testing.assert_close(done.logprob, LOGPROBS[transition](done.x_next, expected))


def test_denoising_leaves_no_graph(policy):
    assert not any(done.x_next.requires_grad for done in run(policy))


def test_a_latent_that_becomes_nan_is_an_error_with_its_place(policy):
    x = initial_latent(policy, seed=7, group=GROUP, samples=range(4))
    x[3] = torch.nan
    with pytest.raises(FloatingPointError, match=r"iteration 3, group 1: .* at step 1 \(sigma 0.7"):
        run(policy, steps=range(1, 4), x=x)


def test_with_zeros_in_its_place_the_other_samples_are_as_without_it(policy):
    x = initial_latent(policy, seed=7, group=GROUP, samples=range(4))
    expected = run(policy, steps=range(1, 4), x=x)
    x = x.clone()
    x[3] = torch.inf
    found = run(policy, steps=range(1, 4), x=x, zeroed=True)
    text = f"latent at step 1 (sigma {float(policy.sigmas(4)[1]):.4f})"
    assert [done.nonfinite for done in found] == [{3: text}, {}, {}]
    for done, other in zip(found, expected, strict=True):
        assert torch.equal(done.x_next[:3], other.x_next[:3])
        assert done.x_next.isfinite().all()
    for done, other in zip(found[:2], expected[:2], strict=True):
        assert torch.equal(done.logprob[:3], other.logprob[:3])
        assert done.logprob.isfinite().all()
    assert found[0].x_next[3].count_nonzero() == found[0].logprob[3] == 0


# --- noise ------------------------------------------------------------------------------------

names = st.tuples(
    st.integers(0, 2**32), st.integers(0, 99), st.integers(0, 99), st.integers(0, 99),
    st.integers(0, 99), st.sampled_from([NOISE, EVALUATION_NOISE]),
)  # fmt: skip


def noise(name):
    seed, iteration, group, sample, step, purpose = name
    rows = noise_of(
        (2, 3),
        seed=seed,
        purpose=purpose,
        group=(iteration, group),
        samples=range(sample, sample + 1),
        step=step,
    )
    return rows[0]


@given(names, names)
def test_noise_is_the_same_for_the_same_name_only(one, other):
    assert torch.equal(noise(one), noise(one))
    assert torch.equal(noise(one), noise(other)) == (one == other)


@given(names, st.integers(0, 5), st.integers(0, 2**31))
def test_noise_depends_on_the_name_alone(name, before, global_seed):
    seed, iteration, group, sample, step, purpose = name
    torch.manual_seed(global_seed)
    many = noise_of(
        (2, 3),
        seed=seed,
        purpose=purpose,
        group=(iteration, group),
        samples=range(max(0, sample - before), sample + 3),
        step=step,
    )
    assert torch.equal(many[min(sample, before)], noise(name))


def test_noise_is_standard_normal():
    drawn = noise_of((16,), seed=0, purpose=NOISE, group=(0, 0), samples=range(500), step=0)
    # 8000 numbers: mean within 4 / sqrt(8000) = 0.045, variance within 4 sqrt(2 / 8000) = 0.063
    assert drawn.mean() == pytest.approx(0, abs=0.045)
    assert drawn.var() == pytest.approx(1, abs=0.063)


def test_evaluation_noise_is_not_training_noise(policy):
    training, evaluation = (
        initial_latent(policy, seed=7, group=(0, 0), samples=range(2), purpose=purpose)
        for purpose in (NOISE, EVALUATION_NOISE)
    )
    assert not torch.isclose(training, evaluation, atol=1e-6).any()


def test_evaluation_of_a_prompt_does_not_depend_on_the_others(policy):
    settings = {"num_samples": 2, "num_steps": 2, "seed": 7}
    prompts = ["a red circle", "two blue squares", "a green triangle"]
    together = sample_images(policy, [*map(Prompt, prompts)], [4, 0, 9], **settings)
    alone = sample_images(policy, [*map(Prompt, prompts[1:2])], [0], **settings)
    torch.testing.assert_close(together[2:4], alone, rtol=0, atol=1e-6)
    elsewhere = sample_images(policy, [*map(Prompt, prompts[1:2])], [1], **settings)
    assert not torch.allclose(elsewhere, alone, atol=1e-3)
