"""Flows that take a run config: a wrong one is refused in one line when the run starts."""

from collections.abc import Callable
from typing import Any

from prefect import Flow

from digen_core.config_file import config_of_tree


class ConfiguredFlow(Flow[..., Any]):
    """A flow with the parameter ``config``, which a deployment gives as a tree of values."""

    def validate_parameters(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters in their types.

        Raises:
            ConfigError: the config is wrong; Prefect shows the message as that of the failed run.
        """
        config = parameters.get("config")
        if isinstance(config, dict):
            config = config_of_tree(config, "the parameter config")
            parameters = {**parameters, "config": config}
        return super().validate_parameters(parameters)


def configured_flow(**options: Any) -> Callable[[Callable[..., Any]], ConfiguredFlow]:
    """Decorate a function as ``prefect.flow`` does."""
    return lambda function: ConfiguredFlow(function, **options)
