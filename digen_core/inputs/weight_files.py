"""Safetensors files, as far as their heads tell: no numbers are read, and no torch is needed."""

from pathlib import Path

from safetensors import SafetensorError, safe_open

from digen_core.errors import ConfigError
from digen_core.inputs.reading import require_file


def shapes_in(file: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor of a safetensors file, by its name.

    Raises:
        ConfigError: it is none, or part of it is missing.
    """
    require_file(file, "the weights")
    try:
        with safe_open(file, framework="numpy") as opened:
            names = list(opened.keys())
            return {name: tuple(opened.get_slice(name).get_shape()) for name in names}
    except (OSError, SafetensorError) as error:
        raise ConfigError(
            f"{file} is no whole safetensors file ({error}); copy or download it again"
        ) from error


def shapes_in_folder(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors of a folder's safetensors files.

    Raises:
        ConfigError: one of them is damaged.
    """
    files = sorted(folder.glob("*.safetensors"))
    return {name: shape for file in files for name, shape in shapes_in(file).items()}


def layers_of(shapes: dict[str, tuple[int, ...]]) -> set[str]:
    """Return the names of the layers with a matrix of weights, or a kernel."""
    weight = ".weight"
    return {
        name.removesuffix(weight)
        for name, shape in shapes.items()
        if name.endswith(weight) and len(shape) > 1
    }
