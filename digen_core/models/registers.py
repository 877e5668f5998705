"""Registers: what stands in place of padding behind a prompt, where connectors of text have some.

Importing this module must not import torch.
"""

from pathlib import Path
from typing import Final

from digen_core.config.model import ModelConfig
from digen_core.errors import ConfigError
from digen_core.inputs.reading import read_json_object

REGISTERS: Final = "video_connector_num_learnable_registers"
"""What the settings of connectors call the number of theirs."""


def check_local_registers(model: ModelConfig) -> None:
    """Check the length of prompts against the connectors in a local model folder, if it has some.

    Raises:
        ConfigError: they take no text of that length.
    """
    file = Path(model.source) / "connectors" / "config.json"
    if not file.is_file():
        return
    registers = read_json_object(file, "the model's").get(REGISTERS)
    require_registers(model, registers if isinstance(registers, int) else None)


def require_registers(model: ModelConfig, registers: int | None) -> None:
    """Raise ConfigError unless prompts are padded to a multiple of so many tokens."""
    if not registers or model.max_sequence_length % registers:
        raise ConfigError(
            f"model.max_sequence_length is {model.max_sequence_length}; the connectors of "
            f"model.path {model.path} need a multiple of their registers, {registers}"
        )
