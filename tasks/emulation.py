"""Emulated devices: tasks that wait for as long as a cost model says, and compute nothing.

They have the names and the parameters of the real tasks, and take their places where the config of
a run is an ``EmulatedConfig``: the flows, Prefect and Dask do not know the difference. Results are
tiny: what stands for segments says how many bytes they have, a number is a policy version.

| task | what it takes |
|---|---|
| denoise | each step its own jittered time of the device, and after the last one decoding |
| train, optimizer step, switch | a jittered time of the device |
| decode and score | each sample a jittered time of one of the reward servers |
| reduce | ``costs.gradient_sum`` seconds for each other device that trained, beside other work |
| push | to a device that generates ``costs.push`` seconds, beside the device's other work |
| all others | nothing |

What crosses a link between sites takes its time on top (`emulated/links.py`). The members of a gang
wait together, by their leader's command.
"""

from collections.abc import Collection, Sequence
from pathlib import Path
from time import sleep, time
from typing import Final

import numpy as np

from digen_core.control.protocol import Batch, Fragment, Pack, Role
from digen_core.data.prompts import Prompt, SizedPrompt
from digen_core.rollout.sampling import Sampling
from digen_core.sim.emulated_config import EmulatedConfig
from tasks.body import Body, body
from tasks.emulated.links import EmulatedValue
from tasks.emulated.work import working
from tasks.gang.together import together
from tasks.receipts import (
    CountedTokens,
    Denoised,
    Facts,
    HeldVersion,
    Nothing,
    Pushed,
    Reduced,
    Sampled,
    Scored,
    Trained,
    Updated,
)


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
    """Take no time; the members of a gang meet."""
    with working(run_id) as work:
        _wait_until(work.started)
    return None, Nothing()


@body("count tokens", CountedTokens)
def count_tokens(
    run_id: str, label: str, prompts: list[str], num_images: list[int]
) -> tuple[None, CountedTokens]:
    """Find none that is cut."""
    with working(run_id):
        return None, CountedTokens(most=0, num_cut=0)


@body("start_state", HeldVersion)
def start_state(run_id: str, label: str) -> tuple[int, HeldVersion]:
    """Make version 0."""
    with working(run_id):
        return 0, HeldVersion(0, "0")


@body("encode", Nothing)
def encode(run_id: str, label: str, prompts: list[SizedPrompt]) -> tuple[EmulatedValue, Nothing]:
    """Take no time."""
    with working(run_id) as work:
        num_bytes = work.config.costs.sent.condition * len(prompts)
        return EmulatedValue(num_bytes, work.site), Nothing()


@body("denoise", Denoised)
def denoise_steps(
    run_id: str,
    label: str,
    *,
    batch: list[Sampling],
    steps: range,
    version: int,
    conditions: list[EmulatedValue],
    previous: list[EmulatedValue],
    run_dir: Path,
) -> tuple[EmulatedValue, Denoised]:
    """Wait for as long as the steps take; after the last one also for decoding."""
    with working(run_id) as work:
        config, together = work.config, Batch(tuple(own.fragment for own in batch))
        costs, first = config.costs_of(work.device), together.fragments[0]
        place = (first.iteration, first.group, first.index)
        factors = [config.factor("denoise", *place, step) for step in steps]
        step = costs.step(together.num_samples, together.cost)
        seconds = step * sum(factors) * config.pace_of(work.device)
        if steps.stop == together.num_steps:
            decode = sum(costs.decode(own.num_samples, own.cost) for own in together.fragments)
            seconds += decode * config.factor("decode", *place)
        _wait_until(work.started + seconds)
        num_kept = max(1, len({*batch[0].noisy_steps}.intersection(steps)))
        num_bytes = config.costs.sent.transition * together.num_samples * num_kept
        segments = EmulatedValue(num_bytes, work.site)
    return segments, Denoised(version, seconds / len(steps), [Sampled() for _ in batch])


@body("decode and score", Scored)
def decode_and_score(
    run_id: str,
    label: str,
    *,
    prompt: Prompt,
    fragment: Fragment,
    segments: EmulatedValue,
    run_dir: Path,
) -> tuple[None, Scored]:
    """Wait for the reward servers."""
    place = (fragment.iteration, fragment.group)
    with working(run_id) as work:
        factors = [work.config.factor("score", *place, sample) for sample in fragment.samples]
        if work.config.costs.reward:
            seconds = [work.config.costs.reward * factor for factor in factors]
            work.score(place, seconds)
    return None, Scored({"reward": factors})


@body("train", Trained)
def train_pack(
    run_id: str,
    label: str,
    *,
    pack: Pack,
    version: int,
    segments: list[EmulatedValue],
    conditions: list[EmulatedValue],
    keys: dict[int, str],
    advantages: dict[int, np.ndarray],
    previous: None,
    trained_from: int,
    run_dir: Path,
) -> tuple[None, Trained]:
    """Wait for as long as the pack takes."""
    with working(run_id) as work:
        factor = work.config.factor("train", pack.iteration, pack.index)
        seconds = work.config.costs_of(work.device).pack(pack.num_pairs, pack.cost)
        _wait_until(work.started + seconds * factor)
    return None, Trained(too_large=False)


@body("share sum", Reduced)
def share_sum(
    run_id: str,
    label: str,
    total: None,
    others: Sequence[None] = (),
    sources: Sequence[tuple[str, ...]] = (),
) -> tuple[None, Reduced]:
    """Take ``costs.gradient_sum`` seconds for each other device of its site."""
    with working(run_id) as work:
        _sleep_until(work.started + work.config.costs.gradient_sum * len(others))
    return None, Reduced(-1, "")


@body("reduce", Reduced)
def reduce(
    run_id: str,
    label: str,
    own: None,
    others: Sequence[None] = (),
    sources: Sequence[tuple[str, ...]] = (),
) -> tuple[None, Reduced]:
    """Wait for the sum of each other device, or site."""
    with working(run_id) as work:
        costs = work.config.costs
        arrived = work.pull([own[0] for own in sources], costs.sent.gradient_sum)
        _sleep_until(arrived + costs.gradient_sum * len(others))
    return None, Reduced(-1, "")


@body("optimizer step", Updated)
def step(
    run_id: str, label: str, state: int, total: None, trained_from: int, *, is_last: bool
) -> tuple[int, Updated]:
    """Wait for as long as the optimizer takes, and make the next version."""
    version = state + 1
    with working(run_id) as work:
        seconds = work.config.costs.optimizer_step * work.config.factor("step", version)
        _wait_until(work.started + seconds)
    return version, Updated(version, str(version), metrics={})


@body("publish", HeldVersion)
def publish(
    run_id: str, label: str, state: int, *, average: bool = False
) -> tuple[int, HeldVersion]:
    """Take no time."""
    with working(run_id):
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
    """Wait for what crosses links, and if the device generates for as long as a push takes."""
    with working(run_id) as work:
        costs, roles = work.config.costs, work.config.devices[work.device].roles
        ready = work.pull(source[:1], costs.sent.crossing)
        if policy_version and "rollout" in roles:
            ready += costs.push
        _sleep_until(ready)  # beside what the device is at
    return None, Pushed(policy_version, str(policy_version), failure="")


@body("switch", Nothing)
def switch(run_id: str, label: str, role: Role, number: int) -> tuple[None, Nothing]:
    """Wait for as long as it takes to get ready for the work of a role."""
    with working(run_id) as work:
        costs = work.config.costs
        seconds = costs.switch_to_rollout if role == "rollout" else costs.switch_to_trainer
        factor = work.config.factor(f"switch {work.device}", number)
        _wait_until(work.started + seconds * factor)
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
