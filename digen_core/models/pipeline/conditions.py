"""Conditions of a pipeline: what their values are called, and batches made of them.

Beside the embeddings of the prompts there are, with guidance, those of what it steers away from,
under the same names behind `NEGATIVE`; and, if the model is shown source images, what it is shown
of them, under `SOURCE` and other names that begin as that does.

Axes: B samples, L tokens of text.
"""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from digen_core.models.policy import Condition

NEGATIVE: Final = "negative_"
SOURCE: Final = "source_latents"
_OF_SOURCES: Final = "source_"


def joined_rows(rows: Sequence[Condition]) -> Condition:
    """Return one condition of several, row below row."""
    return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}


def rows_of(condition: Condition, rows: Tensor | slice) -> Condition:
    """Return the condition of some rows."""
    return {name: value[rows] for name, value in condition.items()}


def without_negatives(condition: Condition) -> Condition:
    """Return a condition without what guidance steers away from."""
    return {name: value for name, value in condition.items() if not name.startswith(NEGATIVE)}


def guided_halves(condition: Condition) -> Condition:
    """Return a condition of 2 B rows of one with B: what guidance steers away from comes first."""
    both = {
        name: (value if name.startswith(_OF_SOURCES) else condition[NEGATIVE + name], value)
        for name, value in without_negatives(condition).items()
    }
    return {name: torch.cat(halves) for name, halves in both.items()}


def without_padding(condition: Condition, multiple: int) -> Condition:
    """Leave out what no row attends to: padding of all of them, and masks that mask nothing.

    Attention with a mask is no flash attention, and padding costs what tokens cost. Families
    without a mask were trained to attend to their padding: theirs stays.

    Args:
        condition: of some samples, as `PromptEncoder.encode` makes it.
        multiple: as much padding stays as makes the number of tokens one of it.
    """
    masks = {name: value.bool() for name, value in condition.items() if name.endswith("mask")}
    left = dict(condition)
    for text in {name.removeprefix(NEGATIVE) for name in masks}:
        own = [name for name in (text, NEGATIVE + text) if name in masks]
        rows = torch.cat([masks[name] for name in own])  # both halves are one forward pass
        used = rows.any(dim=0).nonzero()
        # Beside the prompt's own text another one may have no token at all.
        length = int(used.max()) + 1 if len(used) else int(text == "mask")
        length += -length % multiple
        is_whole = bool(rows[:, :length].all())
        for name in own:
            embeds = name.removesuffix("mask") + "prompt_embeds"
            left[embeds] = condition[embeds][:, :length].contiguous()
            left[name] = condition[name][:, :length].contiguous()
            if is_whole:
                del left[name]
    return left if masks else condition
