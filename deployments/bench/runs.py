"""Runs of the benchmarks: records of those through Prefect and Dask, and the serial loop."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from digen_core.config.rewards import that_see
from digen_core.config.run import RunConfig
from digen_core.data.prompts import Prompt, evaluation_prompts, train_prompts
from digen_core.models.loading import load_trainable
from digen_core.models.policy import ALL_PARTS, Policy
from digen_core.models.trainable import set_weights
from digen_core.records import IterationRecord
from digen_core.reference.loop import SerialRun, post_train_serially
from digen_core.rewards import reward_functions
from digen_core.rewards.asked import Asked, for_samples
from digen_core.rewards.scoring import RewardFn, score_images
from digen_core.rollout.evaluation import clean_samples
from digen_core.rollout.seen import as_seen
from digen_core.transport.arrays import Weights
from flows.runtime.observers import Observer

PROMPTS_AT_ONCE = 8


def train_serially(
    config: RunConfig,
    on_iteration: Callable[[int, dict[str, float]], None] = lambda index, row: None,
    *,
    policy: Policy | None = None,
) -> SerialRun:
    """Train with as many threads as a worker has.

    Args:
        config: of the run.
        on_iteration: is called with each finished iteration and its row of metrics.
        policy: loaded for the config; None loads one.
    """
    policy = policy or load_trainable(config, ALL_PARTS)
    return post_train_serially(
        config,
        policy,
        train_prompts(config),
        reward_functions(config.rewards, policy.device),
        on_iteration=on_iteration,
    )


def evaluate_serially(config: RunConfig, policy: Policy, weights: Weights) -> float:
    """Return the mean reward of noiseless samples of the held-out prompts, with given weights."""
    rewards = reward_functions(that_see(config.rewards, "samples"), policy.device)
    return fmean(prompt_rewards(config, policy, weights, evaluation_prompts(config), rewards))


def prompt_rewards(
    config: RunConfig,
    policy: Policy,
    weights: Weights,
    prompts: Sequence[Prompt],
    rewards: Mapping[str, RewardFn],
) -> list[float]:
    """Return the mean reward of each prompt's noiseless samples, with given weights."""
    set_weights(policy, weights)
    per_prompt = config.evaluation.samples_per_prompt
    means: list[float] = []
    for first in range(0, len(prompts), PROMPTS_AT_ONCE):
        few = prompts[first : first + PROMPTS_AT_ONCE]
        x = clean_samples(
            policy,
            few,
            range(first, first + len(few)),
            num_samples=per_prompt,
            num_steps=config.evaluation_steps,
            seed=config.seed,
        )
        asked = Asked.of(for_samples(few, per_prompt), config.model.size, policy.device)
        configs = that_see(config.rewards, "samples")
        images, latents = as_seen(policy, x, configs)
        scores = score_images(rewards, configs, images, *asked, latents=latents)
        means += scores["reward"].reshape(len(few), per_prompt).mean(axis=1).tolist()
    return means


class Records(Observer):
    """An observer of a run that keeps the records of the iterations that it sees."""

    def __init__(self) -> None:
        self.seen: list[IterationRecord] = []

    def on_iteration(self, record: IterationRecord) -> None:
        """Keep the record."""
        self.seen.append(record)
