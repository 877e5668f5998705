"""Screening in the serial reference: which candidates the samples of a group stand for."""

from collections.abc import Mapping

import torch

from digen_core.config.rewards import called
from digen_core.config.run import RunConfig
from digen_core.data.prompts import Prompt
from digen_core.models.policy import Policy
from digen_core.reference.group import sample_candidates
from digen_core.rewards.asked import Asked
from digen_core.rewards.failures import settle
from digen_core.rewards.scoring import RewardFn, score_images
from digen_core.rollout.origin import Origin
from digen_core.rollout.seen import as_seen
from digen_core.training.screening import chosen_candidates


def screened(
    config: RunConfig,
    policy: Policy,
    prompt: Prompt,
    rewards: Mapping[str, RewardFn],
    group: tuple[int, int],
) -> Origin | None:
    """Return the noise of a group's samples: that of its chosen candidates.

    None: too few candidates have their numbers, and the group is dropped.

    Args:
        config: of the run.
        policy: that generates.
        prompt: of the group.
        rewards: by name.
        group: (iteration, index) of the samples.

    Raises:
        FloatingPointError: a candidate is NaN or infinite, and that ends the run.
    """
    of_candidates = group[0], group[1] - config.rollout.prompts_per_iteration
    latents = sample_candidates(config, policy, prompt, of_candidates)
    size = config.size_of(*group)
    images, seen = as_seen(policy.at_size(size), latents[-1], config.rewards)
    found = [own for own in (*latents, images) if own is not None]
    finite = torch.stack([own.flatten(1).isfinite().all(dim=1).cpu() for own in found]).all(dim=0)
    bad = (~finite).nonzero().flatten().tolist()
    if bad and config.numerics.samples == "fail":
        raise FloatingPointError(
            f"iteration {group[0] + 1}, group {of_candidates[1]}: a candidate is NaN or infinite"
        )
    images, seen = (_without(own, bad) for own in (images, seen))
    about = Asked.of([prompt] * len(finite), size, policy.device)
    judges = called(config.rewards)
    scored = score_images(rewards, judges, images, *about, latents=seen)
    chosen = chosen_candidates(config, settle(scored, config.rewards, prompt.scores), bad)
    return None if chosen is None else Origin(of_candidates, chosen)


def _without(values: torch.Tensor | None, rows: list[int]) -> torch.Tensor | None:
    """Return values [C, ...] with 0 in some rows."""
    if values is None or not rows:
        return values
    return values.index_fill(0, torch.tensor(rows, device=values.device), 0)
