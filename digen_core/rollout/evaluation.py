"""Noiseless sampling, for judging a version: the ODE's Euler steps from fixed noise."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from digen_core.data.prompts import Prompt
from digen_core.models.policy import Condition, Policy
from digen_core.rollout.conditions import alike, encoded
from digen_core.rollout.sampler import initial_latent
from digen_core.seeding import EVALUATION_NOISE


def sample_images(
    policy: Policy,
    prompts: Sequence[Prompt],
    indices: Sequence[int],
    *,
    num_samples: int,
    num_steps: int,
    seed: int,
) -> Tensor:
    """Return images [len(prompts) * num_samples, 3, H, W] in [0, 1], prompt by prompt.

    A model that makes videos returns [len(prompts) * num_samples, F, 3, H, W]. Arguments are those
    of `clean_samples`.
    """
    settings = {"num_samples": num_samples, "num_steps": num_steps, "seed": seed}
    return policy.decode(clean_samples(policy, prompts, indices, **settings))


def clean_samples(
    policy: Policy,
    prompts: Sequence[Prompt],
    indices: Sequence[int],
    *,
    num_samples: int,
    num_steps: int,
    seed: int,
) -> Tensor:
    """Return the clean latents [len(prompts) * num_samples, ...] of prompts, one by one.

    Args:
        policy: the version to judge.
        prompts: to sample.
        indices: of the prompts in the evaluation set.
        num_samples: images per prompt.
        num_steps: Euler steps.
        seed: of the run.
    """
    made: dict[int, Tensor] = {}
    for places in alike(prompts):
        samples = samples_of([indices[place] for place in places], num_samples)
        condition = repeated(encoded(policy, [prompts[place] for place in places]), num_samples)
        x = sample_latents(policy, condition, samples, num_steps=num_steps, seed=seed)
        made |= zip(places, x.split(num_samples), strict=True)
    return in_order(made)


def samples_of(indices: Sequence[int], num_samples: int) -> list[tuple[int, int]]:
    """Return the samples of prompts, each by the index of its prompt and its number."""
    return [(index, number) for index in indices for number in range(num_samples)]


def in_order(made: Mapping[int, Tensor]) -> Tensor:
    """Return the samples of prompts [P S, ...], of which each has those [S, ...] at its place."""
    return torch.cat([made[place] for place in sorted(made)])


def repeated(condition: Condition, num_samples: int) -> Condition:
    """Return the embeddings of prompts, a row each, with a row for each of their samples."""
    return {name: value.repeat_interleave(num_samples, dim=0) for name, value in condition.items()}


@torch.no_grad()
def sample_latents(
    policy: Policy,
    condition: Condition,
    samples: Sequence[tuple[int, int]],
    *,
    num_steps: int,
    seed: int,
) -> Tensor:
    """Return the clean latents [n, ...] of some samples of an evaluation.

    Args:
        policy: the version to judge.
        condition: embeddings of each sample's prompt, n rows.
        samples: index of the prompt in the evaluation set, and number of the sample of that prompt,
            of each; its noise depends on these and the seed only, so versions are compared on the
            same noise.
        num_steps: Euler steps.
        seed: of the run.
    """
    x = torch.cat(
        [
            initial_latent(
                policy,
                seed=seed,
                group=(0, index),
                samples=range(number, number + 1),
                purpose=EVALUATION_NOISE,
            )
            for index, number in samples
        ]
    )
    condition = policy.without_padding(condition)
    sigmas = policy.sigmas(num_steps).to(policy.device)
    for sigma, sigma_next in pairwise(sigmas):
        velocity = policy.velocity(x, sigma.expand(len(x)), condition)
        x = x + (sigma_next - sigma).to(x.dtype) * velocity
    return x
