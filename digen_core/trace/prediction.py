"""The planner's prediction of an iteration, as a run's folder keeps it."""

from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from digen_core.inputs.reading import read_json_object

SCHEDULE_OF_RUN: Final = "schedule.json"


class Prediction(BaseModel):
    """What the planner expected of an iteration, of all that the file says of its schedule."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    layout: str
    predicted_seconds: float = Field(gt=0)


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
        return Prediction.model_validate(tree)
    except ValueError as error:
        raise ValueError(f"{path}: it must hold a layout and its predicted_seconds") from error
