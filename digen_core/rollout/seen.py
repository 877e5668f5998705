"""Samples in the forms in which rewards take them."""

from collections.abc import Mapping

from torch import Tensor

from digen_core.config.rewards import RewardConfig, forms_of
from digen_core.models.policy import Policy


def as_seen(
    policy: Policy, x: Tensor, rewards: Mapping[str, RewardConfig]
) -> tuple[Tensor | None, Tensor | None]:
    """Return clean latents [B, ...] as rewards take them: decoded, and as they are.

    Images are [B, 3, H, W] or [B, F, 3, H, W], latents [B, C, h, w] or [B, C, f, h, w]; None: no
    reward takes them.
    """
    forms = forms_of(rewards)
    images = policy.decode(x) if "images" in forms else None
    return images, policy.latents(x) if "latents" in forms else None
