"""Screening in the serial reference: which candidates the samples of a group stand for."""

from collections.abc import Mapping

from digen_core.config.run import RunConfig
from digen_core.data.prompts import Prompt
from digen_core.models.policy import Policy
from digen_core.reference.group import sample_candidates
from digen_core.reference.scores import scores_of
from digen_core.rewards.asked import Asked
from digen_core.rewards.scoring import RewardFn
from digen_core.rollout.nonfinite import nonfinite_rows, with_zeros
from digen_core.rollout.seen import as_seen
from digen_core.training.screening import chosen_candidates
from digen_core.transport.origin import Origin


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
    states = {f"latents {step}": own for step, own in enumerate(latents)}
    bad = list(nonfinite_rows({**states, "images": images}))
    if bad and config.numerics.samples == "fail":
        raise FloatingPointError(
            f"iteration {group[0] + 1}, group {of_candidates[1]}: a candidate is NaN or infinite"
        )
    if bad:
        images, seen = (None if own is None else with_zeros(own, bad) for own in (images, seen))
    asked = Asked.of([prompt] * len(latents[0]), size, policy.device)
    chosen = chosen_candidates(config, scores_of(config, rewards, prompt, asked, images, seen), bad)
    return None if chosen is None else Origin(of_candidates, chosen)
