"""Model families: one adapter each, looked up by the config's ``model.family``."""

from collections.abc import Callable

from digen_core.config.model import Family, ModelConfig
from digen_core.models.flux import FluxPolicy
from digen_core.models.hunyuan_video import HunyuanVideoPolicy
from digen_core.models.pipeline_policy import PipelinePolicy
from digen_core.models.policy import Part, Policy
from digen_core.models.qwen_image import QwenImagePolicy
from digen_core.models.sd3 import SD3Policy
from digen_core.models.wan import WanPolicy

ADAPTERS: dict[Family, type[PipelinePolicy]] = {
    "flux": FluxPolicy,
    "sd3": SD3Policy,
    "qwen_image": QwenImagePolicy,
    "wan": WanPolicy,
    "hunyuan_video": HunyuanVideoPolicy,
}

LOADERS: dict[Family, Callable[[ModelConfig, frozenset[Part]], Policy]] = {
    family: adapter.load for family, adapter in ADAPTERS.items()
}
