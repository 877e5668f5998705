"""Checkpoints of torch that scorers are published as, read without running anything in them."""

from pathlib import Path
from typing import Any

import torch

from digen_core.errors import ConfigError


def read_checkpoint(path: Path, failure: str) -> Any:
    """Return what a ``.pt`` file holds, on the CPU.

    Args:
        path: of the file.
        failure: what the message says before the reason, if it cannot be read.

    Raises:
        ConfigError: it cannot be read, or would run code.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged file raises
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ConfigError(f"{failure}: {reason}") from error
