"""The reward that is a function or class of the user's own."""

from typing import Literal

from pydantic import Field

from digen_core.config.rewards.base import ChoosesInput, Sees


class FunctionConfig(ChoosesInput):
    """A function or class of the user's own."""

    type: Literal["function"] = "function"

    sees: Sees = "samples"
    """samples: each for itself; groups: it is called with all samples of a prompt at once, so that
    the scores say how they compare."""

    function: str
    """`module:function`, or `module:Class`, of which each worker makes one object."""

    options: dict[str, str | int | float | bool] = Field(default_factory=dict)
    """Arguments of the class, besides `device`."""
