"""The room of a device, held against what its work takes before a model is loaded."""

import logging
from collections.abc import Collection
from typing import Final

import torch

from digen_core.config.run import RunConfig
from digen_core.errors import UserError
from digen_core.models.policy import resolve_device
from digen_core.planning.capacity import GB, ShortageError, least
from digen_core.planning.memory_count import memory_of
from digen_core.planning.model_settings import settings_folder

logger = logging.getLogger(__name__)

ADVICE: Final = (
    "train.gradient_checkpointing = true, model.offload and model.dtype = 'bfloat16' need less: "
    "see 'digen size CONFIG --memory'"
)


def bytes_of(device: torch.device) -> int | None:
    """Return the memory of a device; None of a CPU, whose memory is the host's."""
    return torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else None


def require_room(
    config: RunConfig, device_name: str, roles: Collection[str], members: int = 1
) -> None:
    """Check that a device can do the least of its work: one sample, one pair.

    Nothing is looked at where the settings of the model are not known without a download.

    Args:
        config: of the run.
        device_name: of the device.
        roles: of it.
        members: of its gang, whose leader this process is: nobody needs more.

    Raises:
        UserError: it cannot; the message says what to change.
    """
    room = bytes_of(resolve_device(config.model.device))
    if room is None:
        return
    try:
        folder = settings_folder(config.model.path)
    except UserError:
        return

    try:
        found = memory_of(config, folder, members)
    except (RuntimeError, NotImplementedError) as error:  # the run itself finds out
        logger.warning("what %s needs could not be counted: %s", device_name, error)
        return
    if least(found, roles) > room:
        shortage = ShortageError(f"{device_name}, of {room / GB:.0f} GB,", found, roles)
        raise UserError(f"{shortage}; {ADVICE}")
