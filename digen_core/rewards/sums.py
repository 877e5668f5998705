"""What rewards say of samples, put together; and the reward of each, the weighted sum of scores."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from digen_core.errors import UserError

Array = NDArray[np.float64]


def joined(parts: Sequence[Mapping[str, ArrayLike]]) -> dict[str, Array]:
    """Return the columns of samples that were scored in several calls, in their order.

    Args:
        parts: of each call the columns, by name; without any there are no columns.

    Raises:
        UserError: a reward has other components in one call than in another.
    """
    names = list(parts[0]) if parts else []
    for part in parts:
        if others := sorted(part.keys() ^ set(names)):
            reward, _, component = others[0].partition("/")
            raise UserError(
                f"reward {reward!r} returned {component!r} of some samples and not of others; it "
                "has to return the same names in each call, such as 0 where one does not apply"
            )
    return {name: np.concatenate([np.asarray(part[name]) for part in parts]) for name in names}


def with_reward(
    columns: Mapping[str, Array], weights: Mapping[str, float], num_samples: int
) -> dict[str, Array]:
    """Return the columns with ``reward``: the scores summed in the order of ``weights``.

    Args:
        columns: float64 [num_samples], with ``<name>/score`` of each reward.
        weights: of the rewards, by name.
        num_samples: how many there are; with no weights their rewards are 0.
    """
    total = np.zeros(num_samples)
    for name, weight in weights.items():
        total += weight * columns[f"{name}/score"]
    return {"reward": total} | {name: own for name, own in columns.items() if name != "reward"}
