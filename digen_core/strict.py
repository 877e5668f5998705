"""The base of everything that is read from a file or a form."""

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """A config node: immutable, unknown keys are errors, attribute docstrings are the help text."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False
    )


class ConfigError(ValueError):
    """A config, or something it names, cannot be used; the message is one line for the user."""
