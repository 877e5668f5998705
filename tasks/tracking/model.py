"""What a run made, as a model that MLflow registers and loads into a diffusers pipeline.

    import mlflow
    pipeline = mlflow.pyfunc.load_model("models:/shapes/1").get_raw_model()
    pipeline("a red circle", height=32, width=32).images[0]

Adapters are MLflow's own flavour ``mlflow.diffusers``: the weights of the LoRA and the name of the
base model. A whole transformer is a pyfunc of the same form, by `full_pipeline`. Neither holds the
rest of the base model.
"""

import os
import shutil
import warnings
from pathlib import Path
from typing import Final

import mlflow.diffusers
from mlflow import pyfunc
from mlflow.models import Model, ModelSignature
from mlflow.models.model import MLMODEL_FILE_NAME
from mlflow.types import DataType, ParamSchema, ParamSpec, Schema
from mlflow.types.schema import ColSpec

from digen_core.config import RunConfig

# An example of an input would be an image's worth of compute.
warnings.filterwarnings("ignore", "(?s).*An input example was not provided")

LOADER: Final = Path(__file__).with_name("full_pipeline.py")  # goes with the model


def package(config: RunConfig, weights: Path, folder: Path) -> None:
    """Make a folder that MLflow loads.

    Args:
        config: of the run.
        weights: what `save_for_diffusers` wrote: adapters or a transformer.
        folder: to be made; one of that name is replaced.
    """
    shutil.rmtree(folder, ignore_errors=True)
    base, revision = config.model.path, config.model.revision
    if Path(base).is_dir():
        base = str(Path(base).resolve())
    if config.train.lora is not None:
        _package_adapters(weights, folder, base, revision, _signature(config))
    else:
        _package_transformer(weights, folder, base, revision, _signature(config))


def _package_adapters(
    weights: Path, folder: Path, base: str, revision: str | None, signature: ModelSignature
) -> None:
    mlflow.diffusers.save_model(str(weights), str(folder), base, signature=signature)
    if revision is not None:  # else MLflow has noted the newest one
        model = Model.load(str(folder))
        model.flavors["diffusers"]["base_model_revision"] = revision
        model.save(str(folder / MLMODEL_FILE_NAME))


def _package_transformer(
    weights: Path, folder: Path, base: str, revision: str | None, signature: ModelSignature
) -> None:
    pyfunc.save_model(
        str(folder),
        loader_module=LOADER.stem,
        code_paths=[str(LOADER)],
        signature=signature,
        pip_requirements=[
            f"mlflow=={mlflow.__version__}",
            *mlflow.diffusers.get_default_pip_requirements(),
        ],
        model_config={"base_model": base, "revision": revision, "device": None},
    )
    shutil.copytree(weights, folder / "transformer", copy_function=_link)


def _link(source: str, target: str) -> None:
    """Give a file a second name where the disk can, else copy it: a transformer may be large."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _signature(config: RunConfig) -> ModelSignature:
    """Return: a prompt in, an image out, with the settings of the run's evaluations."""
    model = config.model
    settings = [
        ("num_inference_steps", DataType.integer, config.evaluation.num_steps),
        ("guidance_scale", DataType.double, model.guidance_scale),
        ("height", DataType.integer, model.height),
        ("width", DataType.integer, model.width),
        ("negative_prompt", DataType.string, model.negative_prompt),
    ]
    return ModelSignature(
        inputs=Schema([ColSpec(DataType.string, "prompt")]),
        outputs=Schema([ColSpec(DataType.binary, "image")]),
        params=ParamSchema([ParamSpec(name, kind, default) for name, kind, default in settings]),
    )
