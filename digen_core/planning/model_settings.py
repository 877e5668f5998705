"""The settings of models, from which they are built without weights."""

from pathlib import Path

from digen_core.errors import UserError
from digen_core.inputs.shipped import data_folder, located

MODEL_CONFIGS = data_folder("model_configs")
"""Settings of published transformers and VAEs, by the name of their repository."""


def settings_folder(path: str) -> Path:
    """Return where the settings of a model are: its own folder, or the shipped ones of a hub id.

    Raises:
        UserError: the model is neither here nor one whose settings are shipped.
    """
    folder = Path(located(path))
    if folder.is_dir():
        return folder
    shipped = {model.name: model for model in sorted(MODEL_CONFIGS.iterdir())}
    if folder.name not in shipped:
        raise UserError(
            f"model.path {path} is no folder here, and the settings that digen ships are of "
            f"{', '.join(shipped)} only; use one of these, or the folder of the model"
        )
    return shipped[folder.name]
