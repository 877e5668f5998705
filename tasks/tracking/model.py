"""The result of a run as a model that MLflow registers and loads into a diffusers pipeline.

    import mlflow
    pipeline = mlflow.pyfunc.load_model("models:/shapes/1").get_raw_model()
    pipeline("a red circle", height=32, width=32).images[0]

It is a pyfunc: a copy of `trained_pipeline`, the weights that were trained, and the names of the
base model and of the adapters that the run started from. Of the base model it holds nothing.
"""

import os
import shutil
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from mlflow import pyfunc
from mlflow.models import ModelSignature
from mlflow.types import DataType, ParamSchema, ParamSpec, Schema
from mlflow.types.schema import Array, ColSpec

from digen_core.config.families import FAMILIES
from digen_core.config.run import RunConfig
from digen_core.inputs.weight_files import variant_of
from digen_core.maths.tensors import TORCH_DTYPES
from digen_core.models.families import adapter_of
from digen_core.transport.files import folder_written_whole
from tasks.tracking import trained_pipeline

# An example of an input would be an image's worth of compute.
warnings.filterwarnings("ignore", "(?s).*An input example was not provided")

LOADER: Final = Path(trained_pipeline.__file__)  # goes with the model
_REQUIREMENTS: Final = (
    *("mlflow", "diffusers", "transformers", "peft", "safetensors", "torch", "pandas"),
    *("pillow", "sentencepiece", "protobuf", "ftfy"),
)


def package(config: RunConfig, weights: Path, folder: Path) -> None:
    """Make a folder that MLflow loads.

    Args:
        config: of the run.
        weights: folder that diffusers loads: adapters or a transformer.
        folder: to be made, whole or not at all; one of that name is replaced.
    """
    more = adapter_of(config.model.family).packages(config.model)
    packages = [_pinned(name) for name in (*_REQUIREMENTS, *more)]
    with folder_written_whole(folder) as unfinished:
        pyfunc.save_model(
            str(unfinished),
            loader_module=LOADER.stem,
            code_paths=[str(LOADER)],
            signature=_signature(config),
            pip_requirements=packages,
            model_config=_settings(config),
        )
        shutil.copytree(weights, unfinished / trained_pipeline.WEIGHTS, copy_function=_link)


def _pinned(name: str) -> str:
    """Return a package as pip takes it: in the version that is here, or in any."""
    try:
        return f"{name}=={version(name).partition('+')[0]}"
    except PackageNotFoundError:
        return name


def _settings(config: RunConfig) -> dict[str, Any]:
    """Return what the loader has to know."""
    model, family = config.model, FAMILIES[config.model.family]
    adapter = adapter_of(model.family)
    dtypes = adapter.dtypes(TORCH_DTYPES[model.dtype])
    return {
        "base_model": _found(model.source),
        "pipeline": family.named_for(source_image=model.source_image),
        "revision": model.revision,
        "variant": variant_of(Path(model.source)),
        "dtypes": {part: str(dtype).removeprefix("torch.") for part, dtype in dtypes.items()},
        "device": None,
        "is_lora": config.train.lora is not None,
        "adapters": [
            {**adapter.model_dump(), "path": _found(adapter.path)}
            for adapter in model.adapters.values()
        ],
        "guidance": adapter.guidance_argument,
        "shows_several": model.num_source_images > 1,
        "shift": model.shift,
        "sigmas": list(model.sigmas),
    }


def _found(path: str) -> str:
    """Return a path that holds in other folders, too; hub ids stay."""
    return str(Path(path).resolve()) if Path(path).exists() else path


def _link(source: str, target: str) -> None:
    """Give a file a second name where the disk can, else copy it: a transformer may be large."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _signature(config: RunConfig) -> ModelSignature:
    """Return: a prompt in, and what is edited, an image out, with the evaluations' settings."""
    model = config.model
    settings = [
        ("num_inference_steps", DataType.integer, config.evaluation_steps),
        ("guidance_scale", DataType.double, model.guidance_scale),
        ("height", DataType.integer, model.height),
        ("width", DataType.integer, model.width),
        ("num_frames", DataType.integer, model.num_frames),
        ("max_sequence_length", DataType.integer, model.max_sequence_length),
        ("negative_prompt", DataType.string, model.negative_prompt),
        ("seed", DataType.long, config.seed),
    ]
    if model.guidance_scale_2 is not None:
        settings.append(("guidance_scale_2", DataType.double, model.guidance_scale_2))
    kind = DataType.binary if model.num_source_images < 2 else Array(DataType.binary)
    image = [ColSpec(kind, "image")] if model.source_image else []
    return ModelSignature(
        inputs=Schema([ColSpec(DataType.string, "prompt"), *image]),
        outputs=Schema([ColSpec(DataType.binary, "image")]),
        params=ParamSchema([ParamSpec(name, kind, default) for name, kind, default in settings]),
    )
