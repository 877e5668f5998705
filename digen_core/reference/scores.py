"""Scores in the serial reference: those of samples, or candidates, of one prompt."""

from collections.abc import Mapping

from torch import Tensor

from digen_core.config.rewards import called
from digen_core.config.run import RunConfig
from digen_core.data.prompts import Prompt
from digen_core.reference.metrics import Columns
from digen_core.rewards.asked import Asked
from digen_core.rewards.failures import settle
from digen_core.rewards.scoring import RewardFn, score_images


def scores_of(
    config: RunConfig,
    rewards: Mapping[str, RewardFn],
    prompt: Prompt,
    asked: Asked,
    images: Tensor | None,
    latents: Tensor | None,
) -> Columns:
    """Return scores [n] by reward, ranked, and with those that are missing filled in.

    Args:
        config: of the run.
        rewards: by name.
        prompt: of the samples, with its own scores.
        asked: what rewards are told of each.
        images: [n, ...]; None: no reward sees them.
        latents: [n, ...], likewise.
    """
    scored = score_images(rewards, called(config.rewards), images, *asked, latents=latents)
    return settle(scored, config.rewards, prompt.scores)
