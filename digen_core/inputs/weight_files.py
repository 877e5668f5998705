"""Files of weights, as far as names and heads tell: no numbers are read, and no torch is needed."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError, safe_open

from digen_core.errors import ConfigError
from digen_core.inputs.reading import read_json_object, require_file

_WEIGHTS: Final = re.compile(
    r"(?:diffusion_pytorch_model|pytorch_model|model)(?:\.(\w+))?(?:-\d+-of-\d+)?"
    r"\.(?:safetensors|bin)"
)
"""Files of weights as diffusers and transformers name them: of a variant, if one is in the name."""


def variant_of(folder: Path) -> str | None:
    """Return the variant, such as fp16, of which a pipeline's weights are to be loaded.

    As ``from_pretrained`` does with that ``variant``, every part is, save for those that have none
    of it. None: all parts have plain weights, or the folder is no pipeline's.

    Raises:
        ConfigError: the parts without plain weights have no variant in common, or several.
    """
    if not (folder / "model_index.json").is_file():
        return None
    found = {part.name: _variants_in(part) for part in _parts_of(folder) if part.is_dir()}
    lacking = {name: own for name, own in found.items() if own and "" not in own}
    common = set.intersection(*lacking.values()) if lacking else {None}
    if len(common) != 1:
        named = sorted(set().union(*lacking.values()))
        raise ConfigError(
            f"{folder} has no plain weights of {', '.join(lacking)}, but those of the variants "
            f"{', '.join(named)}; keep one variant, which all of them have"
        )
    return common.pop()


def _parts_of(folder: Path) -> list[Path]:
    index = read_json_object(folder / "model_index.json", "the model's")
    return [folder / name for name in sorted(named_parts(index)) if name.isidentifier()]


def named_parts(index: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the library and class of each part that the index of a pipeline names.

    Parts that it comes without have null for both. There may be settings, too, even lists, as the
    noise levels of Qwen-Image 2.1 are.
    """
    return {
        name: own
        for name, own in index.items()
        if isinstance(own, list) and all(isinstance(word, str) for word in own)
    }


def _variants_in(part: Path) -> set[str]:
    """Return the variants of a part's weights; "" stands for plain ones."""
    found = (_WEIGHTS.fullmatch(file.name) for file in part.iterdir())
    return {match[1] or "" for match in found if match}


def named_as(file: str, variant: str | None) -> str:
    """Return how a file of weights, or the index of several, is called in a variant."""
    stem, _, ending = file.rpartition(".")
    return file if variant is None else f"{stem}.{variant}.{ending}"


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
