"""Batches of pairs: the noise that they have, and how they are kept, and read as they were."""

import numpy as np
import pytest
import torch
from torch import Tensor

from digen_core.config.run import RunConfig
from digen_core.control.protocol import Fragment, Pack, PairBlock
from digen_core.seeding import FORWARD_NOISE, NOISE, noise_of
from digen_core.training.pairs import CleanPairs, Pairs, from_kept, gather_pairs, to_kept
from digen_core.transport.arrays import to_stored
from digen_core.transport.origin import Origin
from digen_core.transport.segment import Segment

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


def test_a_condition_that_pairs_share_is_kept_for_each():
    shared = CleanPairs(
        *(drawn(3, 4), drawn(3, 4), drawn(3), drawn(3)), CONDITION, condition_of=(1, 0, 1)
    )
    found = from_kept(*to_kept(shared), CPU)
    assert not found.condition_of
    for name, value in CONDITION.items():
        assert torch.equal(found.condition[name], value[[1, 0, 1]]), name


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


@pytest.mark.parametrize(
    ("algorithm", "purpose", "group", "samples"),
    [("grpo_guard", NOISE, (5, 0), [2, 9]), ("diffusion_nft", FORWARD_NOISE, (5, 8), [1, 2])],
)
def test_steps_have_the_noise_of_the_candidates_that_samples_stand_for(
    algorithm, purpose, group, samples
):
    """What is mixed in for a noise level is the sample's own, as in the serial loop."""
    config = RunConfig.model_validate({"seed": 3, "algorithm": {"type": algorithm}})
    fragment = Fragment(5, 8, 0, 0, 3, 1.0, 4)
    latents, logprobs = np.zeros((5, 3, 2), np.float32), dict.fromkeys(range(4), np.zeros(3))
    origin = Origin((5, 0), (0, 2, 9))
    segment = Segment(
        fragment, 0, latents, logprobs, 0, np.linspace(1, 0, 5), "rollout-0", origin=origin
    )
    found = gather_pairs(
        Pack(5, 0, (PairBlock(fragment, 1, 1, 2),)),
        [segment],
        {8: {"prompt": np.zeros((1, 2), np.float32)}},
        {8: np.ones(3)},
        CPU,
        config,
        version=0,
        trained_from=0,
        trained_steps=(1,),
    )
    expected = noise_of((2,), seed=3, purpose=purpose, group=group, samples=samples, step=2)
    assert torch.equal(found.noise, expected)


@pytest.mark.parametrize(("storage", "dtype"), [("float16", "float64"), ("bfloat16", "float32")])
def test_samples_that_were_stored_in_half_precision_are_mixed_as_wide_as_the_model(storage, dtype):
    """As in the serial loop: in the dtype of latents."""
    clean, level = drawn(3, 2).to(getattr(torch, storage)), np.linspace(1, 0, 5)
    config = RunConfig.model_validate(
        {
            "model": {"dtype": dtype},
            "rollout": {"storage": storage},
            "algorithm": {"type": "diffusion_nft"},
        }
    )
    fragment = Fragment(0, 0, 0, 0, 3, 1.0, 4)
    stored = to_stored(torch.stack([clean, clean]), storage)
    found = gather_pairs(
        Pack(0, 0, (PairBlock(fragment, 1, 0, 3),)),
        [Segment(fragment, 3, stored, {}, 0, level, "rollout-0")],
        {0: {"prompt": np.zeros((1, 2), np.float32)}},
        {0: np.ones(3)},
        CPU,
        config,
        version=0,
        trained_from=0,
        trained_steps=range(4),
    )
    assert found.x.dtype == getattr(torch, dtype)
    wide = clean.to(found.x.dtype)
    torch.testing.assert_close(found.x, 0.25 * wide + 0.75 * found.noise)
