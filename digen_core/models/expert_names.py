"""Experts: the two transformers of a model such as Wan2.2-T2V-A14B, by their names.

One has the high noise levels, the other one the low. diffusers' pipelines call them ``transformer``
and ``transformer_2``, and so begin the names of their weights here.

Importing this module must not import torch.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeVar

from digen_core.config.model import ModelConfig
from digen_core.errors import ConfigError

PARTS: Final = {"high": "transformer", "low": "transformer_2"}
"""What diffusers calls each."""

Value = TypeVar("Value")


def parts_in(folder: Path) -> list[str]:
    """Return the parts of a pipeline's folder that are transformers; the first there has to be."""
    first, *others = PARTS.values()
    return [first, *(part for part in others if (folder / part / "config.json").is_file())]


def adapter_file(part: str) -> str | None:
    """Return the name of an adapter's file in the folder of both; None: what diffusers calls it.

    Not that name in a subfolder: of a folder diffusers would read the file beside it.
    """
    return None if part == PARTS["high"] else f"{part}.safetensors"


def split(named: Mapping[str, Value]) -> dict[str, dict[str, Value]]:
    """Return what belongs to each expert, by its own names; of one transformer all.

    Args:
        named: by the names of weights or layers of a policy's transformer.
    """
    found: dict[str, dict[str, Value]] = {}
    for name, value in named.items():
        part, _, own = name.partition(".")
        if part not in PARTS.values():
            part, own = PARTS["high"], name
        found.setdefault(part, {})[own] = value
    return found


def check_experts(model: ModelConfig, *, has_two: bool) -> None:
    """Check that a config asks for two experts where the model has two only.

    Args:
        model: its config.
        has_two: whether it has two.

    Raises:
        ConfigError: it does not.
    """
    if has_two:
        return
    second = model.guidance_scale_2
    for is_asked, what in (
        (model.train_experts != "both", f"model.train_experts is {model.train_experts!r}"),
        (second is not None, f"model.guidance_scale_2 is {second}"),
        *(
            (own.expert == "low", f"model.adapters.{name}.expert is 'low'")
            for name, own in model.adapters.items()
        ),
    ):
        if is_asked:
            raise ConfigError(
                f"{what}, but model.path {model.path} has one transformer, not two experts; leave "
                "it out"
            )


def lone_expert(path: str) -> str:
    """Return the line that refuses a model of one expert without the other one."""
    return (
        f"model.path {path} has a boundary_ratio between two transformers, but one of them only; "
        "give a folder with both"
    )
