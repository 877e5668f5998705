"""The base of every node of a config, of a plan and of a report."""

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """A config node: immutable, unknown keys are errors, attribute docstrings are the help text."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False
    )
