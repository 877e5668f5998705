"""Standard errors of means over prompts, and whether a change is more than noise.

Samples of a prompt share it, so the prompts are what varies: the standard error of a mean is the
standard deviation of the prompts' own means (with n - 1) over the square root of their number, as
Miller, "Adding Error Bars to Evals" (2024, arXiv:2411.00640), clusters by question. The
error of a change between versions on the same prompts is that of the prompts' differences (paired),
which is far smaller.

Papers on the training of diffusion models by rewards also report win rates over the base model,
which no monotone change of a reward's scale moves (such as Wallace et al., "Diffusion Model
Alignment Using Direct Preference Optimization", 2023, arXiv:2311.12908): see ``pair_wins``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot, isfinite, sqrt
from statistics import fmean, stdev
from typing import Final

NOISE: Final = 2.0
"""Standard errors within which a change is called noise: about 95% of chance changes."""

WITHIN_NOISE: Final = "within noise"
NOISE_IN_SHORT: Final = "noise"
ERRORS: Final = "standard_error/"
WINS: Final = "wins/"
PROMPT_WINS: Final = "prompt_wins/"

Scores = Sequence[Sequence[float | None]]
"""Of each prompt those of its samples, in order; None: a sample has none."""


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


@dataclass(frozen=True, slots=True)
class Share:
    """A share of comparisons that were won, and its standard error over the prompts."""

    value: float
    error: float | None  # None: there is one prompt only

    def __post_init__(self) -> None:
        """Raise ValueError unless it is a share."""
        if not 0 <= self.value <= 1:
            raise ValueError(f"a share of wins is {self.value}; it is 0 or more and 1 or less")


def share_of(wins: Sequence[float]) -> Share | None:
    """Return the mean of what prompts won, with its standard error; None without a prompt.

    Args:
        wins: [prompts], each from 0 to 1, as ``pair_wins`` and ``prompt_wins`` return them.
    """
    return Share(fmean(wins), standard_error(wins)) if wins else None


def pair_wins(own: Scores, others: Scores) -> list[float]:
    """Return the share of each prompt's pairs of samples that an evaluation wins over another.

    A pair is two samples of the same number, and so of the same noise if the evaluations share it;
    the higher score wins, a tie is half a win for both. So the wins of one over the other and of
    the other over the one add up to 1, and a strictly increasing function of all scores changes
    none. Where one has more samples of a prompt, those count that both have.

    Args:
        own: [prompts][samples] scores of the one.
        others: of the other, of the same prompts.

    Returns:
        [prompts] shares, from 0 to 1; a prompt without a pair of scores is left out.

    Raises:
        ValueError: the numbers of prompts differ, or a score is NaN or infinite.
    """
    found = []
    for mine, theirs in zip(_finite(own), _finite(others), strict=True):
        pairs = zip(mine, theirs, strict=False)
        won = [_win(a, b) for a, b in pairs if a is not None and b is not None]
        if won:
            found.append(fmean(won))
    return found


def prompt_wins(own: Scores, others: Scores) -> list[float]:
    """Return of each prompt whether an evaluation's mean is above another's: 1, else 0; a tie 1/2.

    The more samples a prompt has, the further their share lies from 1/2, for the same difference
    between versions; with one sample it is that of ``pair_wins``.

    Args:
        own: [prompts][samples] scores of the one.
        others: of the other, of the same prompts; it may have more samples of them, or fewer.

    Returns:
        [prompts]; one of which either side has no score is left out.

    Raises:
        ValueError: the numbers of prompts differ, or a score is NaN or infinite.
    """
    sides = [[_mean(samples) for samples in _finite(scores)] for scores in (own, others)]
    pairs = zip(*sides, strict=True)
    return [_win(a, b) for a, b in pairs if a is not None and b is not None]


def _win(own: float, other: float) -> float:
    return 0.5 if own == other else float(own > other)


def _mean(samples: Sequence[float | None]) -> float | None:
    known = [score for score in samples if score is not None]
    return fmean(known) if known else None


def _finite(scores: Scores) -> Scores:
    for samples in scores:
        for score in samples:
            if score is not None and not isfinite(score):
                raise ValueError(f"a score is {score}, of which nobody knows who wins")
    return scores


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
