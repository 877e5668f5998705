"""Batches of pairs that are kept, and read again as they were."""

import torch
from torch import Tensor

from digen_core.training.pairs import CleanPairs, Pairs, from_kept, to_kept

CONDITION = {"prompt": torch.arange(6.0).reshape(2, 3), "mask": torch.tensor([[True], [False]])}
CPU = torch.device("cpu")


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def assert_same(found, pairs, names):
    for name in names:
        assert torch.equal(getattr(found, name), getattr(pairs, name)), name
    assert found.condition.keys() == CONDITION.keys()
    for name, value in CONDITION.items():
        assert torch.equal(found.condition[name], value), name


def test_transitions_are_kept_with_their_numbers():
    pairs = Pairs(
        x=drawn(2, 4),
        x_next=drawn(2, 5),
        behaviour_logprob=drawn(2),
        advantage=drawn(2),
        sigma=torch.tensor([0.9, 0.5]),
        sigma_next=torch.tensor([0.5, 0.0]),
        sigma_max=0.75,
        condition=CONDITION,
        is_own=torch.tensor([True, False]),
        is_stale=torch.tensor([False, True]),
    )
    numbers, arrays = to_kept(pairs)
    assert numbers == {"sigma_max": 0.75, "weight": 1.0}
    found = from_kept(numbers, arrays, CPU)
    assert isinstance(found, Pairs)
    assert found.noise is None
    assert found.sigma_max == 0.75
    assert_same(
        found, pairs, ["x", "x_next", "behaviour_logprob", "advantage", "is_own", "is_stale"]
    )


def test_clean_samples_are_kept_as_such():
    pairs = CleanPairs(
        x_0=drawn(2, 4),
        noise=drawn(2, 5),
        advantage=drawn(2),
        sigma=torch.tensor([0.9, 0.5]),
        condition=CONDITION,
        start_velocity=drawn(2, 6),
    )
    numbers, arrays = to_kept(pairs)
    assert numbers == {"weight": 1.0}
    found = from_kept(numbers, arrays, CPU)
    assert isinstance(found, CleanPairs)
    assert_same(found, pairs, ["x_0", "noise", "advantage", "sigma", "start_velocity"])


def test_latents_lie_between_the_sample_and_the_noise_by_hand():
    """At a noise level of 0.25: three quarters of the sample, a quarter of the noise."""
    one = torch.ones(1, 2)
    pairs = CleanPairs(8 * one, 4 * one, one[0, :1], torch.tensor([0.25]), {})
    assert torch.equal(pairs.x, 7 * one)
