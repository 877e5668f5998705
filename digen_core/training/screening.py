"""Screening: which candidates of a prompt are worth generating again as samples of its group.

Source: Sol-RL (arXiv:2604.06916), which generates many candidates in 4 bits and in few steps, and
of their noises those again in full that the highest and the lowest rewards came of.
"""

from collections.abc import Collection, Mapping

import numpy as np
import torch

from digen_core.config.run import RunConfig
from digen_core.maths.advantages import best_of_n, mixed_advantages
from digen_core.training.advantages import lacking_score, mixed_rows


def chosen_candidates(
    config: RunConfig, column: Mapping[str, np.ndarray], nonfinite: Collection[int] = ()
) -> tuple[int, ...] | None:
    """Return the candidates that a group's samples stand for, ascending: as many as it has.

    They are the ceil(n / 2) best and the floor(n / 2) worst by what advantages are made of; those
    that lack a number are none of them. None: too few are left, and the group is dropped.

    Args:
        config: of the run.
        column: what scoring said of the candidates, [C] of each component.
        nonfinite: candidates that are NaN or infinite.
    """
    sound = sound_candidates(config, column, nonfinite)
    if len(sound) < config.rollout.group_size:
        return None
    kept = {name: np.asarray(values)[sound] for name, values in column.items()}
    rows, weights, counted = mixed_rows(config, {0: kept})
    one = torch.zeros(len(sound), dtype=torch.int64)
    values = mixed_advantages(rows, one, weights, mix=config.algorithm.mix, counted=counted)
    best = best_of_n(values, one, config.rollout.group_size)
    return tuple(sound[place] for place in best.tolist())


def sound_candidates(
    config: RunConfig, column: Mapping[str, np.ndarray], nonfinite: Collection[int] = ()
) -> list[int]:
    """Return the candidates that lack no number; arguments as of `chosen_candidates`."""
    lacking = {*nonfinite, *np.flatnonzero(lacking_score(config, column)).tolist()}
    return [place for place in range(len(column["reward"])) if place not in lacking]


def rank_correlation(screened: np.ndarray, rewards: np.ndarray) -> float | None:
    """Return Spearman's correlation of candidates' rewards with those of their samples; ties share.

    None where either are all equal: nothing is ranked.

    Args:
        screened: rewards [n] of the chosen candidates.
        rewards: [n] of the samples that stand for them.
    """
    from scipy.stats import spearmanr

    if np.ptp(screened) == 0 or np.ptp(rewards) == 0:
        return None
    return float(spearmanr(screened, rewards).statistic)
