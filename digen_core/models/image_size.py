"""Image size: the heights, widths and frames that a model can make images or videos of.

Its adapter knows when it is loaded; of a local folder the small config files tell it before
anything starts, without torch.
"""

from pathlib import Path

from digen_core.config.families import FAMILIES, Settings
from digen_core.config.model import ModelConfig
from digen_core.errors import ConfigError
from digen_core.inputs.reading import read_json_object


def check_local_size(model: ModelConfig) -> None:
    """Check the size against the configs in a local model folder.

    What they do not tell, because they are of another format, is left to the loading.

    Raises:
        ConfigError: the model cannot have that size.
    """
    try:
        vae, transformer = read_settings(Path(model.source))
        family = FAMILIES[model.family]
        side, frames = family.side(vae, transformer), family.frames(vae)
        positions = _positions_of(transformer)
    except (OSError, ValueError, KeyError, TypeError):
        return
    require_multiples(model, side)
    require_frames(model, frames)
    if positions is not None:
        require_positions(model, positions * side)


def read_settings(folder: Path) -> tuple[Settings, Settings]:
    """Return the configs of VAE and transformer in the folder of a model.

    Raises:
        UnreadableError: one of them is not there, or is no JSON object.
    """
    vae, transformer = (
        read_json_object(folder / part / "config.json", "the model's")
        for part in ("vae", "transformer")
    )
    return vae, transformer


def require_multiples(model: ModelConfig, side: int) -> None:
    """Raise ConfigError unless height and width are multiples of ``side`` pixels."""
    if model.height % side or model.width % side:
        raise ConfigError(
            f"model.height x model.width is {model.height} x {model.width}; "
            f"this {model.family} model needs multiples of {side}."
        )


def require_frames(model: ModelConfig, temporal: int) -> None:
    """Raise ConfigError unless a video fills latent frames of ``temporal``, behind the first."""
    if (model.num_frames - 1) % temporal:
        raise ConfigError(
            f"model.num_frames is {model.num_frames}; this {model.family} model needs "
            f"1 more than a multiple of {temporal}."
        )


def require_positions(model: ModelConfig, most: int) -> None:
    """Raise ConfigError unless height and width are ``most`` pixels or fewer."""
    if max(model.height, model.width) > most:
        raise ConfigError(
            f"model.height x model.width is {model.height} x {model.width}; "
            f"this {model.family} model has positions for {most} x {most} at most."
        )


def _positions_of(transformer: Settings) -> int | None:
    """Return the tokens that a side of an image can have; None where there is no table of them."""
    lengths = transformer.get("axes_lens")  # of the tables of time, height and width
    most: int | None = min(lengths[1:]) if lengths else transformer.get("pos_embed_max_size")
    return most
