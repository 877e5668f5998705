"""What a story is asked to do, and what came of it."""

from deployments.chaos.story import Story
from digen_core.strict import Strict


class Order(Strict):
    """A story to be played."""

    story: Story
    arguments: tuple[str, ...]
    """Of ``digen train``, without the folder of runs."""

    is_isolated: bool
    """Whether it has namespaces of its own."""

    limit_seconds: float
    """After which a run that has not ended is killed, and its story has failed."""


class Attempt(Strict):
    """A run of the command, from its start to its end."""

    code: int
    """Exit code; negative: the signal that killed it."""

    seconds: float
    last_line: str
    has_traceback: bool
    left_over: tuple[str, ...]
    """Commands of processes that did not end with it."""

    is_late: bool
    """Whether it was ended because it took too long."""

    sample_steps: int
    """Denoising steps of a sample that the controller asked for."""

    pairs: int
    """Forward and backward passes that it asked for."""


class Outcome(Strict):
    """What came of a story."""

    story: Story
    seconds: float
    attempts: tuple[Attempt, ...]
    done: tuple[str, ...]
    """Each fault that was reached, and whom it struck."""

    warnings: tuple[str, ...]

    @property
    def sample_steps(self) -> int:
        """Denoising steps of a sample, of all attempts."""
        return sum(attempt.sample_steps for attempt in self.attempts)

    @property
    def pairs(self) -> int:
        """Forward and backward passes, of all attempts."""
        return sum(attempt.pairs for attempt in self.attempts)

    @property
    def has_resumed(self) -> bool:
        """Whether the run went back to a checkpoint by itself."""
        return any("resumed" in text and "time" in text for text in self.warnings)
