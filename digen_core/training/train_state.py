"""Train state: all that makes the next version, and the names of what is pushed of it.

A version's weights may have other policies beside them: an old one that generates, and what
generated when an iteration began, between whose updates the version is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

import numpy as np
import torch

from digen_core.gang.members import ALONE, Gang
from digen_core.gang.parts import Part
from digen_core.gang.rows import lengths_of
from digen_core.training.contents import contents_of
from digen_core.transport.arrays import Weights, rounded
from digen_core.transport.fingerprint import Content, hash_of

OLD: Final = "old/"
"""Before the names of an old policy's parameters, beside those of the weights."""
START: Final = "start/"
"""Before the names of those that generated when the iteration began that is under way."""
Found = TypeVar("Found")


@dataclass(eq=False)
class TrainState(Part):
    """All that makes the next version: master weights, Adam's moments and the moving average.

    Of a gang each member has its rows of every parameter.
    """

    version: int
    weights: Weights
    weights_hash: str  # of the whole weights
    exp_avg: Weights
    exp_avg_sq: Weights
    ema: Weights  # equal to ``weights`` while ema_decay is 0
    old: Weights | None = None  # what generates, if that lags behind ``weights``
    start: Weights | None = None
    """What generated when the iteration began, of a version between its updates: losses compare
    with it. None: nothing does, or the last update of its iteration made this version."""
    lengths: Mapping[str, int] = field(default_factory=dict)  # rows of whole parameters
    grad_norm: float = 0.0  # of the whole gradient that made it, before clipping


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """What names a version that is pushed: a little of each parameter, whatever it holds."""

    version: int
    contents: Mapping[str, Content]
    """Of the whole weights, and of the policies beside them as ``old/NAME`` and ``start/NAME``."""

    @property
    def hash(self) -> str:
        """Of what is pushed, in the dtypes of the parameters; the state's is of the masters."""
        return hash_of(self.contents)


def _with_others(weights: Weights, old: Weights | None, start: Weights | None = None) -> Weights:
    """Return the weights, and the policies beside them."""
    return {
        **weights,
        **{f"{OLD}{name}": value for name, value in (old or {}).items()},
        **{f"{START}{name}": value for name, value in (start or {}).items()},
    }


def without_others(found: Mapping[str, Found]) -> dict[str, Found]:
    """Return what there is of the weights, without that of the policies beside them."""
    return {name: own for name, own in found.items() if not name.startswith((OLD, START))}


def beside(found: Mapping[str, Found], prefix: str) -> dict[str, Found]:
    """Return what there is of a policy beside the weights, by the names of its parameters."""
    return {
        name.removeprefix(prefix): own for name, own in found.items() if name.startswith(prefix)
    }


def own_name(name: str) -> str:
    """Return the name of a parameter, of the weights' or of a policy's beside them."""
    return name.removeprefix(OLD).removeprefix(START)


def version_hash(weights: Weights, old: Weights | None, gang: Gang = ALONE) -> str:
    """Return the hash of a version's content: of masters it names the version (collective)."""
    return hash_of(contents_of(_with_others(weights, old), gang))


def published(
    state: TrainState, dtypes: Mapping[str, torch.dtype], *, average: bool = False
) -> Weights:
    """Return what is pushed of a version: what generates and trains next, as `PolicyVersion` names.

    Args:
        state: of the version.
        dtypes: of the parameters that will hold it, by name.
        average: the moving average of the weights in their place, for evaluation.

    Raises:
        FloatingPointError: a weight is NaN, or infinite in its dtype.
    """
    if average:
        return rounded(state.ema, dtypes)
    old, start = (None if own is None else rounded(own, dtypes) for own in (state.old, state.start))
    return _with_others(rounded(state.weights, dtypes), old, start)


def initial_state(weights: Weights, *, keeps_old: bool = False, gang: Gang = ALONE) -> TrainState:
    """Return version 0 (collective).

    Args:
        weights: this member's rows.
        keeps_old: keep an old policy of the same weights beside it.
        gang: whose member this process is.
    """
    zeros = {name: np.zeros_like(value) for name, value in weights.items()}
    old = weights if keeps_old else None
    found = version_hash(weights, old, gang)
    lengths = lengths_of(weights, gang)
    return TrainState(0, weights, found, zeros, zeros, weights, old, lengths=lengths)
