"""The members of a gang that one command starts: the first in its own process, others beside it."""

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from digen_core import PYTHON
from digen_core.control.protocol import followers_of
from digen_core.errors import UserError
from digen_core.inputs.text import number_of
from tasks.cluster.gpus import visible_gpus
from tasks.cluster.listening import asked_of_worker
from tasks.cluster.spares import MEMBER, MEMBERS
from tasks.cluster.tied import AGAIN

END_SECONDS: Final = 20.0


def ranks_of(text: str, size: int) -> range:
    """Return which of a gang's members a command starts.

    Args:
        text: what ``--ranks`` says: one rank, the first and the last of some, or nothing for all.
        size: of the gang.

    Raises:
        UserError: they are no members of it.
    """
    if not text:
        return range(size)
    if size == 1:
        raise UserError(
            f"--ranks is {text}, but there is no gang; say how many members it has by --members"
        )
    found = re.fullmatch(r"(\d{1,3})(?:-(\d{1,3}))?", text)
    ranks = range(int(found[1]), int(found[2] or found[1]) + 1) if found else range(0)
    if not ranks or ranks[-1] >= size:
        raise UserError(
            f"--ranks is {text}; of a gang of {size} use one of 0 to {size - 1}, or the first and "
            f"the last of some, such as 0-{size - 1}"
        )
    return ranks


def member_arguments(arguments: Sequence[str], rank: int, size: int) -> list[str]:
    """Return the arguments of ``dask worker`` for a member of a gang.

    Args:
        arguments: with the name and the resources of the leader, as if it were alone.
        rank: of the member; that of the leader is 0.
        size: of the gang.
    """
    asked = asked_of_worker(arguments)
    if rank == 0:
        own = ["--resources", f"{asked['resources']} {MEMBERS}={size}"]
    else:
        name = followers_of(asked["name"], size)[rank - 1]
        own = ["--name", name, "--resources", f"{MEMBER}=1"]
    return [*arguments, *own]  # the last of an option counts


@contextmanager
def beside(members: Sequence[Sequence[str]]) -> Iterator[None]:
    """Run members of a gang while the body, another one, runs; each has a GPU of its own.

    One whose nanny is killed, too, as where memory is short, is started anew. What does not end
    with the body in time, as a process is frozen, is killed a little later by what it is tied to.

    Args:
        members: arguments of ``tasks.worker.process`` for each.

    Raises:
        UserError: there are fewer GPUs than members.
    """
    own, *others = gpus_of(os.environ, 1 + len(members))
    processes = []
    try:
        for arguments, gpu in zip(members, others, strict=True):
            command = [*PYTHON, "-m", "tasks.worker.process", *arguments]
            processes.append(
                subprocess.Popen(
                    [*PYTHON, "-m", "tasks.cluster.tied", AGAIN, *command],
                    stdin=subprocess.PIPE,
                    env={**os.environ, "CUDA_VISIBLE_DEVICES": gpu},
                )
            )
        os.environ["CUDA_VISIBLE_DEVICES"] = own
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS)


def gpus_of(environment: Mapping[str, str], size: int) -> list[str]:
    """Return the GPU of each member, as CUDA names it: of those that are visible, in their order.

    Where there is none, each sees none, and computes on the CPU.

    Raises:
        UserError: too few are visible.
    """
    found = visible_gpus(environment)
    if not found:
        return [""] * size
    if len(found) < size:
        named = environment.get("CUDA_VISIBLE_DEVICES")
        here = f"CUDA_VISIBLE_DEVICES is {named}"
        if named is None:
            here = f"this host has {number_of(len(found), 'GPU')}"
        raise UserError(
            f"{here}, but {size} members of a gang need {size} GPUs; let them see more, use fewer "
            "--members, or start some --ranks on another host"
        )
    return found[:size]
