"""Emulated devices: tasks that wait for as long as a cost model says, and compute nothing.

They have the names and the parameters of the real tasks, and take their places where the config of
a run is an ``EmulatedConfig``: the flows, Prefect and Dask do not know the difference. Results are
tiny: a fragment is its own segment, a number is a policy version.

| task | what it takes |
|---|---|
| denoise | each step its own jittered time of the device, and after the last one decoding |
| train, optimizer step, switch | a jittered time of the device |
| decode and score | each sample a jittered time of one of the reward servers |
| reduce | ``costs.gradient_sum`` seconds for each other device that trained, beside other work |
| push | to a device that generates ``costs.push`` seconds, beside the device's other work |
| all others | nothing |

The members of a gang wait together, by their leader's command.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from queue import PriorityQueue
from threading import Semaphore, Thread
from time import sleep, time
from typing import Any, Final

import numpy as np
from distributed import get_worker

from digen_core.control.protocol import Fragment, Pack, Role
from digen_core.data.prompts import Prompt, SizedPrompt
from digen_core.sim.emulated_config import EmulatedConfig
from tasks.body import Body, body
from tasks.gang.together import together
from tasks.receipts import (
    CountedTokens,
    Denoised,
    Facts,
    HeldVersion,
    Nothing,
    Pushed,
    Ran,
    Reduced,
    Scored,
    Trained,
    Updated,
    attach,
)


class RewardServers:
    """Threads that each score one sample at a time; the lowest priority number is the first."""

    def __init__(self, num_servers: int) -> None:
        self._waiting: PriorityQueue[tuple[Any, ...]] = PriorityQueue()
        self._numbers = count()
        for _ in range(num_servers):
            Thread(target=self._serve, daemon=True).start()

    def score(self, priority: tuple[int, int], seconds: list[float]) -> None:
        """Return when each sample has had its seconds of a server."""
        scored = Semaphore(0)
        for needed in seconds:
            self._waiting.put((priority, next(self._numbers), needed, scored))
        for _ in seconds:
            scored.acquire()

    def _serve(self) -> None:
        while True:
            *_, needed, scored = self._waiting.get()
            sleep(needed)
            scored.release()


@dataclass(frozen=True, slots=True)
class _Emulation:
    """What the emulated devices of one process share."""

    config: EmulatedConfig
    servers: RewardServers


_emulations: dict[str, _Emulation] = {}  # by run


def know_costs(run_id: str, config: EmulatedConfig) -> None:
    """Have this process know what the work of a run costs."""
    if run_id not in _emulations:
        _emulations[run_id] = _Emulation(config, RewardServers(config.costs.reward_servers))


@contextmanager
def _working(run_id: str) -> Iterator[tuple[EmulatedConfig, str, float]]:
    """Give a body the config, its worker and when it started; put the span on the receipt."""
    worker, started = str(get_worker().name), time()
    yield _emulations[run_id].config, worker, started
    attach(Ran(worker, started, time(), num_bytes=0))


@together
def _wait_until(moment: float) -> None:
    """Have all members of the device wait."""
    _sleep_until(moment)


def _sleep_until(moment: float) -> None:
    sleep(max(0.0, moment - time()))


@body("load model", Nothing)
def load_model(
    run_id: str, label: str, config: EmulatedConfig, device: str, roles: list[str]
) -> tuple[None, Nothing]:
    """Tell this process what work costs; the members of a gang meet."""
    know_costs(run_id, config)
    with _working(run_id) as (_, _, started):
        _wait_until(started)
    return None, Nothing()


@body("count tokens", CountedTokens)
def count_tokens(
    run_id: str, label: str, prompts: list[str], num_images: list[int]
) -> tuple[None, CountedTokens]:
    """Find none that is cut."""
    with _working(run_id):
        return None, CountedTokens(most=0, num_cut=0)


@body("start_state", HeldVersion)
def start_state(run_id: str, label: str) -> tuple[int, HeldVersion]:
    """Make version 0."""
    with _working(run_id):
        return 0, HeldVersion(0, "0")


@body("encode", Nothing)
def encode(run_id: str, label: str, prompts: list[SizedPrompt]) -> tuple[None, Nothing]:
    """Take no time."""
    with _working(run_id):
        return None, Nothing()


@body("denoise", Denoised)
def denoise_steps(
    run_id: str,
    label: str,
    *,
    fragment: Fragment,
    steps: range,
    noisy_steps: tuple[int, ...],
    version: int,
    conditions: None,
    key: str,
    previous: Fragment | None,
    run_dir: Path,
) -> tuple[Fragment, Denoised]:
    """Wait for as long as the steps take; after the last one also for decoding."""
    with _working(run_id) as (config, device, started):
        costs, size = config.costs_of(device), (fragment.num_samples, fragment.cost)
        place = (fragment.iteration, fragment.group, fragment.index)
        factors = [config.factor("denoise", *place, step) for step in steps]
        seconds = costs.step(*size) * sum(factors)
        if steps.stop == fragment.num_steps:
            seconds += costs.decode(*size) * config.factor("decode", *place)
        _wait_until(started + seconds)
    return fragment, Denoised(version, logprobs={}, seconds_per_step=seconds / len(steps))


@body("decode and score", Scored)
def decode_and_score(
    run_id: str, label: str, *, prompt: Prompt, segment: Fragment, run_dir: Path
) -> tuple[None, Scored]:
    """Wait for the reward servers."""
    place = (segment.iteration, segment.group)
    with _working(run_id) as (config, _, _):
        factors = [config.factor("score", *place, sample) for sample in segment.samples]
        if config.costs.reward:
            seconds = [config.costs.reward * factor for factor in factors]
            _emulations[run_id].servers.score(place, seconds)
    return None, Scored({"reward": factors})


@body("train", Trained)
def train_pack(
    run_id: str,
    label: str,
    *,
    pack: Pack,
    version: int,
    segments: list[Fragment],
    conditions: list[None],
    keys: dict[int, str],
    advantages: dict[int, np.ndarray],
    previous: None,
    trained_from: int,
    run_dir: Path,
) -> tuple[None, Trained]:
    """Wait for as long as the pack takes."""
    with _working(run_id) as (config, device, started):
        factor = config.factor("train", pack.iteration, pack.index)
        _wait_until(started + config.costs_of(device).pack(pack.num_pairs, pack.cost) * factor)
    return None, Trained(too_large=False)


@body("share sum", Nothing)
def share_sum(run_id: str, label: str, total: None) -> tuple[None, Nothing]:
    """Take no time."""
    with _working(run_id):
        return None, Nothing()


@body("reduce", Reduced)
def reduce(
    run_id: str,
    label: str,
    own: None,
    others: Sequence[None] = (),
    sources: Sequence[tuple[str, ...]] = (),
) -> tuple[None, Reduced]:
    """Wait for the sum of each other device."""
    with _working(run_id) as (config, _, started):
        _sleep_until(started + config.costs.gradient_sum * len(others))
    return None, Reduced(-1, "")


@body("optimizer step", Updated)
def step(
    run_id: str, label: str, state: int, total: None, trained_from: int, *, is_last: bool
) -> tuple[int, Updated]:
    """Wait for as long as the optimizer takes, and make the next version."""
    version = state + 1
    with _working(run_id) as (config, _, started):
        _wait_until(started + config.costs.optimizer_step * config.factor("step", version))
    return version, Updated(version, str(version), metrics={})


@body("publish", HeldVersion)
def publish(
    run_id: str, label: str, state: int, *, average: bool = False
) -> tuple[int, HeldVersion]:
    """Take no time."""
    with _working(run_id):
        return state, HeldVersion(state, str(state))


@body("push", Pushed)
def push_weights(
    run_id: str,
    label: str,
    policy_version: int,
    source: tuple[str, ...] = (),
    *,
    needed: Collection[int] = (),
    by_delta: bool = False,
    base: int = -1,
) -> tuple[None, Pushed]:
    """Wait for the link, if the device generates."""
    with _working(run_id) as (config, device, started):
        if policy_version and "rollout" in config.devices[device].roles:
            _sleep_until(started + config.costs.push)  # beside what the device is at
    return None, Pushed(policy_version, str(policy_version), failure="")


@body("switch", Nothing)
def switch(run_id: str, label: str, role: Role, number: int) -> tuple[None, Nothing]:
    """Wait for as long as it takes to get ready for the work of a role."""
    with _working(run_id) as (config, device, started):
        costs = config.costs
        seconds = costs.switch_to_rollout if role == "rollout" else costs.switch_to_trainer
        factor = config.factor(f"switch {device}", number)
        _wait_until(started + seconds * factor)
    return None, Nothing()


EMULATED: Final[dict[str, Body[..., object, Facts]]] = {
    waiting.name: waiting
    for waiting in (
        load_model,
        count_tokens,
        start_state,
        encode,
        denoise_steps,
        decode_and_score,
        train_pack,
        share_sum,
        reduce,
        step,
        publish,
        push_weights,
        switch,
    )
}
"""Name of a real body -> the one that waits in its place, with facts of the same kind."""
