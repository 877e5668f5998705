"""The planner's prediction of an iteration, as a run's folder keeps it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from digen_core.inputs.reading import read_json_object

SCHEDULE_OF_RUN: Final = "schedule.json"


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the planner expected of an iteration."""

    layout: str
    predicted_seconds: float


def read_prediction(run_dir: Path) -> Prediction | None:
    """Return the prediction that a run's folder keeps, if it keeps one.

    Raises:
        ValueError: the file cannot be understood.
        OSError: it cannot be read.
    """
    path = run_dir / SCHEDULE_OF_RUN
    if not path.exists():
        return None
    try:
        tree = read_json_object(path, "the prediction")
        return Prediction(str(tree["layout"]), float(tree["predicted_seconds"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: it must hold a layout and its predicted_seconds") from error
