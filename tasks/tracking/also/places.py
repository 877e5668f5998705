"""Places: where a run's metrics and pictures go beside MLflow, by name in ``tracking.also``.

To add one is to write its file, and to name it here and in
`digen_core.config.schedule.PlaceName`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Final, NamedTuple, Protocol, cast

from digen_core.config.run import RunConfig
from digen_core.errors import UserError
from tasks.tracking.spool import Spool


class Point(NamedTuple):
    """Where something stands on a curve."""

    number: int
    """Of the run's entry: each is told once."""

    axis: str
    """What is counted: "iteration", or "policy_version" for what is of an evaluation."""

    step: int
    seconds: float
    """When it was logged, since the epoch."""


class Place(Protocol):
    """A place that a run's metrics and pictures go to. One thread calls it."""

    first: int
    """The first entry that it lacks."""

    def log(self, point: Point, values: Mapping[str, float]) -> None:
        """Take metrics."""

    def show(self, point: Point, name: str, picture: Path) -> None:
        """Take the image grid of an evaluation, as PNG."""

    def flush(self, number: int) -> None:
        """Have all entries before one where they stay."""

    def close(self, status: str) -> None:
        """Take no more; the status is MLflow's word for how the run ended."""


OPENERS: Final = {
    "wandb": "weights_and_biases:WandbRun",
    "tensorboard": "event_files:EventFiles",
}
CHECKS: Final = {"wandb": "weights_and_biases:check_login"}


def open_place(name: str, config: RunConfig, spool: Spool) -> Place:
    """Open a place for a run, or what it has of the run."""
    return cast(Place, _found(OPENERS[name])(config, spool))


def check_places(config: RunConfig) -> None:
    """Check that the places of a config can be used by this user.

    Raises:
        UserError: one cannot.
    """
    for name in config.tracking.also:
        if name not in CHECKS:
            continue
        try:
            _found(CHECKS[name])()
        except UserError:
            raise
        except Exception as error:  # of the library
            why = " ".join(str(error).split())
            raise UserError(f"tracking.also names {name}, which cannot be used: {why}") from error


def _found(name: str) -> Callable[..., object]:
    found: Callable[..., object] = resolve_name(f"tasks.tracking.also.{name}")
    return found
