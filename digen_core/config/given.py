"""Samples that come with the prompts, and their rewards: what cannot work with them.

Every check raises ValueError. Importing this module must not import torch.
"""

from collections.abc import Mapping

from digen_core.algorithms.base import Algorithm
from digen_core.config.families import FAMILIES
from digen_core.config.model import ModelConfig
from digen_core.config.prompts import PromptsConfig
from digen_core.config.rewards import RewardConfig, given
from digen_core.config.rollout import RolloutConfig


def check_given_samples(
    prompts: PromptsConfig, rollout: RolloutConfig, algorithm: Algorithm, model: ModelConfig
) -> None:
    """Refuse samples from files that nothing can be learnt from, or that cannot be encoded."""
    columns = prompts.sample_columns
    if not columns:
        if prompts.empty_fraction:
            raise ValueError(
                f"prompts.empty_fraction is {prompts.empty_fraction:g}, but samples are generated, "
                "of prompts that a model is given; name the columns of samples that come with the "
                "prompts (prompts.sample_columns), or set it to 0."
            )
        return
    what = f"prompts.sample_columns is {list(columns)}"
    if len({*columns}) < len(columns):
        raise ValueError(f"{what}, which names a column twice; name one for each sample.")
    if not algorithm.trains_clean:
        raise ValueError(
            f"{what}, but algorithm.type {algorithm.type} learns from the steps that led to "
            "samples, which no file holds; use dpo, dgpo, diffusion_nft or awm."
        )
    if FAMILIES[model.family].makes_videos:
        raise ValueError(
            f"{what}, but model.family {model.family} makes videos; samples come from files for "
            "families of images only."
        )
    if len(columns) != rollout.group_size:
        raise ValueError(
            f"{what}, {len(columns)} of them, but rollout.group_size is {rollout.group_size}; name "
            f"a column for each sample of a group, or set rollout.group_size to {len(columns)}."
        )


def check_given_rewards(rewards: Mapping[str, RewardConfig], prompts: PromptsConfig) -> None:
    """Refuse rewards of rows that do not fit the samples that come with them."""
    for name, reward in given(rewards).items():
        if not prompts.sample_columns:
            raise ValueError(
                f"rewards.{name} is what the rows of the prompts say of samples that come with "
                "them, but prompts.sample_columns names none; name the columns of these images, "
                "or use another reward."
            )
        if bool(reward.columns) == bool(reward.values):
            raise ValueError(
                f"rewards.{name} has {'both' if reward.values else 'neither'} columns "
                f"{'and' if reward.values else 'nor'} values; set one of them: the columns of the "
                "numbers, or the numbers of every row."
            )
        key = "columns" if reward.columns else "values"
        found, count = [*reward.columns, *reward.values], len(prompts.sample_columns)
        if len(found) != count:
            raise ValueError(
                f"rewards.{name}.{key} is {found}, {len(found)} of them, but a row has {count} "
                "samples (prompts.sample_columns); give one for each, in their order."
            )
