"""The adapters of the model families, found by the config's ``model.family``."""

from functools import cache
from pkgutil import resolve_name

from digen_core.config.families import FAMILIES
from digen_core.models.pipeline.policy import PipelinePolicy


@cache
def adapter_of(family: str) -> type[PipelinePolicy]:
    """Return a family's adapter; only its own pipeline is imported, which takes seconds."""
    name = f"{__name__}.{FAMILIES[family].adapter}"
    adapter: type[PipelinePolicy] = resolve_name(name)
    return adapter
