"""The run's folder: workers write into it, so their machines have to share it with the run's."""

from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Final

from digen_core.config.load import CONFIG_OF_RUN
from digen_core.config.run import RunConfig
from digen_core.control.protocol import Device
from digen_core.errors import UserError
from flows.runtime.context import RunContext
from tasks.cluster.calls import on_workers
from tasks.worker.checkpoint import is_there

SEEN_SECONDS: Final = 10.0
"""How long a disk of a network may take to show a folder that was just made."""
LOOK_SECONDS: Final = 0.5


def require_folder(run: RunContext, device: Device) -> None:
    """Check that a device sees the run's folder, if the run has to keep what its workers write.

    Elsewhere a worker would make a folder of that name, and checkpoints in it that nobody finds.
    Workers that do not answer are not waited for: the next look finds them lost.

    Raises:
        UserError: it does not.
    """
    if not (run.fleet.shares_folder and _writes(run.config, device)):
        return
    folder = run.shared_dir
    path = folder / CONFIG_OF_RUN
    if not path.is_file():  # it has gone
        return
    members = [run.fleet.addresses[device.name], *run.fleet.followers.get(device.name, {}).values()]
    deadline = monotonic() + SEEN_SECONDS
    while lacking := _without(run, path, members):
        if monotonic() > deadline:
            raise UserError(
                f"the worker {device.name} ({lacking[0]}) does not see the run's folder {folder}, "
                "into which it is to write; share the folder of the runs (tracking.runs_dir) with "
                "its machine or container, under the same path"
            )
        sleep(LOOK_SECONDS)


def _writes(config: RunConfig, device: Device) -> bool:
    """Say whether a device writes files: trainers do, and others what the config has them keep."""
    tracking = config.tracking
    keeps = tracking.keep_images != "none" or tracking.keep_trajectories
    return "trainer" in device.roles or bool(keeps or tracking.profile_iterations)


def _without(run: RunContext, path: Path, members: list[str]) -> list[str]:
    """Return the addresses of workers that do not see a file."""
    found = on_workers(run.client, members, partial(is_there, path))
    return [address for address, sees in found.items() if not sees]
