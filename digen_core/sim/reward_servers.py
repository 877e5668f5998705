"""The pool of servers that score samples, beside the devices."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from digen_core.control.protocol import Fragment
from digen_core.sim.clock import Clock, Jitter


@dataclass(slots=True)
class Request:
    """A fragment whose samples are to be scored."""

    fragment: Fragment
    queued: float
    done: Callable[["Request"], None]
    unscored: int
    started: float = -1.0
    dropped: bool = False


class RewardServers:
    """Score sample by sample, in the order of (iteration, group, arrival)."""

    def __init__(self, clock: Clock, jitter: Jitter, *, seconds: float, num_servers: int) -> None:
        self._clock = clock
        self._jitter = jitter
        self._seconds = seconds
        self._num_free = num_servers
        self._waiting: list[tuple[int, int, int, Request]] = []  # an entry for each sample
        self._num_asked = 0

    def score(self, fragment: Fragment, done: Callable[[Request], None]) -> Request:
        """Ask for the rewards of a fragment; ``done`` is called when all are there."""
        now = self._clock.now
        request = Request(fragment, now, done, fragment.num_samples)
        if not self._seconds:
            request.started = now
            self._clock.after(0.0, lambda: None if request.dropped else done(request))
            return request
        for _ in range(fragment.num_samples):
            entry = (fragment.iteration, fragment.group, self._num_asked, request)
            heapq.heappush(self._waiting, entry)
            self._num_asked += 1
        self._serve()
        return request

    def _serve(self) -> None:
        while self._waiting and self._num_free:
            request = heapq.heappop(self._waiting)[-1]
            if request.dropped:
                continue
            if request.started < 0:
                request.started = self._clock.now
            self._num_free -= 1
            self._clock.after(self._seconds * self._jitter(), partial(self._scored, request))

    def _scored(self, request: Request) -> None:
        self._num_free += 1
        request.unscored -= 1
        if not request.unscored and not request.dropped:
            request.done(request)
        self._serve()
