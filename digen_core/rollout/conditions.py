"""Conditions of prompts: what a policy is given of their texts, and of the images with them."""

from collections.abc import Sequence

from digen_core.data.prompts import Prompt
from digen_core.models.policy import Condition, Policy


def encoded(policy: Policy, prompts: Sequence[Prompt]) -> Condition:
    """Return the condition of prompts that come with equally many images, a row each.

    Raises:
        UserError: a source image is gone, changed or damaged.
    """
    images = [prompt.images for prompt in prompts if prompt.images]
    texts, negatives = zip(*((own.given_text, own.negative) for own in prompts), strict=True)
    return policy.encode([*texts], images, negatives)


def alike(prompts: Sequence[Prompt]) -> list[list[int]]:
    """Return the places of prompts that come with equally many images: they have one shape."""
    found: dict[int, list[int]] = {}
    for place, prompt in enumerate(prompts):
        found.setdefault(len(prompt.images), []).append(place)
    return [*found.values()]
