"""The metric by which the best versions of a run are kept: whether the run tells it, and of what.

Every check raises ValueError. Importing this module must not import torch.
"""

from collections.abc import Mapping
from typing import Final

from digen_core.algorithms.base import Algorithm
from digen_core.config.checkpoint import EVALUATION, CheckpointConfig
from digen_core.config.rewards import RewardConfig, relative, that_see

_TOTALS: Final = ("reward/mean", "evaluation/reward")
_OF_UPDATES: Final = (
    "loss",
    "clip_fraction",
    "stale_clip_fraction",
    "approx_kl",
    "max_log_ratio",
    "grad_norm",
    "gradient_cosine",
    "learning_rate",
)
_OF_LOG_PROBS: Final = ("replay_error", "mean_replay_error")


def check_best(
    checkpoints: CheckpointConfig, rewards: Mapping[str, RewardConfig], algorithm: Algorithm
) -> None:
    """Refuse to look for the best version by what says nothing of it, or is not told."""
    metric = checkpoints.best_by
    if not checkpoints.keep_best:
        return
    _check_tells(metric, rewards)
    if metric.startswith(EVALUATION):
        _check_evaluated(metric, rewards)
    else:
        _check_of_iterations(metric, rewards, algorithm)


def _check_evaluated(metric: str, rewards: Mapping[str, RewardConfig]) -> None:
    """Refuse what no evaluation tells."""
    name, _, part = metric.removeprefix(EVALUATION).partition("/")
    if metric == "evaluation/reward" or (name in rewards and part):
        return
    what = f"this config has no reward {name!r}"
    if name in rewards:
        what = f"the reward {name!r} has several numbers"
    raise ValueError(
        f"checkpoints.best_by is {metric!r}, but {what}; use "
        f"evaluation/reward, or evaluation/NAME/score with one of {', '.join(rewards)}."
    )


def _check_of_iterations(
    metric: str, rewards: Mapping[str, RewardConfig], algorithm: Algorithm
) -> None:
    """Refuse what no iteration tells."""
    kind, _, name = metric.partition("/")
    reward, _, part = name.partition("/")
    if kind == "reward" and reward in rewards and part:
        return
    if kind == "reward":
        known = ["mean", "std", *(f"{own}/score" for own in that_see(rewards, "samples"))]
        known += ["kl"] * bool(algorithm.reward_kl) + ["margin"] * algorithm.needs_margins
    else:
        known = [*_OF_UPDATES, *(() if algorithm.trains_clean else _OF_LOG_PROBS)]
        known += ["kl"] * bool(algorithm.kl_coefficient)
    if name not in known:
        raise ValueError(
            f"checkpoints.best_by is {metric!r}, which no iteration of this config tells; use "
            f"evaluation/reward, or one of {', '.join(f'{kind}/{own}' for own in known)}."
        )


def _check_tells(metric: str, rewards: Mapping[str, RewardConfig]) -> None:
    """Refuse what is the same of all versions, and not kept."""
    names, others = relative(rewards), that_see(rewards, "samples")
    scores = [f"reward/{name}/score" for name in names]
    asks_nothing = tuple(f"{EVALUATION}{name}/" for name in names) if others else EVALUATION
    weighs = any(reward.weight for reward in others.values())
    is_one = metric in scores or metric.startswith(asks_nothing)
    if names and (is_one or (not weighs and metric in _TOTALS)):
        raise ValueError(
            f"checkpoints.best_by is {metric!r}, but rewards that tell only the samples of a group "
            f"apart ({', '.join(names)}) do not tell one version from another; use another "
            "metric, or keep_best 0."
        )
