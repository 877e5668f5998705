"""Conditions of prompts: what a policy is given of their texts, and of the images with them."""

from collections.abc import Sequence

from digen_core.data.prompts import Prompt
from digen_core.models.policy import Condition, Policy


def encoded(policy: Policy, prompts: Sequence[Prompt]) -> Condition:
    """Return the condition of prompts, a row each.

    Raises:
        UserError: a source image is gone, changed or damaged.
    """
    images = [prompt.image for prompt in prompts if prompt.image is not None]
    texts, negatives = zip(*((own.text, own.negative) for own in prompts), strict=True)
    return policy.encode([*texts], images, negatives)
