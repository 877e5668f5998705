"""How workers of this machine start: as copies of one process that has imported what they need."""

import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from multiprocessing import forkserver, resource_tracker, util
from pathlib import Path
from typing import Final

import dask
from distributed.utils import get_mp_context

from tasks.cluster.garbage import PRELOAD

METHOD: Final = "distributed.worker.multiprocessing-method"
COPIED: Final = "tasks.cluster.copied"
"""The module that copies preload."""

SAFE_PATH: Final = "PYTHONSAFEPATH"
"""Keeps Python from importing from the folder that it is called in."""
THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
IMPORTS: Final = (
    PRELOAD,
    "distributed",
    "digen_core.models.loading",
    "digen_core.models.policy",
    "digen_core.rewards",
    "digen_core.training.optimizer",
    "tasks.worker.engine",
    "tasks.rollout",
    "tasks.decoding",
    "tasks.train",
    "tasks.score",
    COPIED,
)
"""What copies share, nearly all of what a start costs."""

ACCELERATORS: Final = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd", "/dev/accel")
MOST_OF_SOCKETS: Final = 60
"""Bytes of a folder in which Unix sockets may be: their paths have 107, of which 40 follow it."""
FORK_SAFE: Final = (3, 11, 1)  # before, any user of the machine could have the process run code


def environment_before_start(num_threads: int) -> dict[str, str]:
    """Return the variables that a worker reads when it imports, and not again.

    Args:
        num_threads: CPU threads of its engine.
    """
    return {
        **dict.fromkeys(THREAD_VARIABLES, str(num_threads)),
        # Threads that spin while they wait take the cores that other workers need.
        "OMP_WAIT_POLICY": "PASSIVE",
        "TRANSFORMERS_VERBOSITY": "error",
    }


def import_ahead(num_threads: int) -> None:
    """Have the process whose copies workers will be import what they need, from now on.

    Ctrl-C and a closed terminal do not reach it: it ends when the process does that started it.

    Args:
        num_threads: CPU threads of each worker's engine.
    """
    if start_method() != "forkserver":
        return
    with dask.config.set({METHOD: "forkserver"}):
        get_mp_context()  # the first time, this chooses what is imported: Dask's own modules
    multiprocessing.set_forkserver_preload(list(IMPORTS))
    with variables_set(environment_before_start(num_threads) | {SAFE_PATH: "1"}):
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        try:
            resource_tracker.ensure_running()  # its start lets Ctrl-C through, also if blocked
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            _choose_folder()
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextmanager
def script_left_out() -> Iterator[None]:
    """Have Python not run the script that this process runs in each process that the body starts.

    Workers need nothing of it, and one without ``if __name__ == "__main__"`` would train in each.
    """
    script = sys.modules["__main__"]
    before, script.__spec__ = script.__spec__, ModuleSpec("__main__", None)  # it has been run
    try:
        yield
    finally:
        script.__spec__ = before


def folder_of_sockets() -> str:
    """Return the folder of temporary files, or where its path is too long for sockets another."""
    folder = tempfile.gettempdir()
    return folder if len(os.fsencode(folder)) <= MOST_OF_SOCKETS else "/tmp"


def _choose_folder() -> None:
    """Have Python make the folder for sockets of this process, and those it starts, where they fit.

    Before 3.14 it takes that of temporary files.
    """
    before, tempfile.tempdir = tempfile.tempdir, folder_of_sockets()
    try:
        util.get_temp_dir()
    finally:
        tempfile.tempdir = before


@contextmanager
def variables_set(values: Mapping[str, str]) -> Iterator[None]:
    """Run the body with environment variables that this process and those it starts see."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)  # another run of this process may have ended before
            if value is not None:
                os.environ[name] = value


def start_method() -> str:
    """Return how Python is to start workers here: "forkserver" or "spawn".

    A copy imports nothing, and shares the memory of what is imported. But CUDA does not survive
    a fork, and one library that asks for a device when it is imported would break every worker:
    where there is an accelerator, each worker imports for itself.
    """
    has_accelerator = any(Path(device).exists() for device in ACCELERATORS)
    is_safe = sys.platform == "linux" and sys.version_info >= FORK_SAFE
    return "forkserver" if is_safe and not has_accelerator else "spawn"
