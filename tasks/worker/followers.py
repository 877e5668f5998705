"""The followers of a gang, started beside their leader by one command and ended with it."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from digen_core.control.protocol import followers_of
from digen_core.errors import UserError
from tasks.cluster.presence import MEMBER

END_SECONDS: Final = 20.0


@contextmanager
def followers(arguments: Sequence[str], leader: str, size: int) -> Iterator[None]:
    """Run the followers of a gang while the body, its leader, runs; each has a GPU of its own.

    Args:
        arguments: of ``tasks.worker.process``, for the leader.
        leader: its name.
        size: of the gang.

    Raises:
        UserError: there are fewer GPUs than members.
    """
    own, *others = gpus_of(os.environ, size)
    processes = []
    try:
        for name, gpu in zip(followers_of(leader, size), others, strict=True):
            command = [sys.executable, "-m", "tasks.worker.process", *arguments]
            command += [
                "--name",
                name,
                "--resources",
                f"{MEMBER}=1",
            ]  # the last of an option counts
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "tasks.cluster.tied", *command],
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
            process.wait(END_SECONDS)


def gpus_of(environment: Mapping[str, str], size: int) -> list[str]:
    """Return the GPU of each member, as CUDA names it: of those that are visible, in their order.

    Raises:
        UserError: too few are visible.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [str(number) for number in range(size)]
    found = visible.split(",")
    if len(found) < size:
        raise UserError(
            f"CUDA_VISIBLE_DEVICES is {visible}, but a gang of {size} needs {size} GPUs; use fewer "
            "--members, or let it see more"
        )
    return found[:size]
