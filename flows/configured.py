"""Flows that take a run config: a wrong one is refused in one line when the run starts."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import Flow, get_client, runtime
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound

from digen_core.checkpoints.resume import AUTO
from digen_core.config.load import config_of_tree, tree_of_run
from digen_core.config.merge import merge_configs
from tasks.body import ONCE


class ConfiguredFlow(Flow[..., Any]):
    """A flow with the parameter ``config``, which a deployment gives as a tree of values.

    A flow run may give some of its keys only. Prefect hands over that tree alone, so the
    deployment's own config, or that of the run which is resumed, is laid under it here.
    """

    def validate_parameters(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters in their types.

        Raises:
            UserError: the config is wrong; Prefect shows the message as that of the failed run.
        """
        config = parameters.get("config")
        if isinstance(config, Mapping):
            whole = _completed(config, parameters.get("resume"))
            config = config_of_tree(whole, "the parameter config")
            parameters = {**parameters, "config": config}
        return super().validate_parameters(parameters)


def _completed(given: Mapping[str, Any], resume: str | None) -> Mapping[str, Any]:
    """Return the config of a flow run, of which some keys may be given.

    Args:
        given: the flow run's parameter. It is the deployment's if the flow run has none of its own.
        resume: folder of the run that is resumed, if one is; "auto": the config says which.

    Raises:
        UserError: the run that is to be resumed has no config.
    """
    deployed = _of_deployment()
    if resume and resume != AUTO:
        base = tree_of_run(Path(resume))
        return base if given == deployed else merge_configs(base, given)
    return given if deployed is None else merge_configs(deployed, given)


def _of_deployment() -> Mapping[str, Any] | None:
    """Return the config of the deployment that this process runs; None: it runs none."""
    if FlowRunContext.get() is not None or runtime.deployment.id is None:
        return None  # a flow that is called by another takes what it is given
    with get_client(sync_client=True) as client:
        try:
            deployment = client.read_deployment(UUID(runtime.deployment.id))
        except ObjectNotFound:  # it was deleted after the flow run was made
            return None
    config = deployment.parameters.get("config")
    return config if isinstance(config, Mapping) else None


def configured_flow(**options: Any) -> Callable[[Callable[..., Any]], ConfiguredFlow]:
    """Decorate a function as ``prefect.flow`` does."""
    return lambda function: ConfiguredFlow(function, **ONCE, **options)
