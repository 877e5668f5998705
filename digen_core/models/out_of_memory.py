"""Errors of a device without memory, of which torch was told or a library beside it."""

import re
from typing import Final

import torch

_FULL: Final = re.compile("out of memory|ALLOC(ATION)?_FAILED")  # as NCCL, or cuDNN and cuBLAS say


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an error is of a device without memory.

    NCCL, cuDNN and cuBLAS allocate beside torch: what is then raised is no error of its own class.
    """
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and _FULL.search(str(error)) is not None
    )
