"""Load a trained transformer into the pipeline of its base model; a copy of this file goes with it.

It runs where digen is not installed, and prompts are read as MLflow's own diffusers flavour does.
"""

from pathlib import Path
from typing import Any

from diffusers import AutoModel, DiffusionPipeline
from mlflow.diffusers.wrapper import _detect_device, _DiffusersAdapterWrapper


class FullPipeline(_DiffusersAdapterWrapper):
    """A pipeline whose transformer was trained."""

    def _load_pipeline(self) -> None:
        config = self._model_config
        transformer = AutoModel.from_pretrained(self._adapter_path, dtype="auto")
        pipeline = DiffusionPipeline.from_pretrained(
            config["base_model"],
            revision=config["revision"],
            transformer=transformer,
            dtype=transformer.dtype,
        )
        self._pipeline = pipeline.to(_detect_device(config["device"]))


def _load_pyfunc(path: str, model_config: dict[str, Any]) -> FullPipeline:
    """Return the model; MLflow calls this."""
    return FullPipeline(str(Path(path) / "transformer"), {}, model_config)
