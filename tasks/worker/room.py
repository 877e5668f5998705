"""The room of a device, held against what its work takes before a model is loaded."""

import logging
from collections.abc import Collection
from typing import Final

import torch

from digen_core.config.run import RunConfig
from digen_core.control.protocol import followers_of
from digen_core.errors import UserError
from digen_core.gang.members import ALONE, Gang
from digen_core.models.policy import resolve_device
from digen_core.planning.capacity import GB, ShortageError, least
from digen_core.planning.memory_count import memory_of
from digen_core.planning.model_settings import settings_folder

logger = logging.getLogger(__name__)

ADVICE: Final = (
    "train.gradient_checkpointing = true, model.offload and model.dtype = 'bfloat16' need less: "
    "see 'digen size CONFIG --memory'"
)
STAGES: Final = "parallel.stage_blocks may give it fewer blocks"


def bytes_of(device: torch.device) -> int | None:
    """Return the memory of a device; None of a CPU, whose memory is the host's."""
    return torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else None


def require_room(
    config: RunConfig, device_name: str, roles: Collection[str], gang: Gang = ALONE
) -> None:
    """Check that a device, or this member of a gang, can do the least of its work.

    That is one sample, one pair, or both in turn. Nothing is looked at where the settings of the
    model are not known without a download.

    Args:
        config: of the run.
        device_name: of the device.
        roles: of it.
        gang: whose member this process is, on a GPU of its own.

    Raises:
        UserError: it cannot; the message names the member, and says what to change.
    """
    room = bytes_of(resolve_device(config.model.device))
    if room is None:
        return
    try:
        folder = settings_folder(config.model.path)
    except UserError:
        return

    name = (device_name, *followers_of(device_name, gang.size))[gang.rank]
    try:
        found = memory_of(_least_of(config), folder, gang.size, gang.rank)
    except (RuntimeError, NotImplementedError) as error:  # the run itself finds out
        logger.warning("what %s needs could not be counted: %s", name, error)
        return
    if least(found, roles) > room:
        whose = f"{name}, of {room / GB:.0f} GB,"
        shortage = ShortageError(whose, found, roles, has_all=True)
        advice = f"{STAGES}; {ADVICE}" if gang.stages > 1 else ADVICE
        raise UserError(f"{shortage}; {advice}")


def _least_of(config: RunConfig) -> RunConfig:
    """Return a config whose fragments and packs have one item: more take minutes to count."""
    few = {
        "rollout": config.rollout.model_copy(update={"fragment_size": 1, "batch_size": None}),
        "train": config.train.model_copy(update={"pack_size": 1}),
    }
    return config.model_copy(update=few)
