"""The GPUs that a process sees when it imports this module, as one that asks for them would."""

import os

_VISIBLE = os.environ.get("CUDA_VISIBLE_DEVICES")


def visible_when_imported() -> str | None:
    return _VISIBLE
