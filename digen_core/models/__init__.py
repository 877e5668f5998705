"""Model families: one adapter each, looked up by the config's ``model.family``."""

from collections.abc import Callable

from digen_core.config import ModelConfig
from digen_core.models.flux import load_flux
from digen_core.models.policy import Part, Policy

LOADERS: dict[str, Callable[[ModelConfig, frozenset[Part]], Policy]] = {"flux": load_flux}
