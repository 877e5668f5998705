"""Standard errors of means over prompts, and whether a change is more than noise.

Samples of a prompt share it, so the prompts are what varies: the standard error of a mean is the
standard deviation of the prompts' own means (with n - 1) over the square root of their number, as
Miller, "Adding Error Bars to Evals" (2024, arXiv:2411.00640), clusters by question. The
error of a change between versions on the same prompts is that of the prompts' differences (paired),
which is far smaller.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot, sqrt
from statistics import stdev
from typing import Final

NOISE: Final = 2.0
"""Standard errors within which a change is called noise: about 95% of chance changes."""

WITHIN_NOISE: Final = "within noise"
ERRORS: Final = "standard_error/"


def error_of(metric: str) -> str:
    """Return the name of the metric that is the standard error of another."""
    return f"{ERRORS}{metric}"


@dataclass(frozen=True, slots=True)
class Change:
    """How far a mean moved, and the standard error of that; None: nobody knows."""

    value: float
    error: float | None

    @property
    def is_noise(self) -> bool:
        """Whether chance alone may have moved it so far."""
        return self.error is not None and abs(self.value) <= NOISE * self.error


def standard_error(means: Sequence[float]) -> float | None:
    """Return the standard error of the mean of some prompts' means; None of fewer than two."""
    return stdev(means) / sqrt(len(means)) if len(means) > 1 else None


def paired_change(
    before: Sequence[float | None], after: Sequence[float | None], value: float
) -> Change:
    """Return a change between two means over the same prompts.

    Args:
        before: means of the prompts, in order; None for one that has none.
        after: likewise, of the same prompts.
        value: of the change.
    """
    pairs = zip(before, after, strict=True)
    moves = [b - a for a, b in pairs if a is not None and b is not None]
    return Change(value, standard_error(moves))


def unpaired_change(value: float, *errors: float | None) -> Change:
    """Return a change between means over different prompts, each with its own standard error."""
    known = [error for error in errors if error is not None]
    return Change(value, hypot(*known) if len(known) == len(errors) else None)


def with_error(text: str, error: float | None, style: str = ".3f", sign: str = "±") -> str:
    """Return a number with its standard error beside it: "0.573 ± 0.021"."""
    return text if error is None else f"{text} {sign} {error:{style}}"
