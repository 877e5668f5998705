"""A stage whose link to the next one is emulated: what it sends arrives later."""

import queue
import time
from collections import defaultdict
from threading import Thread
from typing import Any

import torch.distributed as dist
from torch import Tensor

from digen_core.control.costs import Link
from digen_core.gang.codecs import Sent
from digen_core.gang.stages import Stage


class SlowStage(Stage):
    """A stage that sends to others as a link would: one message after the other, each way."""

    def __init__(self, *arguments: Any, link: Link, **parameters: Any) -> None:
        """Meet the other stages (collective).

        Args:
            arguments: of a stage.
            link: to each other stage.
            parameters: of a stage.
        """
        super().__init__(*arguments, **parameters)
        self.num_bytes = 0  # sent so far
        self._link = link
        self._waiting: dict[int, queue.Queue[tuple[float, Sent]]] = {}  # by place
        self._free = defaultdict[int, float](float)  # place -> when all was put on the link

    def _post(self, sent: Sent, place: int) -> None:
        """Put what a codec made of a tensor on the link; whoever computes goes on."""
        if place not in self._waiting:
            self._waiting[place] = queue.Queue()
            Thread(target=self._send_late, args=(place,), daemon=True).start()
        self._waiting[place].put((self._arrival(sum(part.nbytes for part in sent), place), sent))

    def _arrival(self, num_bytes: int, place: int) -> float:
        self.num_bytes += num_bytes
        started = max(time.monotonic(), self._free[place])
        self._free[place] = started + num_bytes / self._link.bytes_per_second
        return self._free[place] + self._link.latency

    def _send_late(self, place: int) -> None:
        while True:
            due, sent = self._waiting[place].get()
            time.sleep(max(0.0, due - time.monotonic()))
            for part in sent:
                dist.send(part, group=self._group, group_dst=place)
            self._waiting[place].task_done()

    def settle(self) -> None:
        """Wait until everything that was sent has arrived."""
        for waiting in self._waiting.values():
            waiting.join()

    def share(self, velocity: Tensor) -> None:
        """Give all stages the velocities of the last one, over its links to them."""
        if self._place == self._last:
            due = [self._arrival(velocity.nbytes, place) for place in range(self._last)]
            time.sleep(max(0.0, max(due) - time.monotonic()))
        super().share(velocity)
