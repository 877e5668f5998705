"""Model families: one adapter each, looked up by the config's ``model.family``."""

from collections.abc import Callable

from digen_core.config import Family, ModelConfig
from digen_core.models.flux import FluxPolicy
from digen_core.models.hunyuan_video import HunyuanVideoPolicy
from digen_core.models.policy import Part, Policy
from digen_core.models.qwen_image import QwenImagePolicy
from digen_core.models.sd3 import SD3Policy
from digen_core.models.wan import WanPolicy

LOADERS: dict[Family, Callable[[ModelConfig, frozenset[Part]], Policy]] = {
    "flux": FluxPolicy.load,
    "sd3": SD3Policy.load,
    "qwen_image": QwenImagePolicy.load,
    "wan": WanPolicy.load,
    "hunyuan_video": HunyuanVideoPolicy.load,
}
