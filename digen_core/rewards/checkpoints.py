"""Files that scorers are published as: where they are, read without running anything in them."""

from collections.abc import Sequence
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


def published_folder(path: str, revision: str | None, files: Sequence[str], what: str) -> Path:
    """Return the folder of published files; those of a hub id are downloaded, or in the cache.

    Args:
        path: folder or hub id.
        revision: of the hub id; None is the default branch.
        files: that are wanted of it, or patterns.
        what: is published there, for the error.

    Raises:
        ConfigError: they cannot be had.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    if Path(path).is_dir():
        return Path(path)
    try:
        return Path(snapshot_download(path, revision=revision, allow_patterns=list(files)))
    except (OSError, ValueError, HFValidationError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(f"{what} {path} cannot be loaded: {reason}") from error
