"""The GPUs of this machine, dealt to the workers that a run starts on it."""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import cycle, takewhile

from digen_core.control.protocol import Device
from digen_core.errors import UserError
from digen_core.inputs.text import number_of

_GPU = re.compile(r"\d+|(GPU|MIG)-.+")  # a number or a UUID


def visible_gpus(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the GPUs that a process sees, as CUDA names them.

    Where a list names something that is none, CUDA sees nothing from there on: -1, or NoDevFiles,
    as SLURM has it in a job without GPUs.

    Args:
        environment: of the process.
    """
    named = environment.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        names = (name.strip() for name in named.split(","))
        return list(takewhile(_GPU.fullmatch, names))
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


def card() -> str:
    """Return the UUID of the GPU that this process computes on; empty: it sees none."""
    import torch

    return str(torch.cuda.get_device_properties().uuid) if torch.cuda.is_available() else ""


def deal_gpus(
    devices: Sequence[Device], gpus: Sequence[str], others: Sequence[str] = ()
) -> dict[str, str]:
    """Return the GPU of each worker by name, in turns; none where all can only have the same.

    Args:
        devices: which come first.
        gpus: as CUDA names them.
        others: names of workers that are no devices: they get what is left, if anything is.

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
    return dict(zip([*names, *others], cycle(gpus)))


def sharing(devices: Sequence[Device], gpus: Sequence[str]) -> str | None:
    """Return what it means that the workers of a run share this machine's GPUs; None: none does.

    Args:
        devices: of the run.
        gpus: as CUDA names them.
    """
    number = sum(device.size for device in devices)
    if not 0 < len(gpus) < number:
        return None
    return (
        f"{number} workers share the memory of {number_of(len(gpus), 'GPU')}; fewer take less of "
        "it (cluster.rollout_workers, and cluster.trainer_workers, which may be 0: who generates "
        "then trains, too)"
    )


def require_own_gpus(cards: Mapping[str, str], members: Sequence[str]) -> None:
    """Check that each member of a gang computes on a GPU of its own, or each on the CPU.

    Others would wait for each other: NCCL takes a GPU once, and none that is not there.

    Args:
        cards: `card` of members, by address; of some it may not be known.
        members: addresses of all, by rank.

    Raises:
        UserError: they do not.
    """
    for why in _misfits(cards, members, members).values():
        raise UserError(why)


def spares_without_own_gpu(
    cards: Mapping[str, str], members: Sequence[str], spares: Collection[str]
) -> dict[str, str]:
    """Return which spares do not compute as the other members of their gang: address -> why.

    Args:
        cards: `card` of members, by address; of some it may not be known.
        members: addresses of all, by rank.
        spares: addresses of those that have a place as a spare; what is wrong with others is not
            looked at.
    """
    own = [address for address in members if address not in spares]
    last = [address for address in members if address in spares]
    found = _misfits(cards, members, [*own, *last])
    return {address: why for address, why in found.items() if address in spares}


def _misfits(
    cards: Mapping[str, str], members: Sequence[str], order: Sequence[str]
) -> dict[str, str]:
    """Return which members do not compute as those before them in an order: address -> why."""
    seen: dict[str, str] = {}  # card -> who has it
    found: dict[str, str] = {}
    for address in order:
        own, rank = cards.get(address), members.index(address)
        who = f"member {rank} of a gang, the worker at {address},"
        if own is None:
            continue
        if own and own in seen:
            found[address] = (
                f"{who} computes on the GPU of {seen[own]} {own}; have each see another one by "
                "CUDA_VISIBLE_DEVICES, or start both by one command with --members"
            )
        elif seen and bool(own) != any(seen):
            other = next(iter(seen.values()))
            lacking, having = (other, who) if own else (who, other)
            found[address] = (
                f"{lacking} sees no GPU, but {having} sees one; have each see one by "
                "CUDA_VISIBLE_DEVICES, or hide them from all: CUDA_VISIBLE_DEVICES="
            )
        else:
            seen[own] = who
    return found
