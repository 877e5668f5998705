"""Samples that come from files, as the last step of trajectories that nobody denoised."""

from collections.abc import Sequence

from digen_core.config.rollout import RolloutConfig
from digen_core.data.images import SourceImage
from digen_core.models.policy import Policy
from digen_core.rollout.nonfinite import nonfinite_rows, with_zeros
from digen_core.rollout.sampler import DenoisedStep, rounded


def given_step(
    policy: Policy, images: Sequence[SourceImage], config: RolloutConfig
) -> DenoisedStep:
    """Return the last step of some samples of a group, before and after which they are clean.

    One that the VAE makes NaN or infinite becomes 0, and is named.

    Args:
        policy: whose VAE encodes them.
        images: of the n samples.
        config: number of steps, and the precision that latents are kept in.

    Raises:
        UserError: an image is gone, changed or damaged.
    """
    x = rounded(policy.encode_samples(images), config.storage)
    bad = nonfinite_rows({"latent": x})
    x = with_zeros(x, bad) if bad else x
    named = {row: f"{what} of the image" for row, what in bad.items()}
    return DenoisedStep(config.num_steps - 1, x, x, None, nonfinite=named)
