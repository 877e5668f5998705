"""Attempts at a reward: how often and when it is called again, and the errors that say so."""

from collections.abc import Callable
from typing import Any, Final

from tenacity import (
    RetryCallState,
    retry_if_exception,
    stop_after_attempt,
    wait_random_exponential,
)
from torch import Tensor

from digen_core.config.rewards.base import CalledReward
from digen_core.errors import UserError

MAX_BACKOFF_SECONDS: Final = 60.0


class TransientError(RuntimeError):
    """A reward function failed for a reason that may pass."""

    def __init__(self, message: str, pause: float = 0.0) -> None:
        """Say what failed.

        Args:
            message: what failed, and how.
            pause: seconds for which no other attempt is wanted.
        """
        super().__init__(message)
        self.pause = pause


class PermanentError(RuntimeError):
    """A reward function failed in a way that another attempt would not mend."""


class PartialError(PermanentError):
    """A reward function has no scores for some samples; the message says why for one of them."""

    def __init__(self, message: str, scores: Tensor) -> None:
        """Say what failed.

        Args:
            message: what failed, and how.
            scores: [B], NaN for samples without one.
        """
        super().__init__(message)
        self.scores = scores


def attempts_of(config: CalledReward, note: Callable[[RetryCallState], None]) -> dict[str, Any]:
    """Return how often and when tenacity calls again, for its ``Retrying`` or ``AsyncRetrying``.

    Args:
        config: of the reward.
        note: is called before each pause.
    """
    drawn = wait_random_exponential(config.backoff_seconds, max=MAX_BACKOFF_SECONDS)

    def pause(state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        wanted = error.pause if isinstance(error, TransientError) else 0.0
        return max(drawn(state), min(wanted, MAX_BACKOFF_SECONDS))

    return {
        "stop": stop_after_attempt(config.max_attempts),
        "wait": pause,
        "retry": retry_if_exception(_may_pass),
        "before_sleep": note,
        "reraise": True,
    }


def after_attempts(attempt: int, config: CalledReward) -> str:
    """Say how many attempts were made, if it was more than one."""
    return f" (attempt {attempt} of {config.max_attempts})" if attempt > 1 else ""


def _may_pass(error: BaseException) -> bool:
    """Say whether another attempt may go better."""
    return isinstance(error, Exception) and not isinstance(error, PermanentError | UserError)
