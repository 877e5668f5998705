"""Load a stage: the transformer is built without numbers, and its own are read by name.

So neither the device nor the host ever holds more than the stage.
"""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final

import torch
from accelerate import init_empty_weights
from diffusers import AutoModel
from diffusers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFETENSORS_WEIGHTS_NAME
from safetensors import safe_open
from torch import Tensor

from digen_core.config.families import Family
from digen_core.errors import ConfigError
from digen_core.gang.cutting import cut
from digen_core.gang.members import Gang
from digen_core.inputs.reading import read_json_object
from digen_core.inputs.weight_files import named_as, variant_of

_NAMES: Final = (SAFE_WEIGHTS_INDEX_NAME, SAFETENSORS_WEIGHTS_NAME)


def load_stage(
    folder: Path, family: Family, gang: Gang, dtype: torch.dtype, device: torch.device
) -> Any:
    """Return this member's stage of a transformer, as `from_pretrained` loads the whole.

    Args:
        folder: of the transformer in that of its pipeline, as diffusers saves them.
        family: of the model.
        gang: whose member this process is.
        dtype: of the parameters.
        device: to read them to.

    Raises:
        ConfigError: it has no safetensors files.
        OSError: its settings or a file of it are not there.
        RuntimeError: a parameter is in no file, or of another shape.
    """
    transformer = without_numbers(AutoModel.load_config(folder), dtype)
    cut(transformer, family, gang)
    dtypes = {name: own.dtype for name, own in transformer.state_dict().items()}
    state = {name: own.to(device, dtypes[name]) for name, own in tensors_in(folder, dtypes)}
    transformer.load_state_dict(state, assign=True)
    for buffer in transformer.buffers():  # those that are computed
        buffer.data = buffer.data.to(device)
    transformer.eval().requires_grad_(False)
    return transformer


def tensors_in(folder: Path, names: Collection[str]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of these names that the files of a transformer's folder hold.

    Raises:
        ConfigError: it has no safetensors files.
    """
    for file in _files(folder):
        with safe_open(file, framework="pt") as opened:
            for name in sorted(set(names) & set(opened.keys())):
                yield name, opened.get_tensor(name)


def without_numbers(settings: Any, dtype: torch.dtype) -> Any:
    """Return a transformer whose parameters are on the meta device; its buffers hold numbers.

    Args:
        settings: of the transformer, as diffusers saves them.
        dtype: of all but what the class keeps in float32.
    """
    with init_empty_weights(include_buffers=False):
        transformer = AutoModel.from_config(settings)
    for name, parameter in transformer.named_parameters():
        own = torch.float32 if is_kept_in_float32(transformer, name) else dtype
        parameter.data = parameter.data.to(own)
    if transformer._keep_in_fp32_modules is None:  # else diffusers leaves buffers as they are
        saved = transformer.state_dict().keys()  # and always those that are computed
        for name, buffer in transformer.named_buffers():
            if name in saved and buffer.is_floating_point():
                buffer.data = buffer.data.to(dtype)
    return transformer


def is_kept_in_float32(transformer: Any, name: str) -> bool:
    """Say whether a parameter is float32 whatever the dtype of the others, as diffusers has it."""
    return bool(set(transformer._keep_in_fp32_modules or ()).intersection(name.split(".")))


def _files(folder: Path) -> list[Path]:
    variant = variant_of(folder.parent)  # if this part has weights of it
    if not any((folder / named_as(name, variant)).is_file() for name in _NAMES):
        variant = None
    index, file = (folder / named_as(name, variant) for name in _NAMES)
    if index.is_file():
        weight_map: Any = read_json_object(index, "the model's")["weight_map"]
        return sorted({folder / str(name) for name in weight_map.values()})
    if not file.is_file():
        raise ConfigError(
            f"parameters are to be read by name, but {folder} has no {file.name}; save the "
            "model as safetensors"
        )
    return [file]
