"""Margins of finished samples: by hand, whatever the fragments, and what becomes of a NaN."""

from dataclasses import replace

import pytest
import torch

from digen_core.config.run import RunConfig
from digen_core.maths.forward_process import noised
from digen_core.models.trainable import reference_weights, set_weights
from digen_core.rollout.margins import margins, with_margins
from digen_core.rollout.sampler import DenoisedStep
from digen_core.rollout.steps import steps_of_iteration
from digen_core.seeding import FORWARD_NOISE, noise_of
from support.tiny_policies import load_trainable, moved_weights

GROUP = (2, 1)
CONFIG = RunConfig.model_validate(
    {
        "seed": 7,
        "model": {"dtype": "float64"},
        "rollout": {"num_steps": 4, "prompts_per_iteration": 2, "group_size": 4},
        "algorithm": {"type": "dgpo", "num_levels": 2, "trained_fraction": 1.0},
    }
)
LEVELS = steps_of_iteration(CONFIG, GROUP[0]).trained


@pytest.fixture(scope="module")
def policy(tiny_flux):
    policy = load_trainable(tiny_flux)
    set_weights(policy, moved_weights(policy))
    return policy


def clean(policy) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(4, *policy.latent_shape, generator=generator, dtype=torch.float64)


def found_by(policy, x_0: torch.Tensor, samples: range) -> dict[int, torch.Tensor]:
    condition, sigmas = policy.encode(["a red circle"]), policy.sigmas(4)
    return margins(
        policy, x_0, condition, sigmas, levels=LEVELS, config=CONFIG, group=GROUP, samples=samples
    )


def test_by_hand(policy):
    x_0, found = clean(policy), found_by(policy, clean(policy), range(4))
    assert sorted(found) == sorted(LEVELS)
    for level, values in found.items():
        noise = noise_of(
            policy.latent_shape, seed=7, purpose=FORWARD_NOISE, group=GROUP,
            samples=range(1), step=level + 1,
        ).double()  # fmt: skip
        sigma = policy.sigmas(4)[level].expand(4)
        x = noised(x_0, noise.expand_as(x_0), sigma)
        condition = {
            name: value.expand(4, *value.shape[1:])
            for name, value in policy.encode(["a red circle"]).items()
        }
        with torch.no_grad():
            own = policy.velocity(x, sigma, condition)
            with reference_weights(policy):
                base = policy.velocity(x, sigma, condition)
        target = noise - x_0
        expected = ((own - target) ** 2).flatten(1).mean(1)
        expected -= ((base - target) ** 2).flatten(1).mean(1)
        assert expected.abs().min() > 1e-8, "the policy is the base model"
        torch.testing.assert_close(values, expected, rtol=1e-9, atol=1e-12)


def test_fragments_make_no_difference(policy):
    x_0, whole = clean(policy), found_by(policy, clean(policy), range(4))
    for level in LEVELS:
        parts = [found_by(policy, x_0[s : s + 2], range(s, s + 2))[level] for s in (0, 2)]
        torch.testing.assert_close(torch.cat(parts), whole[level], rtol=1e-9, atol=1e-12)


def test_one_that_is_not_a_number_is_named_and_becomes_0(policy):
    x_0 = clean(policy)
    x_0[2] = 1e200  # its square is not a number any more
    last = DenoisedStep(3, x_0, x_0, None, nonfinite={0: "latent at step 3"})
    condition, sigmas = policy.encode(["a red circle"]), policy.sigmas(4)
    found = with_margins(
        last, policy, condition, sigmas, config=CONFIG, group=GROUP, samples=range(4)
    )
    assert found.nonfinite.keys() == {0, 2}
    assert found.nonfinite[0] == "latent at step 3", "what came first is told"
    assert found.nonfinite[2] == f"margin at the noise level of step {LEVELS[0]}"
    assert all(values[2] == 0 and values.isfinite().all() for values in found.margins.values())
    assert replace(found, margins={}, nonfinite=last.nonfinite) == last
