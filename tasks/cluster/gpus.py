"""The GPUs of this machine, dealt to the workers that a run starts on it."""

import os
from collections.abc import Sequence
from itertools import cycle

from digen_core.control.protocol import Device
from digen_core.errors import UserError


def visible_gpus() -> list[str]:
    """Return the GPUs that this process sees, as CUDA names them."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = named.split(",") if named else []
    return found or [str(number) for number in range(torch.cuda.device_count())]


def deal_gpus(devices: Sequence[Device], gpus: Sequence[str]) -> dict[str, str]:
    """Return the GPU of each worker by name, in turns; none where all can only have the same.

    Raises:
        UserError: a gang has more members than there are GPUs.
    """
    largest = max((device.size for device in devices), default=1)
    if gpus and largest > len(gpus):
        raise UserError(
            f"a gang of {largest} needs {largest} GPUs, but this machine has {len(gpus)}; use a "
            "smaller cluster.rollout_gang or cluster.trainer_gang"
        )
    if len(gpus) < 2:
        return {}
    names = [name for device in devices for name in (device.name, *device.followers)]
    return dict(zip(names, cycle(gpus)))
