"""Embed each prompt of a run once."""

from collections import OrderedDict
from typing import Any

from prefect.futures import PrefectFuture

from flows.open_iteration import OpenIteration
from flows.submitter import Submitter
from tasks.rollout import encode

MAX_CONDITIONS = 512


class Conditions:
    """The conditions of the prompts last used, as futures on the workers that made them."""

    def __init__(self, submitter: Submitter, capacity: int = MAX_CONDITIONS) -> None:
        self._submitter = submitter
        self._capacity = capacity
        self._held: OrderedDict[str, tuple[str, PrefectFuture[Any]]] = OrderedDict()

    def of(self, iteration: OpenIteration, group: int, device: str) -> PrefectFuture[Any]:
        """Return the condition of a group's prompt; a device encodes it if nobody has."""
        prompt = iteration.round.prompts[group]
        if prompt not in self._held:
            future = self._submitter.submit(
                iteration,
                encode,
                f"encode g{group:02d}",
                device,
                kind="encode",
                about={"group": group, "num_items": 1},
                priority=iteration.round.priority_of(group),
                prompt=prompt,
            )
            self._held[prompt] = device, future
        self._held.move_to_end(prompt)
        if len(self._held) > self._capacity:
            self._held.popitem(last=False)
        return self._held[prompt][1]

    def forget(self, device: str) -> None:
        """Drop what a lost device held."""
        for prompt in [prompt for prompt, (place, _) in self._held.items() if place == device]:
            del self._held[prompt]
