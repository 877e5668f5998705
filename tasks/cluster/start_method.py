"""How workers of this machine start: as copies of one process that has imported what they need."""

import multiprocessing
import sys
from pathlib import Path
from typing import Final

import dask
from distributed.utils import get_mp_context

IMPORTS: Final = (
    "distributed",
    "digen_core.models.loading",
    "digen_core.models.policy",
    "digen_core.rewards",
    "digen_core.training.optimizer",
)
"""What copies share, most of what a start costs: not Prefect, whose settings differ by worker."""

ACCELERATORS: Final = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd", "/dev/accel")
FORK_SAFE: Final = (3, 11, 1)  # before, any user of the machine could have the process run code


def start_method() -> dict[str, str]:
    """Return the Dask settings by which a process of ours starts workers.

    Copies start in a sixth of the time, and share the memory of what was imported. But CUDA does
    not survive a fork, and one library that asks for a device when it is imported would break every
    worker: where there is an accelerator, each worker imports for itself.
    """
    has_accelerator = any(Path(device).exists() for device in ACCELERATORS)
    is_safe = sys.platform == "linux" and sys.version_info >= FORK_SAFE
    method = "forkserver" if is_safe and not has_accelerator else "spawn"
    settings = {"distributed.worker.multiprocessing-method": method}
    if method == "forkserver":
        with dask.config.set(settings):
            get_mp_context()  # the first time, this chooses what is imported: Dask's own modules
        multiprocessing.set_forkserver_preload(list(IMPORTS))
    return settings
