"""DGPO and DPO: numbers of the published code, DPO's own loss, values by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import logsigmoid

from digen_core.algorithms import ALGORITHMS
from digen_core.maths.advantages import Scored
from digen_core.maths.dgpo import (
    best_and_worst,
    group_weights,
    implicit_differences,
    matching_loss,
    preference_loss,
    share_ranked_rightly,
)
from digen_core.maths.forward_process import noised
from digen_core.maths.replay import Noised

SIGMA = torch.full((4,), 0.5, dtype=torch.float64)
OWNER = torch.tensor([0, 0, 1, 1])


def wave(phase: float) -> Tensor:
    """Numbers [4, 2, 2, 2] that need no generator."""
    return torch.sin(torch.arange(32, dtype=torch.float64) * 0.7 + phase).reshape(4, 2, 2, 2)


def pairs_of(velocity: Tensor, advantages: Tensor) -> Noised:
    """With what generated, and the reference, a little beside the policy."""
    x_0, noise, fixed = wave(0.0), wave(1.0), velocity.detach()
    start, reference = fixed + 0.1 * wave(3.0), fixed + 0.2 * wave(4.0)
    x = noised(x_0, noise, SIGMA)
    return Noised(velocity, start, reference, x, noise, x_0, SIGMA, advantages)


def margins_of(pairs: Noised) -> Tensor:
    assert pairs.reference_velocity is not None
    own, base = (
        matching_loss(velocity.detach(), pairs.noise, pairs.x_0)
        for velocity in (pairs.velocity, pairs.reference_velocity)
    )
    return own - base


def test_the_published_numbers_of_dgpo():
    """Recorded: the lines of `compute_group_dgpo_loss_allreduce` and of the clipped loss.

    They are those of train_sd3_dgpo.py of Luo-Yihong/DGPO (commit 4894284), run in float64 in one
    process on these very tensors: beta 100, clip 0.01, KL 0.02, two groups of two.
    """
    velocity = (1.5 * wave(2.0)).requires_grad_()
    advantages = torch.tensor([1.0, -0.5, 2.0, -2.0], dtype=torch.float64)
    pairs = pairs_of(velocity, advantages)
    margins = margins_of(pairs)
    recorded = [0.03818429393401823, 0.04973615346898924, 0.04190209833266956, 0.02716953620550422]
    np.testing.assert_allclose(margins.numpy(), recorded, rtol=1e-12)
    weights = group_weights(advantages, margins[:, None], OWNER, beta=100.0)[:, 0]
    np.testing.assert_allclose(
        weights.numpy(), np.repeat([0.6605645069878798, 0.8135518098783177], 2), rtol=1e-12
    )
    found = preference_loss(
        pairs._replace(advantage=weights * advantages), clip_range=0.01, reference_coefficient=0.02
    )
    np.testing.assert_allclose(
        found.surrogate.ratio.numpy(),
        [1.022552721892539, 1.0248165273893148, 1.0338974514006656, 1.0353152617831685],
        rtol=1e-12,
    )
    assert found.surrogate.clip_fraction == 0.5
    loss = found.per_pair.mean()
    loss.backward()
    assert velocity.grad is not None
    assert loss.item() == pytest.approx(0.0179711853796147, rel=1e-12)
    assert velocity.grad.abs().sum().item() == pytest.approx(0.3395434161733437, rel=1e-12)


def test_the_gradient_of_dpo_is_that_of_its_published_loss():
    """-log sigmoid(-beta / 2 * (difference of the policy - that of the reference)), in the mean.

    Recorded: the lines of the loss in train.py of SalesforceAIResearch/DiffusionDPO, run in float64
    on these waves, with the velocity as what is predicted.
    """
    velocity, rewards = (1.5 * wave(2.0)).requires_grad_(), torch.tensor([3.0, 1.0, 0.5, 0.0])
    chosen = best_and_worst(rewards, OWNER)
    pairs = pairs_of(velocity, chosen)
    weights = group_weights(chosen, margins_of(pairs)[:, None], OWNER, beta=200.0)[:, 0]
    found = preference_loss(pairs._replace(advantage=200.0 * weights * chosen))
    (own,) = torch.autograd.grad(found.per_pair.mean(), velocity)

    losses = matching_loss(velocity, pairs.noise, pairs.x_0)
    assert pairs.reference_velocity is not None
    base = matching_loss(pairs.reference_velocity, pairs.noise, pairs.x_0)
    differences = (losses[[0, 2]] - losses[[1, 3]]) - (base[[0, 2]] - base[[1, 3]])
    published = -logsigmoid(-0.5 * 200.0 * differences).mean()
    (expected,) = torch.autograd.grad(published, velocity)
    torch.testing.assert_close(own, expected, rtol=1e-12, atol=1e-14)
    assert published.item() == pytest.approx(0.9767188756945012, rel=1e-12)  # as recorded
    assert own.abs().sum().item() == pytest.approx(75.46918687251377, rel=1e-12)


def test_weights_by_hand():
    # group 0: mean of 1 * 2 and -1 * 4 is -1: sigmoid(-0.5); group 1: 0 at the second level
    margins = torch.tensor([[2.0, 0.0], [4.0, 0.0], [1.0, 3.0], [1.0, 3.0]])
    advantages = torch.tensor([1.0, -1.0, 2.0, -2.0])
    found = group_weights(advantages, margins, OWNER, beta=0.5)
    low = 1 / (1 + np.exp(0.5))
    np.testing.assert_allclose(found.numpy(), [[low, 0.5], [low, 0.5], [0.5, 0.5], [0.5, 0.5]])


def test_the_best_and_the_worst_of_each_group():
    rewards = torch.tensor([1.0, 3.0, 2.0, 5.0, 5.0, 5.0])
    owner = torch.tensor([0, 0, 0, 1, 1, 1])
    assert best_and_worst(rewards, owner).tolist() == [-1, 1, 0, -1, 0, 1]


@pytest.mark.parametrize("name", ["dgpo", "dpo"])
def test_advantages_are_of_samples_and_levels(name):
    """Where nothing is known of the policy yet, every weight is a half."""
    algorithm = ALGORITHMS[name](num_levels=3)
    reward = torch.tensor([3.0, 1.0, 2.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    owner = torch.tensor([0, 0, 0, 1, 1, 1])
    scored = Scored(
        reward=reward,
        owner=owner,
        prompts=["a"] * 6,
        rows=reward[None],
        weights=torch.ones(1),
        counted=torch.ones(1, 6, dtype=torch.bool),
        step_values=torch.zeros(6, 3),
    )
    found = algorithm.signal(scored, {})
    assert found.advantages.shape == (6, 3)
    assert found.flat == {1}, "equal rewards say nothing"
    plain = ALGORITHMS["flow_grpo"]().signal(scored._replace(step_values=None), {}).advantages
    factor = {"dgpo": 0.5 * plain, "dpo": 1000 * torch.tensor([1.0, -1.0, 0, 0, 0, 0])}[name]
    torch.testing.assert_close(found.advantages, factor[:, None].double().expand(6, 3))


def test_implicit_rewards_by_hand():
    """Of rewards 2, 1, 1 the pairs are the first with each of the others."""
    rewards, margins = torch.tensor([2.0, 1.0, 1.0]), torch.tensor([[-1.0], [3.0], [-2.0]])
    found = implicit_differences(rewards, margins, beta=0.5)
    assert found.tolist() == [[2.0], [-0.5]]  # 0.5 * (3 + 1), 0.5 * (-2 + 1)
    assert share_ranked_rightly(found) == 0.5
    assert share_ranked_rightly(torch.tensor([[1.0, 0.0], [2.0, -3.0]])) == 0.625
    assert implicit_differences(torch.ones(3), margins, beta=0.5).shape == (0, 1)
    with pytest.raises(ValueError, match="no pair"):
        share_ranked_rightly(torch.zeros(0))
    with pytest.raises(ValueError, match=r"\[3\] and margins \[2, 1\]"):
        implicit_differences(rewards, margins[:2], beta=0.5)


def test_the_implicit_difference_of_dpo_is_what_its_weight_is_of():
    """w = sigmoid(-difference), and of the published loss -log sigmoid(difference) likewise."""
    algorithm, rewards = ALGORITHMS["dpo"](num_levels=1, beta=200.0), torch.tensor([3.0, 1.0, 2.0])
    margins = torch.tensor([[0.01, -0.02], [0.03, -0.01], [9.0, 9.0]], dtype=torch.float64)
    found = algorithm.compared(rewards, margins)
    torch.testing.assert_close(found, 100 * (margins[1] - margins[0])[None])
    owner = torch.zeros(2, dtype=torch.long)
    weights = group_weights(torch.tensor([1.0, -1.0]), margins[:2], owner, beta=200.0)
    torch.testing.assert_close(weights[0], torch.sigmoid(-found[0]))
    assert algorithm.compared(torch.ones(3), margins).shape == (0, 2), "equal rewards are no pair"


@given(st.integers(2, 6), st.integers(0, 2**32 - 1))
def test_implicit_rewards_that_are_the_rewards_rank_all_pairs_rightly(number: int, seed: int):
    rewards = torch.from_numpy(np.random.default_rng(seed).normal(size=number))
    algorithm = ALGORITHMS["dgpo"](num_levels=1, beta=2.0)
    found = algorithm.compared(rewards, -rewards[:, None])
    assert found.shape == (number * (number - 1) // 2, 1)
    assert share_ranked_rightly(found) == 1
    assert share_ranked_rightly(algorithm.compared(rewards, rewards[:, None])) == 0
    pairs = (rewards[:, None] - rewards[None]).abs().triu()
    assert found.sum().item() == pytest.approx(2 * pairs.sum().item())


@pytest.mark.parametrize(
    ("advantages", "margins", "message"),
    [((3,), (4, 2), r"must be \[B\], \[B, K\]"), ((4,), (4,), r"must be \[B\], \[B, K\]")],
)
def test_what_is_refused(advantages, margins, message):
    with pytest.raises(ValueError, match=message):
        group_weights(torch.zeros(advantages), torch.zeros(margins), OWNER, beta=1.0)
    with pytest.raises(ValueError, match="must have one shape"):
        matching_loss(wave(0.0), wave(0.0)[:2], wave(0.0))
