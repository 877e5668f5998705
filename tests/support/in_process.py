"""Iterations by the bodies of the tasks, called one after the other in this process.

What Dask and Prefect add is tested in tests/integration; this costs a few seconds less.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from digen_core.config.run import RunConfig
from digen_core.control.packing import by_step
from digen_core.control.protocol import Fragment
from digen_core.data.prompts import Prompt, SizedPrompt, train_prompts
from digen_core.rewards.failures import settle
from digen_core.rollout.steps import own_steps_of_group, steps_of_iteration
from digen_core.training.advantages import advantages_of
from digen_core.training.train_state import TrainState
from digen_core.transport.arrays import Weights
from flows.runtime.iterations.iteration import round_of
from support.packs import packs_of
from tasks.decoding import decode_and_score
from tasks.rollout import denoise_steps, encode
from tasks.samples import encode_samples
from tasks.train import reduce, train_pack
from tasks.versions import publish, push_weights, start_state, step
from tasks.worker.engine import build_engine


def call(body: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
    """Return the result and the facts of a task's body."""
    return body("run", "label", *arguments, **settings)


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
    round_, size = round_of(config, prompts, index), config.fragment_size
    sized = [
        SizedPrompt(prompt, config.size_of(index, group))
        for group, prompt in enumerate(round_.prompts)
    ]
    conditions, _ = call(encode, prompts=sized)
    fragments, segments, columns, step_values = [], [], {}, {}
    for group, prompt in enumerate(round_.prompts):
        parts = []
        for number, first in enumerate(range(0, config.rollout.group_size, size)):
            steps = prompt.num_steps or config.rollout.num_steps
            fragment = Fragment(index, group, number, first, size, num_steps=steps)
            noisy = steps_of_iteration(config, index, steps).noisy
            body: Callable[..., Any] = denoise_steps
            own: dict[str, Any] = {"noisy_steps": noisy, "previous": None}
            if prompt.samples:
                body = encode_samples
                own = {"images": [prompt.samples[sample] for sample in fragment.samples]}
            segment, sampled = call(
                body,
                fragment=fragment,
                steps=range(steps),
                version=state.version,
                conditions=conditions,
                key=sized[group].key,
                run_dir=folder,
                **own,
            )
            asked = {"prompt": prompt, "run_dir": folder}
            _, scored = call(decode_and_score, segment=segment, **asked)
            fragments.append(fragment)
            segments.append(segment)
            parts.append((scored.rewards, np.array([*sampled.step_values.values()]).T))
        joined = {name: np.concatenate([part[name] for part, _ in parts]) for name in parts[0][0]}
        columns[group] = settle(joined, config.rewards, prompt.scores)
        step_values[group] = np.concatenate([kl for _, kl in parts])
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
            segments=segments,
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
