"""Conditions of prompts: what a policy is given of their texts, and of the images with them."""

from collections.abc import Sequence

from digen_core.data.prompts import Prompt
from digen_core.models.policy import Condition, Policy
from digen_core.transport.arrays import Arrays


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


def shape_of(condition: Arrays) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the lengths of a prompt's texts, and of all that was embedded with it.

    Prompts of other lengths would need a mask together, and with another kernel of attention the
    same sample is another one, to the last bits.
    """
    masks = (value for name, value in condition.items() if name.endswith("mask"))
    lengths = tuple(int(mask.sum()) for mask in masks)
    return lengths, tuple(value.shape[1] for value in condition.values() if value.ndim > 1)
