"""An iteration whose flow run is open, and what its tasks have made so far."""

from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import numpy as np
from prefect.futures import PrefectFuture

from digen_core.control.protocol import Fragment, PairBlock, Reduce
from digen_core.maths.ddpo import RewardHistory
from digen_core.transport.origin import Origin
from flows.runtime.iterations.recorder import IterationRecorder
from flows.runtime.iterations.round import Ended, Round

Futures = list[PrefectFuture[Any]]


def once(futures: Iterable[PrefectFuture[Any]]) -> Futures:
    """Return futures in their order, each once."""
    return list({future.task_run_id: future for future in futures}.values())


@dataclass(frozen=True, slots=True)
class Published:
    """The record of an iteration is kept and shown; its flow run is about to end."""

    index: int


@dataclass
class OpenIteration:
    """Made inside the flow run of the iteration; the results stay on the workers."""

    round: Round
    recorder: IterationRecorder
    steps_per_task: int
    context: Context = field(default_factory=copy_context)  # tasks submitted in it are the run's
    outcome: "Future[Ended | None]" = field(default_factory=Future)  # None: it was cancelled
    published: "Future[bool]" = field(default_factory=Future)  # whether its record was
    turn: Event = field(default_factory=Event)  # the devices are its own
    notified: bool = False  # of a reward that failed
    begun: float = 0.0  # when the devices were free for it
    #: Of each fragment, what made some of its steps, and perhaps of others that were beside it.
    segments: dict[Fragment, list[tuple[range, PrefectFuture[Any]]]] = field(default_factory=dict)
    #: By group of samples, the candidates that they stand for.
    chosen: dict[int, tuple[int, ...]] = field(default_factory=dict)
    advantages: dict[int, np.ndarray] = field(default_factory=dict)  # group -> [G] or [G, K]
    sums: dict[str, PrefectFuture[Any]] = field(default_factory=dict)  # device ->
    total: PrefectFuture[Any] | None = None
    reduction: Reduce | None = None  # under way or done, unless one of its devices was lost since
    reward_history: RewardHistory | None = None  # at its updates; None: there was none
    trained_from: int | None = None  # the version that its first update stepped from
    update: int = 0  # of the packs that are trained

    @property
    def index(self) -> int:
        """Number of the iteration."""
        return self.round.index

    def origin_of(self, fragment: Fragment) -> Origin | None:
        """Return whose noise a fragment's samples have; None: their own."""
        chosen = self.chosen.get(fragment.group)
        if chosen is None:
            return None
        candidates = self.index, fragment.group - self.round.num_groups
        return Origin(candidates, tuple(chosen[sample] for sample in fragment.samples))

    def forget_segments(self, group: int) -> None:
        """Let go of the trajectories of a group that nobody needs any more."""
        for fragment in [own for own in self.segments if own.group == group]:
            del self.segments[fragment]

    def drop_sums(self) -> None:
        """Let go of the gradients: the update is made, and none is reduced again."""
        self.sums.clear()
        self.total = self.reduction = None

    def segments_of(self, blocks: tuple[PairBlock, ...], *, only_last: bool) -> Futures:
        """Return the futures that hold the transitions of some pairs, each once.

        Or the last ones of their trajectories, which hold the clean latents.
        """
        return once(
            future
            for block in blocks
            for steps, future in self.segments[block.fragment][-1 if only_last else 0 :]
            if only_last or block.step in steps
        )

    @contextmanager
    def publishing(self) -> Iterator[None]:
        """Tell whether what is done in the block, the publishing of the record, succeeded."""
        try:
            yield
        except BaseException:
            self.published.set_result(False)
            raise
        self.published.set_result(True)

    def abandon(self, error: BaseException | None = None) -> None:
        """End the flow run: with the error if the iteration has begun, else as cancelled."""
        self.turn.set()
        if error is not None and self.segments:
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(None)
