"""The diffusers pipeline of a family: which class it is, and how it is loaded or built."""

import inspect
from abc import ABC
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, get_args

import diffusers
import torch
from diffusers import AutoModel, DiffusionPipeline
from torch import nn

from digen_core.config.families import FAMILIES
from digen_core.config.model import ModelConfig
from digen_core.errors import ConfigError
from digen_core.gang.members import Gang
from digen_core.gang.stage_files import load_stage
from digen_core.inputs.weight_files import variant_of
from digen_core.maths.tensors import TORCH_DTYPES
from digen_core.models.adapters import fold_adapters
from digen_core.models.expert_names import parts_in
from digen_core.models.policy import Part

_OF_PROMPTS: Final = (
    "text_encoder",
    "connectors",
    "tokenizer",
    "processor",
    "image_encoder",
    "image_processor",
    "feature_extractor",
)
"""How the names of components begin that only embed prompts and what they come with."""


class FamilyPipeline(ABC):
    """The pipeline that a family has, before anything is done with it."""

    pipeline_class: ClassVar[Any]
    vae_class: ClassVar[Any]
    vae_in_float32: ClassVar[bool] = False  # also where the model is half precision
    not_in_float16: ClassVar[tuple[str, ...]] = ()  # parts that overflow in it: bfloat16 then
    unused_parts: ClassVar[tuple[str, ...]] = ()  # of the pipeline, which nobody loads

    @classmethod
    def load_pipeline(
        cls, config: ModelConfig, parts: frozenset[Part], gang: Gang, device: torch.device
    ) -> Any:
        """Load the named parts of a folder or hub id, each to where it is to be.

        Args:
            config: path, revision and dtype.
            parts: what the role needs.
            gang: whose member it is for.
            device: for all that does not wait on the host.

        Raises:
            OSError: a part is not there.
            ConfigError: an adapter does not fit the model, or its class is another one.
        """
        kind, dtype = cls.class_of(config), TORCH_DTYPES[config.dtype]
        left_out = cls._left_out(config, parts, kind)
        if gang.stages > 1:
            folder, family = cls.folder_of(config), FAMILIES[config.family]
            for part in parts_in(folder):
                left_out[part] = load_stage(folder / part, family, gang, dtype, device)
        pipeline = kind.from_pretrained(
            config.source,
            revision=config.revision,
            variant=variant_of(Path(config.source)),
            dtype=cls.dtypes(dtype),
            **left_out,
        )
        pipeline.set_progress_bar_config(disable=True)
        fold_adapters(pipeline, config.adapters)
        waiting = {*config.offload} - {"transformer"}
        if gang.shards_weights:
            waiting.add("transformer")
        for name, module in pipeline.components.items():
            if isinstance(module, nn.Module) and name not in left_out:
                place = "cpu" if part_of(name) in waiting else device
                module.to(place).eval().requires_grad_(False)
        return pipeline

    @classmethod
    def _left_out(cls, config: ModelConfig, parts: frozenset[Part], kind: Any) -> dict[str, Any]:
        """Return what a pipeline of a class does not load itself: what stands there, or None."""
        left_out: dict[str, Any] = dict.fromkeys(cls.unused_parts)
        if "text_encoders" not in parts:
            names = inspect.signature(kind.__init__).parameters
            left_out |= {name: None for name in names if name.startswith(_OF_PROMPTS)}
        else:
            left_out |= cls.text_parts(config, kind)
        if "vae" not in parts:
            settings = cls.vae_class.load_config(
                config.source, subfolder="vae", revision=config.revision
            )
            with torch.device("meta"):
                left_out["vae"] = cls.vae_class.from_config(settings)
        return left_out

    @classmethod
    def folder_of(cls, config: ModelConfig) -> Path:
        """Return the folder of the pipeline, of a hub id that of the cache."""
        folder = Path(config.source)
        if folder.is_dir():
            return folder
        return Path(cls.class_of(config).download(config.source, revision=config.revision))

    @classmethod
    def dtypes(cls, dtype: torch.dtype) -> dict[str, torch.dtype]:
        """Return what from_pretrained takes: dtypes of parts, of all others the model's."""
        found = {"default": dtype}
        if cls.vae_in_float32:
            found["vae"] = torch.promote_types(dtype, torch.float32)
        if dtype == torch.float16:
            found |= dict.fromkeys(cls.not_in_float16, torch.bfloat16)
        return found

    @classmethod
    def packages(cls, config: ModelConfig) -> tuple[str, ...]:
        """Return what the stock pipeline of a model takes beside what digen does."""
        return ()

    @classmethod
    def text_parts(cls, config: ModelConfig, kind: Any) -> dict[str, Any]:
        """Return parts of a pipeline of a class, beside its text encoders, that load otherwise."""
        return {}

    @classmethod
    def class_of(cls, config: ModelConfig) -> Any:
        """Return the class of a model's pipeline: that which its index names, if there are several.

        Of a hub id the index is first seen here: a class alone would load another's parts, such as
        Sana's those of Sana-Sprint, which sees other noise levels.

        Raises:
            ConfigError: it names another, or one that is shown no source image where there are.
        """
        settings = DiffusionPipeline.load_config(config.source, revision=config.revision)
        config.require_pipeline(settings)
        if not FAMILIES[config.family].other_pipelines:
            return cls.pipeline_class
        return getattr(diffusers, settings["_class_name"])

    @classmethod
    def assembled(cls, config: ModelConfig, parts: Mapping[str, Any], folder: Path) -> Any:
        """Return a pipeline of parts that were built from the settings in a folder."""
        return cls.pipeline_class(**parts)

    @classmethod
    def build_pipeline(cls, config: ModelConfig, folder: Path, device: torch.device) -> Any:
        """Build the transformer from its settings on a device, and the VAE on the meta device.

        Raises:
            OSError: settings of one of them are not there.
            ConfigError: the transformer is of another class than the family's.
        """
        required = inspect.signature(cls.pipeline_class.__init__).parameters
        parts: dict[str, Any] = {
            name: None for name, part in required.items() if part.default is part.empty
        }
        parts.pop("self")
        names = parts_in(folder)
        with device:
            for name in names:
                settings = AutoModel.load_config(folder, subfolder=name)
                _check_class(config, settings["_class_name"], required["transformer"].annotation)
                parts[name] = AutoModel.from_config(settings)
        with torch.device("meta"):
            parts["vae"] = cls.vae_class.from_config(cls.vae_class.load_config(folder / "vae"))
        for name in (*names, "vae"):
            parts[name].eval().requires_grad_(False)
        return cls.assembled(config, parts, folder)


def part_of(component: str) -> Part:
    """Return the part that a component of a pipeline belongs to."""
    if component.startswith(("text_encoder", "image_encoder", "connectors")):
        return "text_encoders"
    return "vae" if component == "vae" else "transformer"


def _check_class(config: ModelConfig, found: str, annotation: Any) -> None:
    """Check that a transformer is of the class, or the optional class, that a pipeline takes."""
    wanted = [
        kind.__name__ for kind in (annotation, *get_args(annotation)) if inspect.isclass(kind)
    ]
    if found not in wanted:
        raise ConfigError(
            f"model.path {config.path} holds a {found}, but model.family {config.family!r} needs a "
            f"{wanted[0]}"
        )
