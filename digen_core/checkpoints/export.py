"""Save what was trained in the form that stock diffusers loads.

LoRA: ``pipeline.load_lora_weights(folder)``, of a pipeline that loads none ``pipeline.transformer
.load_lora_adapter(folder, weight_name="pytorch_lora_weights.safetensors")``.
All weights: ``from_pretrained(folder)`` of the transformer's class, such as FluxTransformer2DModel.
Of two experts the adapter of the one for low noise has a file of its own, which is called
transformer_2.safetensors, and all weights are in subfolders of the experts' names.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from diffusers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFETENSORS_WEIGHTS_NAME
from huggingface_hub import split_torch_state_dict_into_shards
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from digen_core.checkpoints.adapter import Adapter
from digen_core.config.families import FAMILIES
from digen_core.gang.sharding import held
from digen_core.gang.stage_files import tensors_in
from digen_core.models.expert_names import adapter_file, split
from digen_core.models.experts import Experts
from digen_core.models.families import adapter_of
from digen_core.models.policy import Policy
from digen_core.models.trainable import FIRST_ADAPTER, as_peft
from digen_core.transport.arrays import rounded, viewed

SHARD_BYTES: Final = 2 * 10**9
"""Of a file with a transformer's weights, at most: they are in memory while it is written."""


def save_adapter(
    policy: Policy, folder: Path, weights: Mapping[str, np.ndarray] | None = None
) -> None:
    """Write an adapter, with its alpha, into a folder.

    Args:
        policy: that has one.
        folder: to write to.
        weights: of the adapter, whole; None: those of the active one.
    """
    transformer = policy.transformer
    (active,) = transformer.active_adapters()
    if weights is None:
        layers = get_peft_model_state_dict(transformer, adapter_name=active)
    else:
        layers = {
            name.replace(f".{FIRST_ADAPTER}.", "."): viewed(value)
            for name, value in weights.items()
        }
    _save_layers(policy.pipeline, folder, layers, transformer.peft_config[active])


def save_kept_adapter(adapter: Adapter, folder: Path) -> None:
    """Write an adapter that was read from a checkpoint, as `save_adapter` does; no model is loaded.

    Args:
        adapter: in its layers' own dtypes.
        folder: to write to; it is there.
    """
    layers: dict[str, Tensor] = {}
    for name, (down, up) in adapter.layers.items():
        layers |= {f"{name}.lora_A.weight": viewed(down), f"{name}.lora_B.weight": viewed(up)}
    family = adapter.manifest.config.model.family
    settings = as_peft(adapter.lora, FAMILIES[family].idle)
    _save_layers(adapter_of(family).pipeline_class, folder, layers, settings)


def _save_layers(
    pipeline: Any, folder: Path, layers: Mapping[str, Tensor], settings: LoraConfig
) -> None:
    for part, own in split(layers).items():
        # Without the metadata diffusers drops alpha, and loads adapters with another strength.
        pipeline.save_lora_weights(
            folder,
            weight_name=adapter_file(part),
            transformer_lora_layers=own,
            transformer_lora_adapter_metadata=_described(settings, own),
        )


def _described(settings: LoraConfig, layers: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return settings of adapters as diffusers saves them.

    Where some layers that have a target's name have no adapter, those that do are named in full:
    peft warns of what it finds excluded, or missing.
    """
    described: dict[str, Any] = settings.to_dict()
    if settings.exclude_modules:
        names = {name.partition(".lora_")[0] for name in layers}
        described |= {"target_modules": sorted(names), "exclude_modules": None}
    return described


def save_transformer(
    transformer: Any,
    folder: Path,
    weights: Mapping[str, np.ndarray],
    *,
    dtypes: Mapping[str, torch.dtype] | None = None,
    source: Path | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write a whole transformer into a folder, in the dtypes of its parameters.

    One file's weights are in memory at once, in one file those of a small transformer. Of two
    experts those are written that are trained.

    Args:
        transformer: of which a member of a gang may hold only some rows or blocks; its buffers are
            written.
        folder: to write to; it is there.
        weights: masters of all parameters that are trained, whole; each is asked for once.
        dtypes: of all parameters; None: those of the transformer, which has all blocks.
        source: folder of the transformer that training began with: there the others are read which
            this member of a gang has not whole; None: it has.
        shard_bytes: that a file holds at most, unless one parameter is larger.

    Raises:
        FloatingPointError: a number is NaN, or infinite in its parameter's dtype.
    """
    if isinstance(transformer, Experts):
        for part, expert in transformer.trained.items():
            (folder / part).mkdir()
            _save_one(
                expert,
                folder / part,
                _Prefixed(weights, f"{part}."),
                dtypes=None if dtypes is None else split(dtypes)[part],
                source=None,
                shard_bytes=shard_bytes,
            )
    else:
        _save_one(
            transformer, folder, weights, dtypes=dtypes, source=source, shard_bytes=shard_bytes
        )


class _Prefixed(Mapping[str, np.ndarray]):
    """Arrays of which names begin so, by what follows; each is asked for as it is here."""

    def __init__(self, whole: Mapping[str, np.ndarray], prefix: str) -> None:
        self._whole, self._prefix = whole, prefix

    def __getitem__(self, name: str) -> np.ndarray:
        return self._whole[self._prefix + name]

    def __iter__(self) -> Iterator[str]:
        begin = self._prefix
        return (name.removeprefix(begin) for name in self._whole if name.startswith(begin))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _save_one(
    transformer: Any,
    folder: Path,
    weights: Mapping[str, np.ndarray],
    *,
    dtypes: Mapping[str, torch.dtype] | None,
    source: Path | None,
    shard_bytes: int,
) -> None:
    plain, own = _plain(transformer), transformer.state_dict()
    dtypes = {name: value.dtype for name, value in own.items()} | dict(dtypes or {})
    plain.save_config(folder)
    trained = set(weights)
    buffers = {name for name, _ in plain.named_buffers()}
    usual = next(value.dtype for value in own.values() if value.is_floating_point())

    def value_of(name: str) -> Tensor:
        if name in trained:
            return viewed(rounded({name: weights[name]}, dtypes)[name])
        if source is None or name in buffers or _is_whole(own.get(name)):
            return held(own[name]).detach().cpu().contiguous()
        ((_, value),) = tensors_in(source, [name])
        return value.to(dtypes.get(name, usual))

    split = split_torch_state_dict_into_shards(
        {name: value.to(dtypes.get(name, usual)) for name, value in plain.state_dict().items()},
        filename_pattern=SAFETENSORS_WEIGHTS_NAME.replace(".", "{suffix}."),
        max_shard_size=shard_bytes,
    )
    for file, names in split.filename_to_tensors.items():
        save_file({name: value_of(name) for name in names}, folder / file, {"format": "pt"})
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        text = json.dumps(index, indent=2, sort_keys=True)
        (folder / SAFE_WEIGHTS_INDEX_NAME).write_text(text + "\n", encoding="utf-8")


def _is_whole(tensor: Tensor | None) -> bool:
    return tensor is not None and not isinstance(tensor, DTensor)


def _plain(transformer: Any) -> Any:
    """Return a transformer like another one, without weights: of diffusers' own class, whole."""
    # FSDP2 has made a class of its own of the one that diffusers knows.
    kind: Any = next(kind for kind in type(transformer).__mro__ if not issubclass(kind, FSDPModule))
    with torch.device("meta"):
        return kind.from_config(transformer.config)
