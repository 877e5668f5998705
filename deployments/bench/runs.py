"""Runs of the benchmarks: records of those through Prefect and Dask, and the serial loop."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from digen_core.config.rewards import that_see
from digen_core.config.run import NO_LIMITS, RunConfig
from digen_core.data.prompts import Prompt, evaluation_prompts, train_prompts
from digen_core.errors import UserError
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


def measured_apart(config: RunConfig, name: str, runs_dir: str) -> RunConfig:
    """Return the config of a run that is only measured: every iteration, beside the trainings.

    Args:
        config: of a training.
        name: of the run.
        runs_dir: for its folder, in place of that of the trainings.
    """
    experiment = f"{config.tracking.experiment}-bench"  # on a server
    tracking = config.tracking.model_copy(update={"runs_dir": runs_dir, "experiment": experiment})
    return config.model_copy(update={"name": name, **NO_LIMITS, "tracking": tracking})


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


def evaluate_serially(
    config: RunConfig, policy: Policy, weights: Weights, metric: str = "reward"
) -> float:
    """Return a mean over noiseless samples of the held-out prompts, with given weights.

    Args:
        config: of the run.
        policy: whose weights are replaced.
        weights: to judge.
        metric: what is the mean: ``reward``, or REWARD/COMPONENT of one of the config's rewards.

    Raises:
        UserError: there is no such component.
    """
    rewards = reward_functions(that_see(config.rewards, "samples"), policy.device)
    prompts = evaluation_prompts(config)
    return fmean(prompt_rewards(config, policy, weights, prompts, rewards, metric))


def prompt_rewards(
    config: RunConfig,
    policy: Policy,
    weights: Weights,
    prompts: Sequence[Prompt],
    rewards: Mapping[str, RewardFn],
    metric: str = "reward",
) -> list[float]:
    """Return the mean reward, or component, of each prompt's noiseless samples, by given weights.

    Raises:
        UserError: there is no such component.
    """
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
        if metric not in scores:
            raise UserError(f"no {metric} among {', '.join(scores)}")
        means += scores[metric].reshape(len(few), per_prompt).mean(axis=1).tolist()
    return means


class Records(Observer):
    """An observer of a run that keeps the records of the iterations that it sees."""

    def __init__(self) -> None:
        self.seen: list[IterationRecord] = []

    def on_iteration(self, record: IterationRecord) -> None:
        """Keep the record."""
        self.seen.append(record)
