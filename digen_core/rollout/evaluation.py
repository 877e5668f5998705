"""Noiseless sampling, for judging a version: the ODE's Euler steps from fixed noise."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from digen_core.models.policy import Policy
from digen_core.rollout.sampler import initial_latent
from digen_core.seeding import EVALUATION_NOISE


@torch.no_grad()
def sample_images(
    policy: Policy,
    prompts: Sequence[str],
    indices: Sequence[int],
    *,
    num_samples: int,
    num_steps: int,
    seed: int,
) -> Tensor:
    """Return images [len(prompts) * num_samples, 3, H, W] in [0, 1], prompt by prompt.

    A model that makes videos returns [len(prompts) * num_samples, F, 3, H, W].

    Args:
        policy: the version to judge.
        prompts: texts.
        indices: of the prompts in the evaluation set; the noise of a sample depends on the seed,
            this index and the sample's number only, so versions are compared on the same noise.
        num_samples: images per prompt.
        num_steps: Euler steps.
        seed: of the run.
    """
    x = torch.cat(
        [
            initial_latent(
                policy,
                seed=seed,
                group=(0, index),
                samples=range(num_samples),
                purpose=EVALUATION_NOISE,
            )
            for index in indices
        ]
    )
    condition = {
        name: value.repeat_interleave(num_samples, dim=0)
        for name, value in policy.without_padding(policy.encode(list(prompts))).items()
    }
    sigmas = policy.sigmas(num_steps).to(policy.device)
    for sigma, sigma_next in pairwise(sigmas):
        velocity = policy.velocity(x, sigma.expand(len(x)), condition)
        x = x + (sigma_next - sigma).to(x.dtype) * velocity
    return policy.decode(x)
