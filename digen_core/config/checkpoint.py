"""The config table ``checkpoints``: which of a run's checkpoints are kept.

Importing this module must not import torch.
"""

from typing import Final, Literal, Self

from pydantic import Field, model_validator

from digen_core.strict import Strict

EVALUATION: Final = "evaluation/"
"""What a metric of a version's evaluation begins with; ``evaluation/reward`` is the total."""

_BEGINNINGS: Final = (EVALUATION, "reward/", "train/")


class CheckpointConfig(Strict):
    """The checkpoints that are written and kept; a new one is complete before an old one goes."""

    every: int = Field(1, ge=1)
    """Iterations between two checkpoints, of those that make a version; there is one of the last
    version, too. What is lost with the optimizer's worker is trained again. Of all weights of a
    large model they are large: 12 bytes of each, 16 with a moving average."""

    keep_last: int = Field(2, ge=1)
    """The newest; with two, a damaged one costs one iteration."""

    keep_every: int = Field(0, ge=0)
    """Also the first version at or past each multiple of this; 0 for none."""

    keep_best: int = Field(0, ge=0)
    """Also as many as this of the best by best_by; 0 for none. Where that is evaluation/..., each
    version that is evaluated has a checkpoint, beside those of every."""

    best_by: str = "evaluation/reward"
    """Metric of the best: evaluation/reward, or evaluation/NAME/score, of the versions that were
    evaluated, for which evaluation.every is 1 or more; or a metric of the iteration that made a
    version: reward/mean, or train/kl where there is an algorithm.kl_coefficient."""

    best_is: Literal["highest", "lowest"] = "highest"
    """Which values of best_by are the best."""

    @property
    def are_of_evaluated(self) -> bool:
        """Whether each version that is evaluated has a checkpoint, beside those that are due."""
        return self.keep_best > 0 and self.best_by.startswith(EVALUATION)

    def are_due(self, number: int) -> bool:
        """Say whether there is a checkpoint after so many iterations that made a version."""
        return number > 0 and number % self.every == 0

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.best_by.startswith(_BEGINNINGS):
            raise ValueError(
                f"checkpoints.best_by is {self.best_by!r}; use a metric that begins with "
                f"{', '.join(_BEGINNINGS[:-1])} or {_BEGINNINGS[-1]}, for example reward/mean."
            )
        return self
