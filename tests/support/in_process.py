"""Iterations by the bodies of the tasks, called one after the other in this process.

What Dask and Prefect add is tested in tests/integration; this costs a few seconds less.
"""

from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from digen_core.config.run import RunConfig
from digen_core.control.packing import by_step
from digen_core.control.protocol import Fragment
from digen_core.data.prompts import Prompt, SizedPrompt, train_prompts
from digen_core.rewards.failures import settle
from digen_core.rollout.sampling import Sampling
from digen_core.rollout.steps import own_steps_of_group, steps_of_iteration
from digen_core.training.advantages import advantages_of
from digen_core.training.train_state import TrainState
from digen_core.transport.arrays import Weights
from digen_core.transport.origin import Origin
from digen_core.transport.segment import Segment
from flows.runtime.iterations.iteration import round_of
from support.packs import packs_of
from tasks.decoding import decode_and_score
from tasks.receipts import Denoised, Sampled
from tasks.rollout import denoise_steps, encode
from tasks.samples import encode_samples
from tasks.train import reduce, train_pack
from tasks.versions import publish, push_weights, start_state, step
from tasks.worker.engine import build_engine


def call(body: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
    """Return the result and the facts of a task's body."""
    return body("run", "label", *arguments, **settings)


def denoise_alone(
    fragment: Fragment,
    key: str,
    noisy_steps: Sequence[int],
    *,
    conditions: dict[str, Any],
    previous: Segment | None,
    origin: Origin | None = None,
    **settings: Any,
) -> tuple[Segment, Denoised]:
    """Return what denoising steps of a batch of one fragment makes, and the facts."""
    (segment,), facts = call(
        denoise_steps,
        batch=[Sampling(fragment, key, tuple(noisy_steps), origin)],
        conditions=[conditions],
        previous=[] if previous is None else [(previous,)],
        **settings,
    )
    return segment, facts


def score(segment: Segment, **settings: Any) -> Any:
    """Return what scoring a fragment returns, and the facts."""
    return call(decode_and_score, fragment=segment.fragment, segments=(segment,), **settings)


def train_in_process(config: RunConfig, folder: Path) -> tuple[Weights, list[dict[str, Any]]]:
    """Return the last weights and the metrics of each update.

    Packs hold pairs of any groups and steps, in a random order.
    """
    build_engine("run", config, "worker-0", frozenset({"rollout", "trainer"}))
    prompts, (state, _) = train_prompts(config), call(start_state)
    metrics = []
    for index in range(config.num_iterations):
        call(push_weights, policy_version=call(publish, state=state)[0])
        state, found = _iteration(config, prompts, index, state, folder)
        metrics.append(found)
    return state.weights, metrics


def trained_by(config: RunConfig, fragment: Fragment) -> dict[int, Sequence[int]]:
    """Return which samples of a fragment train each step."""
    steps = steps_of_iteration(config, fragment.iteration, fragment.num_steps).trained
    own = own_steps_of_group(config, fragment.iteration, fragment.group, fragment.num_steps)
    return by_step(fragment.samples, steps, own)


def _iteration(
    config: RunConfig, prompts: list[Prompt], index: int, state: TrainState, folder: Path
) -> tuple[TrainState, dict[str, Any]]:
    round_ = round_of(config, prompts, index)
    sized = [
        SizedPrompt(prompt, config.size_of(index, group))
        for group, prompt in enumerate(round_.prompts)
    ]
    conditions, _ = call(encode, prompts=sized)
    made = _generated(config, index, state.version, round_.prompts, sized, conditions, folder)
    columns, step_values, fragments = {}, {}, list(made)
    for group, prompt in enumerate(round_.prompts):
        rewards, values = [], []
        for fragment in [own for own in made if own.group == group]:
            segment, sampled = made[fragment]
            rewards.append(score(segment, prompt=prompt, run_dir=folder)[1].rewards)
            values.append(np.array([*sampled.step_values.values()]).T)
        joined = {name: np.concatenate([part[name] for part in rewards]) for name in rewards[0]}
        columns[group] = settle(joined, config.rewards, prompt.scores)
        step_values[group] = np.concatenate(values)
    keys = {group: prompt.key for group, prompt in enumerate(round_.prompts)}
    found = advantages_of(config, columns, keys, {}, step_values if config.asks_of_steps else None)
    Random(index).shuffle(fragments)
    kept = [fragment for fragment in fragments if fragment.group not in found.skipped]
    total, pairs = None, {fragment: trained_by(config, fragment) for fragment in kept}
    for pack in packs_of(pairs, iteration=index, pack_size=config.train.pack_size):
        total, trained = call(
            train_pack,
            pack=pack,
            version=state.version,
            segments=[tuple(segment for segment, _ in made.values())],
            conditions=[conditions],
            keys={group: own.key for group, own in enumerate(sized)},
            advantages=found.values,
            previous=total,
            trained_from=state.version,
            run_dir=folder,
        )
        assert not trained.too_large
    gradient, _ = call(reduce, own=total)
    state, update = call(
        step, state=state, total=gradient, trained_from=state.version, is_last=True
    )
    return state, update.metrics


def _generated(
    config: RunConfig,
    index: int,
    version: int,
    prompts: Sequence[Prompt],
    sized: Sequence[SizedPrompt],
    conditions: dict[str, Any],
    folder: Path,
) -> dict[Fragment, tuple[Segment, Sampled]]:
    """Return what was made of each fragment of an iteration, in full batches."""
    made: dict[Fragment, tuple[Segment, Sampled]] = {}
    size, num_steps = config.fragment_size, config.rollout.num_steps
    fragments = [
        Fragment(index, group, number, first, size, num_steps=prompt.num_steps or num_steps)
        for group, prompt in enumerate(prompts)
        for number, first in enumerate(range(0, config.rollout.group_size, size))
    ]
    for steps, alike in groupby(fragments, lambda own: own.num_steps):
        noisy = steps_of_iteration(config, index, steps).noisy
        for batch in batched([*alike], config.batch_size // size):
            of: dict[str, Any] = {"steps": range(steps), "version": version, "run_dir": folder}
            of["conditions"] = [conditions]
            samples = prompts[batch[0].group].samples
            if samples:
                (fragment,) = batch
                of["images"] = [samples[sample] for sample in fragment.samples]
                of["key"] = sized[fragment.group].key
                segments, facts = call(encode_samples, fragment=fragment, **of)
            else:
                asked = [Sampling(own, sized[own.group].key, noisy) for own in batch]
                segments, facts = call(denoise_steps, batch=asked, previous=[], **of)
            made |= dict(zip(batch, zip(segments, facts.sampled, strict=True), strict=True))
    return made


def batched(items: Sequence[Fragment], size: int) -> list[Sequence[Fragment]]:
    """Return items in order, so many together."""
    return [items[first : first + size] for first in range(0, len(items), size)]
