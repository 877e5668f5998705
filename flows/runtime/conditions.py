"""Embed each prompt of a run once, a few together in one task."""

from collections import OrderedDict
from collections.abc import Collection, Sequence
from itertools import cycle
from typing import Any

from prefect.futures import PrefectFuture

from digen_core.config.run import RunConfig
from digen_core.control.schedule import prompts_together
from digen_core.data.prompts import SizedPrompt
from flows.runtime.iterations.open_iteration import OpenIteration
from flows.runtime.submission import Submitter, Work
from tasks.rollout import encode

MAX_CONDITIONS = 512


class Conditions:
    """The conditions of the prompts last used, as futures on the workers that made them."""

    def __init__(
        self, config: RunConfig, submitter: Submitter, capacity: int = MAX_CONDITIONS
    ) -> None:
        self._config = config
        self._submitter = submitter
        self._capacity = capacity
        self._held: OrderedDict[str, tuple[str, PrefectFuture[Any]]] = OrderedDict()

    def key_of(self, iteration: OpenIteration, group: int) -> str:
        """Return by what the condition of a group is known."""
        return self._prompt_of(iteration, group).key

    def _prompt_of(self, iteration: OpenIteration, group: int) -> SizedPrompt:
        size = self._config.size_of(iteration.index, group)
        return SizedPrompt(iteration.round.prompts[group], size)

    def encode_ahead(self, iteration: OpenIteration, devices: Sequence[str]) -> None:
        """Have the prompts embedded while the devices wait for something else.

        That needs no weights, so it is done before the iteration begins; the work of earlier
        iterations goes first.
        """
        if not devices:  # they were lost: who comes instead encodes what it generates
            return
        keys = [self.key_of(iteration, group) for group in range(iteration.round.num_groups)]
        missing = [keys.index(key) for key in dict.fromkeys(keys) if key not in self._held]
        size = prompts_together(len(missing), len(devices))
        starts = range(0, len(missing), size)
        for start, device in zip(starts, cycle(devices), strict=False):
            self._encode(iteration, missing[start : start + size], device)

    def of(self, iteration: OpenIteration, group: int, device: str) -> PrefectFuture[Any]:
        """Return what holds the condition of a group; a device encodes it if nobody has.

        Its result is a dict by key.
        """
        key = self.key_of(iteration, group)
        if key not in self._held:
            self._encode(iteration, [group], device)
        self._held.move_to_end(key)
        return self._held[key][1]

    def forget(self, devices: Collection[str]) -> None:
        """Drop what lost devices held."""
        for key in [key for key, (place, _) in self._held.items() if place in devices]:
            del self._held[key]

    def _encode(self, iteration: OpenIteration, groups: Sequence[int], device: str) -> None:
        prompts = [self._prompt_of(iteration, group) for group in groups]
        work = Work(
            body=encode,
            label=" ".join(["encode", *(f"g{group:02d}" for group in groups)]),
            device=device,
            kind="encode",
            about={"num_items": len(prompts)},
            parameters={"prompts": [prompt.shown for prompt in prompts]},
            priority=iteration.round.priority_of(groups[0]),
        )
        future = self._submitter.submit(iteration, work)
        self._held.update({prompt.key: (device, future) for prompt in prompts})
        while len(self._held) > self._capacity:
            self._held.popitem(last=False)
