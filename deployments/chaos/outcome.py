"""What a story is asked to do, and what came of it."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import chain

from deployments.chaos.ledger import Life, Work
from deployments.chaos.story import Service, Story
from digen_core.config.run import RunConfig
from digen_core.strict import Strict


class Order(Strict):
    """A story to be played."""

    story: Story
    arguments: tuple[str, ...]
    """Of ``digen train``, without the folder of runs."""

    config: RunConfig
    """What they give."""

    services: tuple[Service, ...] = ()
    """That are beside the run."""

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
    asks_to_sync: bool
    """Whether it said that MLflow did not take everything."""

    left_over: tuple[str, ...]
    """Commands of processes that did not end with it."""

    is_late: bool
    """Whether it was ended because it took too long."""

    lives: tuple[Life, ...]
    """What it did: one life, and one more for each time that it resumed by itself."""


class Outcome(Strict):
    """What came of a story."""

    story: Story
    seconds: float
    attempts: tuple[Attempt, ...]
    done: tuple[str, ...]
    """Each fault that was reached, and whom it struck."""

    warnings: tuple[str, ...]

    @property
    def asked(self) -> dict[int, Work]:
        """Work that was asked for, by iteration."""
        return _sums(life.asked for life in self._lives)

    @property
    def lost(self) -> dict[int, Work]:
        """What may have been done again, by iteration.

        It is what went with lost devices; and where the run was resumed or started again,
        everything since the checkpoint before that, or since the one before if that was damaged.
        """
        back = 2 if any(fault.kind == "flip" for fault in self.story.faults) else 1
        *before, last = [*self._lives] or [Life()]
        return _sums([*(_void(life, back) for life in before), last.lost])

    @property
    def _lives(self) -> list[Life]:
        return [life for attempt in self.attempts for life in attempt.lives]

    @property
    def has_resumed(self) -> bool:
        """Whether the run went back to a checkpoint by itself."""
        return any("resumed" in text and "time" in text for text in self.warnings)


def _void(life: Life, back: int) -> dict[int, Work]:
    """Return what was lost when a life ended from which a run went back so many checkpoints."""
    safe = life.kept[-back] if len(life.kept) >= back else 0
    after = {iteration: work for iteration, work in life.asked.items() if iteration >= safe}
    return {**life.lost, **after}


def _sums(tables: Iterable[Mapping[int, Work]]) -> dict[int, Work]:
    sums: defaultdict[int, Work] = defaultdict(Work)
    for iteration, work in chain.from_iterable(table.items() for table in tables):
        sums[iteration] += work
    return dict(sums)
