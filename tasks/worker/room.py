"""The room of a device, held against what its work takes before a model is loaded."""

from collections.abc import Collection

import torch

from digen_core.config.run import RunConfig
from digen_core.errors import UserError
from digen_core.models.policy import resolve_device
from digen_core.planning.capacity import GB, ShortageError, least
from digen_core.planning.memory import Memory
from digen_core.planning.memory_count import memory_of
from digen_core.planning.model_settings import settings_folder
from digen_core.planning.remedies import remedy


def bytes_of(device: torch.device) -> int | None:
    """Return the memory of a device; None of a CPU, whose memory is the host's."""
    return torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else None


def require_room(config: RunConfig, device_name: str, roles: Collection[str]) -> None:
    """Check that a device can do the least of its work: one sample, one pair.

    Nothing is looked at where the settings of the model are not known without a download.

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

    def fits(memory: Memory) -> bool:
        return least(memory, roles) <= room

    found = memory_of(config, folder)
    if fits(found):
        return
    changes = remedy(config, folder, fits)
    advice = f"it fits with {changes}" if changes else "use devices with more"
    shortage = ShortageError(f"{device_name}, of {room / GB:.0f} GB,", found, roles)
    raise UserError(f"{shortage}; {advice}")
