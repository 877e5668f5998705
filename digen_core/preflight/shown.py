"""Pre-flight checks of models that are shown source images, of what their settings say of these.

The model is built without weights, as where its sizes are counted: what its adapter refuses when a
worker loads it, it refuses here.
"""

from collections.abc import Sequence
from pathlib import Path

from digen_core.config.families import FAMILIES
from digen_core.config.model import ModelConfig
from digen_core.data.prompts import Prompt
from digen_core.errors import ConfigError, UserError
from digen_core.models.image_size import read_settings
from digen_core.planning.model_settings import settings_folder


def check_shown(model: ModelConfig, prompts: Sequence[Prompt]) -> None:
    """Check that a model is shown as many images as prompts have, in the sizes of its samples.

    Of a model whose settings are neither here nor shipped, or of another format, it is left to the
    loading.

    Args:
        model: its config.
        prompts: of the run.

    Raises:
        ConfigError: it is shown another number of images, or none of that size.
    """
    if not model.source_image:
        return
    try:
        folder = settings_folder(model.path)
        _, transformer = read_settings(folder)
        fewest = FAMILIES[model.family].fewest_images(transformer)
    except (UserError, OSError, ValueError, KeyError, TypeError):
        return
    _check_sizes(model, folder)
    for prompt in prompts:
        if len(prompt.images) < fewest:
            raise ConfigError(
                f"{prompt.origin} has {len(prompt.images)} source image, but model.path "
                f"{model.path} is shown {fewest}: what a video begins with, and what it ends with"
            )


def _check_sizes(model: ModelConfig, folder: Path) -> None:
    """Check the sizes of samples, in which images are shown, by the adapter."""
    from digen_core.models.families import adapter_of

    try:
        policy = adapter_of(model.family).without_weights(model, folder)
        for size in model.sizes:
            policy.at_size(size)
    except ConfigError:
        raise
    except (OSError, ValueError, KeyError, TypeError):
        return
