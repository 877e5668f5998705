"""What a run does where a number is NaN or infinite.

Importing this module must not import torch.
"""

from typing import Literal

from pydantic import PositiveInt

from digen_core.strict import Strict


class NumericsConfig(Strict):
    """What follows a number that is NaN or infinite. Its input is kept, see docs/numerics.md.

    For a reward that is no number, see `rewards.NAME.on_failure`. Weights that are none always end
    the run.
    """

    samples: Literal["fail", "drop"] = "fail"
    """Of a latent, a log-prob or a pixel. fail: the run ends. drop: the sample's group is not
    trained; another prompt's takes its place while `rollout.refill` has some left."""

    updates: Literal["fail", "skip"] = "fail"
    """Of a loss or a gradient. fail: the run ends. skip: the update is not made, as if none of its
    groups had a signal: weights, moments and learning rate stay."""

    patience: PositiveInt = 10
    """Iterations in a row that may make no update because of what is dropped or skipped, for want
    of a score too; after that many the run ends."""
