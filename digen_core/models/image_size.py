"""Checks of the config's height and width: sizes that a model can make images or videos of.

Its adapter knows when it is loaded; of a local folder the small config files tell it before
anything starts, without torch.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from digen_core.config.model import Family, ModelConfig
from digen_core.errors import ConfigError
from digen_core.inputs.reading import read_json_object

_Settings = Mapping[str, Any]

_SIDE_OF_TOKEN: Final[dict[Family, Callable[[_Settings, _Settings], int]]] = {
    "flux": lambda vae, transformer: 2 * _pixels(vae),
    "sd3": lambda vae, transformer: transformer["patch_size"] * _pixels(vae),
    "qwen_image": lambda vae, transformer: 2 * 2 ** len(vae["temperal_downsample"]),
    "wan": lambda vae, transformer: (
        transformer["patch_size"][1] * vae.get("scale_factor_spatial", 8)
    ),
    "hunyuan_video": lambda vae, transformer: (
        transformer["patch_size"] * vae.get("spatial_compression_ratio", 8)
    ),
}
"""Pixels in height and width of a token, from the configs of VAE and transformer; as diffusers'
pipelines compute it, with their defaults."""


def _pixels(vae: _Settings) -> int:
    """Return the pixels in height and width of a latent pixel."""
    return int(2 ** (len(vae["block_out_channels"]) - 1))


def check_local_size(model: ModelConfig) -> None:
    """Check the size against the configs in a local model folder.

    What they do not tell, because they are of another format, is left to the loading.

    Raises:
        ConfigError: the model cannot have that size.
    """
    folder = Path(model.source)
    try:
        vae, transformer = (
            read_json_object(folder / part / "config.json", "the model's")
            for part in ("vae", "transformer")
        )
        side = _SIDE_OF_TOKEN[model.family](vae, transformer)
        positions = transformer["pos_embed_max_size"] if model.family == "sd3" else None
    except (OSError, ValueError, KeyError, TypeError):
        return
    require_multiples(model, side)
    if positions is not None:
        require_positions(model, positions * side)


def require_multiples(model: ModelConfig, side: int) -> None:
    """Raise ConfigError unless height and width are multiples of ``side`` pixels."""
    if model.height % side or model.width % side:
        raise ConfigError(
            f"model.height x model.width is {model.height} x {model.width}; "
            f"this {model.family} model needs multiples of {side}."
        )


def require_positions(model: ModelConfig, most: int) -> None:
    """Raise ConfigError unless height and width are ``most`` pixels or fewer."""
    if max(model.height, model.width) > most:
        raise ConfigError(
            f"model.height x model.width is {model.height} x {model.width}; "
            f"this {model.family} model has positions for {most} x {most} at most."
        )
