"""Relative rewards: how a sample compares with the others of its group, which is all they say.

They are the rewards that see groups, or the scores of a group (``sees`` in their configs). The mean
of win rates is 1/2 in every group of every iteration, whatever the policy has learnt: no mean is
shown of such scores, nor of a sum that has them in it. Nor is one of what rows say of samples that
come with them, which the policy has no part in.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from digen_core.config.rewards import RewardConfig, ranked, relative, that_see
from digen_core.config.rewards.ranks import RankedConfig
from digen_core.rewards.sums import with_reward

Array = NDArray[np.float64]

NO_OPPONENT: Final = 0.5
"""Win rate of a sample that is compared with no other."""


def win_rates(scores: Array, margin: float = 0.0) -> tuple[Array, Array]:
    """Return the share of the others that each sample is better than, and of those it ties with.

    Half of the ties count as won, so the shares add up to n / 2; they are the mean ranks of equal
    scores, from 0 to 1.

    Args:
        scores: [n] of a group.
        margin: scores that differ by no more than this tie.
    """
    count = len(scores)
    if count < 2:
        return np.full(count, NO_OPPONENT), np.zeros(count)
    with np.errstate(over="ignore"):
        differences = scores[:, None] - scores[None, :]
    num_tied = (np.abs(differences) <= margin).sum(axis=1) - 1  # with itself it ties, too
    num_won = (differences > margin).sum(axis=1)
    return (num_won + num_tied / 2) / (count - 1), num_tied / (count - 1)


def with_ranks(
    columns: Mapping[str, Array], rewards: Mapping[str, RewardConfig]
) -> dict[str, Array]:
    """Return the columns of one group with those of the rewards that see scores.

    Samples that lack the score are ranked neither: they are marked as those of the other reward.

    Args:
        columns: of all samples of a group, with ``<name>/score`` of each reward that is called.
        rewards: of the config, by name.
    """
    found = dict(columns)
    for name, reward in ranked(rewards).items():
        found |= {f"{name}/{key}": own for key, own in _ranked(columns, reward).items()}
    return found


def _ranked(columns: Mapping[str, Array], reward: RankedConfig) -> dict[str, Array]:
    scores, mark = columns[f"{reward.of}/score"], columns.get(f"{reward.of}/failed")
    if mark is None:
        rates, ties = win_rates(scores, reward.margin)
        return {"score": rates, "ties": ties}
    known, rates = mark == 0, np.zeros(len(scores))
    rates[known], _ = win_rates(scores[known], reward.margin)
    return {"score": rates, "failed": mark}


def without_relative(
    columns: Mapping[str, Array], rewards: Mapping[str, RewardConfig]
) -> dict[str, Array]:
    """Return the columns of which means over groups can be compared between iterations.

    The scores of relative rewards are left out, and ``reward`` is the weighted sum of the others;
    where these weigh nothing, there is none.
    """
    names = relative(rewards)
    if not names:
        return dict(columns)
    left_out = {"reward", *(f"{name}/score" for name in names)}
    kept = {name: values for name, values in columns.items() if name not in left_out}
    weights = {name: own.weight for name, own in that_see(rewards, "samples").items()}
    if not any(weights.values()):
        return kept
    return with_reward(kept, weights, len(columns["reward"]))
