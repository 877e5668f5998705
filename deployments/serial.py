"""The serial loop of a config in this process, as the benchmarks compare runs with it."""

from collections.abc import Callable

import torch
from diffusers.utils.logging import disable_progress_bar

from digen_core.config import RunConfig
from digen_core.data import read_prompts
from digen_core.models import LOADERS
from digen_core.models.policy import ALL_PARTS
from digen_core.models.trainable import make_trainable
from digen_core.reference import SerialRun, post_train_serially
from digen_core.rewards import reward_functions


def train_serially(
    config: RunConfig, on_iteration: Callable[[int, dict[str, float]], None]
) -> SerialRun:
    """Load the model and train it, with as many threads as a worker has.

    Args:
        config: of the run.
        on_iteration: is told each finished iteration and its row of metrics.
    """
    disable_progress_bar()
    torch.set_num_threads(config.cluster.threads_per_worker)
    policy = LOADERS[config.model.family](config.model, ALL_PARTS)
    make_trainable(
        policy,
        config.train.lora,
        keep_reference=config.keeps_reference,
        gradient_checkpointing=config.train.gradient_checkpointing,
    )
    return post_train_serially(
        config,
        policy,
        read_prompts(config.prompts.train),
        reward_functions(config.rewards, policy.device),
        on_iteration=on_iteration,
    )
