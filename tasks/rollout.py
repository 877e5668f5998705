"""Rollout tasks: encode a prompt, denoise some steps of a fragment, decode and score it."""

from time import time

import numpy as np
from prefect import task

from digen_core.control.protocol import Fragment
from digen_core.data import Metadata
from digen_core.rewards.scoring import score_images
from digen_core.rollout.sampler import DenoisedStep, ReferenceKl, denoise, initial_latent
from digen_core.transport.arrays import (
    Arrays,
    to_array,
    to_arrays,
    to_stored,
    to_tensor,
    to_tensors,
)
from digen_core.transport.segment import Segment
from tasks import receipts
from tasks.engine import Engine, working


@task(task_run_name="{label}")
def encode(run_id: str, label: str, prompts: list[str]) -> dict[str, Arrays]:
    """Embed the prompts of some groups, each by itself: one row that all its fragments share."""
    with working(run_id) as engine:
        return {prompt: to_arrays(engine.policy.encode([prompt])) for prompt in prompts}


@task(name="denoise", task_run_name="{label}")
def denoise_steps(
    run_id: str,
    label: str,
    *,
    fragment: Fragment,
    steps: range,
    noisy_steps: tuple[int, ...],
    version: int,
    conditions: dict[str, Arrays],
    prompt: str,
    previous: Segment | None,
) -> Segment:
    """Run denoising steps of a fragment with one policy version, after ``previous``'s."""
    with working(run_id, version=version) as engine:
        started = time()
        with engine.old_policy():
            done = _denoise(engine, fragment, steps, noisy_steps, conditions[prompt], previous)
        precision = engine.config.rollout.storage
        latents = [done[0].x, *(step.x_next for step in done)]
        segment = Segment(
            fragment,
            steps.start,
            np.stack([to_stored(x, precision) for x in latents]),
            {step.step: to_array(step.logprob) for step in done if step.logprob is not None},
            version,
        )
        seconds = (time() - started) / len(steps)
    logprobs = {str(step): values.tolist() for step, values in segment.logprobs.items()}
    kl = {str(step.step): step.kl.tolist() for step in done if step.kl is not None}
    facts = {"version": version, "logprobs": logprobs, "kl": kl, "seconds_per_step": seconds}
    receipts.attach(facts)
    return segment


def _denoise(
    engine: Engine,
    fragment: Fragment,
    steps: range,
    noisy_steps: tuple[int, ...],
    condition: Arrays,
    previous: Segment | None,
) -> list[DenoisedStep]:
    """Return the steps as they were sampled."""
    policy, config = engine.policy, engine.config
    group = (fragment.iteration, fragment.group)
    if previous is None:
        x = initial_latent(
            policy,
            seed=config.seed,
            group=group,
            samples=fragment.samples,
            config=config.rollout,
        )
    else:
        x = to_tensor(previous.x, policy.device)
    return list(
        denoise(
            policy,
            x,
            to_tensors(condition, policy.device),
            engine.sigmas(config.rollout.num_steps),
            steps=steps,
            noisy_steps=noisy_steps,
            config=config.rollout,
            seed=config.seed,
            group=group,
            samples=fragment.samples,
            reference=ReferenceKl.of(config, fragment.iteration),
        )
    )


@task(name="decode and score", task_run_name="{label}")
def decode_and_score(
    run_id: str, label: str, *, prompt: str, metadata: Metadata, segment: Segment
) -> None:
    """Decode the clean latents of a fragment and reward the images."""
    with working(run_id) as engine:
        images = engine.policy.decode(to_tensor(segment.x, engine.policy.device))
        count = len(images)
        asked = [prompt] * count, [metadata] * count
        columns = score_images(engine.rewards, engine.config.rewards, images, *asked)
    receipts.attach({"rewards": {name: values.tolist() for name, values in columns.items()}})
