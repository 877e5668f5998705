"""Patience with iterations that lose their update to NaN or Inf: so many in a row end the run."""

from flows.runtime.context import RunContext
from flows.runtime.notify import how_to_look


class OutOfPatienceError(RuntimeError):
    """Nothing is trained any more: too many iterations in a row made no update."""


def require_numbers(run: RunContext, index: int, *, is_barren: bool) -> None:
    """End a run that no longer trains.

    Args:
        run: its context.
        index: of an iteration that has been published.
        is_barren: whether it made no update because of what is NaN or infinite.

    Raises:
        OutOfPatienceError: `numerics.patience` iterations in a row made none.
    """
    run.progress.published_one(is_barren=is_barren)
    if run.progress.num_barren >= run.config.numerics.patience:
        raise OutOfPatienceError(
            f"{run.progress.num_barren} iterations in a row, the last of them iteration "
            f"{index + 1}, made no update: what they computed is NaN or infinite, or lacks a "
            f"score (numerics.patience); {how_to_look(run, index)}"
        )
