"""A campaign: stories of a seed, one run in peace to hold them against, and what came of it."""

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final

from deployments.chaos.compare import Left, complaints_of, excess_of
from deployments.chaos.ledger import Work
from deployments.chaos.namespaces import ISOLATE, are_there
from deployments.chaos.outcome import Order, Outcome
from deployments.chaos.player import KEPT, OUTCOME, RUNS
from deployments.chaos.story import ISOLATED, KINDS, Kind, Service, Story, draw
from deployments.errors import RunFailedError
from digen_core import PYTHON
from digen_core.config.run import RunConfig
from digen_core.errors import UserError

ORDER: Final = "order.json"
PEACE: Final = "peace"
WRONG: Final = "WRONG"
"""How a story ended that left something else than the run in peace."""
PEACE_LIMIT: Final = 12 * 3600.0
"""Seconds that it may take."""
LIMIT: Final = 6.0
"""A run may take that many times as long as the one in peace,"""
LIMIT_TIMEOUTS: Final = 8.0
"""and beside that so many times what it takes to notice a silent worker."""


@dataclass(frozen=True)
class Told:
    """A story that was played, and what is wrong with what it left."""

    outcome: Outcome
    complaints: Sequence[str]
    peace: Outcome

    @property
    def seconds_lost(self) -> float:
        """Seconds more than in peace."""
        return self.outcome.seconds - self.peace.seconds

    @property
    def steps_again(self) -> float:
        """Denoising steps that were done again or in vain, over those in peace."""
        return self._share("sample_steps", self.outcome.asked) - 1

    @property
    def pairs_again(self) -> float:
        """Pairs that were trained again or in vain, over those in peace."""
        return self._share("pairs", self.outcome.asked) - 1

    @property
    def steps_lost(self) -> float:
        """Denoising steps that may have been done again, over those in peace."""
        return self._share("sample_steps", self.outcome.lost)

    @property
    def pairs_lost(self) -> float:
        """Pairs that may have been trained again, over those in peace."""
        return self._share("pairs", self.outcome.lost)

    def _share(self, name: str, work: Mapping[int, Work]) -> float:
        own, peace = (
            float(sum(getattr(one, name) for one in table.values()))
            for table in (work, self.peace.asked)
        )
        return own / peace

    @property
    def ended(self) -> str:
        """How it came to its end."""
        if self.complaints:
            return WRONG
        if (starts := len(self.outcome.attempts) - 1) > 0:
            return f"restarted {starts}x"
        return "resumed" if self.outcome.has_resumed else "went on"


class Campaign:
    """Plays stories of a config in a folder."""

    def __init__(
        self,
        config: RunConfig,
        arguments: Sequence[str],
        folder: Path,
        services: Sequence[Service] = (),
    ) -> None:
        """Prepare.

        Args:
            config: of the runs.
            arguments: of ``digen train``, that give it.
            folder: that gets all stories.
            services: that are beside each run.

        Raises:
            UserError: there are some, and this machine has no namespaces.
        """
        self._config = config
        self._arguments = tuple(arguments)
        self._folder = folder
        self._services = tuple(services)
        self._is_isolated = are_there()
        if services and not self._is_isolated:
            raise UserError("--services needs namespaces of Linux, which this machine has not")
        self._limit = PEACE_LIMIT
        self._ties = set[int]()  # write ends of pipes: a player ends when its own is closed
        self._lock = Lock()

    @property
    def impossible(self) -> list[Kind]:
        """Kinds of faults that cannot be done on this machine."""
        return [] if self._is_isolated else [kind for kind in KINDS if kind in ISOLATED]

    def play(
        self, seed: int, numbers: Sequence[int], jobs: int, kinds: Sequence[Kind]
    ) -> Iterator[Told]:
        """Yield the stories as they end.

        Args:
            seed: of the stories.
            numbers: of the stories.
            jobs: that are played at the same time.
            kinds: of faults to draw; those that cannot be done here are left out.

        Raises:
            RunFailedError: the run in peace failed, or a story could not be played at all.
        """
        kinds = [kind for kind in kinds if kind not in self.impossible]
        peace = self._played(Story(seed, -1, ()), self._folder / PEACE)
        if complaints := complaints_of(peace, self._left(PEACE), self._left(PEACE)):
            raise RunFailedError(f"the run without faults: {'; '.join(complaints)}")
        self._limit = (
            LIMIT * peace.seconds + LIMIT_TIMEOUTS * self._config.cluster.heartbeat_timeout
        )
        stories = [draw(seed, number, self._config, kinds, self._services) for number in numbers]

        pool = ThreadPoolExecutor(jobs)
        played = [pool.submit(self._played, one, self._folder / one.name) for one in stories]
        try:
            for future in as_completed(played):
                outcome = future.result()
                left = self._left(outcome.story.name)
                found = complaints_of(outcome, left, self._left(PEACE))
                yield Told(outcome, [*found, *excess_of(outcome, peace)], peace)
        finally:  # nobody waits here for stories that are not over: what was told is shown first
            pool.shutdown(wait=False, cancel_futures=True)
            self._end_players()

    def _played(self, story: Story, folder: Path) -> Outcome:
        folder.mkdir(parents=True)
        order = Order(
            story=story,
            arguments=self._arguments,
            config=self._config,
            services=self._services,
            is_isolated=self._is_isolated,
            limit_seconds=self._limit,
        )
        (folder / ORDER).write_text(order.model_dump_json(indent=2), encoding="utf-8")
        player = (*PYTHON, "-m", "deployments.chaos.player", str(folder / ORDER))
        done = self._tied([*(ISOLATE if self._is_isolated else ()), *player])
        if not (folder / OUTCOME).exists():
            why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise RunFailedError(f"story {story.name} could not be played: {why}")
        return Outcome.model_validate_json((folder / OUTCOME).read_text(encoding="utf-8"))

    def _left(self, name: str) -> Left:
        folder = self._folder / name
        kept = folder / KEPT
        return Left.in_folder(kept if kept.exists() else folder / RUNS, self._config.model.dtype)

    def _tied(self, command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        """Run a command that ends with this process, even by SIGKILL, or by `_end_players`."""
        theirs, ours = os.pipe()
        self._ties.add(ours)
        try:
            return subprocess.run(
                [*PYTHON, "-m", "tasks.cluster.tied", *command],
                stdin=theirs,
                capture_output=True,
                text=True,
                check=False,
            )
        finally:
            os.close(theirs)
            self._cut(ours)

    def _end_players(self) -> None:
        for tie in list(self._ties):
            self._cut(tie)

    def _cut(self, tie: int) -> None:
        with self._lock:
            if tie in self._ties:
                self._ties.remove(tie)
                os.close(tie)
