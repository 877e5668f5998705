"""Virtual time, and the noise on how long things take."""

import heapq
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Action = Callable[[], None]


class Timer:
    """Something that will happen; it can be cancelled."""

    __slots__ = ("action",)

    def __init__(self, action: Action | None) -> None:
        self.action = action

    def cancel(self) -> None:
        """Let it not happen."""
        self.action = None


class Clock:
    """Actions in the order of their times; those of one time in the order they were set."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Timer]] = []
        self._num_set = 0

    def at(self, time: float, action: Action) -> Timer:
        """Do ``action`` at a time, in seconds, that is not past."""
        timer = Timer(action)
        heapq.heappush(self._heap, (time, self._num_set, timer))
        self._num_set += 1
        return timer

    def after(self, seconds: float, action: Action) -> Timer:
        """Do ``action`` so many seconds from now; 0 is as soon as what was set before is done."""
        return self.at(self.now + seconds, action)

    def advance(self) -> bool:
        """Go to the next action and do it; return False if there is none."""
        while self._heap:
            time, _, timer = heapq.heappop(self._heap)
            if timer.action is not None:
                self.now = time
                timer.action()
                return True
        return False


class Jitter:
    """Seeded lognormal factors of mean 1."""

    def __init__(self, sigma: float, seed: int) -> None:
        self._sigma = sigma
        self._random = np.random.default_rng(seed)

    def __call__(self) -> float:
        """Return one factor."""
        if not self._sigma:
            return 1.0
        return float(self._random.lognormal(-0.5 * self._sigma**2, self._sigma))

    def factors(self, num: int) -> NDArray[np.float64]:
        """Return ``[num]`` factors."""
        if not self._sigma:
            return np.ones(num)
        return self._random.lognormal(-0.5 * self._sigma**2, self._sigma, num)

    def shuffle(self, num: int) -> list[int]:
        """Return the numbers below ``num`` in a random order."""
        order: list[int] = self._random.permutation(num).tolist()
        return order

    def choose(self, num: int, out_of: int) -> tuple[int, ...]:
        """Return that many of the numbers below ``out_of``, in order."""
        return tuple(sorted(self._random.permutation(out_of)[:num].tolist()))
