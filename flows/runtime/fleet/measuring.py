"""Measuring before a run: the model on some devices, for the choice of a layout.

There is no run yet that would hear of losses, so who is lost meanwhile is waited for here. Dask
would wait for ever: by the name of a worker it pins a task to that one's address.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from time import monotonic, sleep
from typing import Final

from distributed import Client, Future

from digen_core.config.run import RunConfig
from digen_core.control.protocol import Device
from digen_core.data.prompts import Prompt
from digen_core.planning.profile import Measured
from flows.runtime.fleet.losses import MAX_LOSSES
from flows.runtime.fleet.watch import Watch
from flows.runtime.observers import warn
from tasks.cluster.calls import WorkerLostError
from tasks.cluster.presence import Presence, dismiss
from tasks.gang.forming import form_gang
from tasks.gang.messages import GangBrokenError
from tasks.measure import measure_alone

POLL_SECONDS: Final = 0.5


def measure_devices(
    client: Client, config: RunConfig, devices: Sequence[Device], prompt: Prompt
) -> dict[Device, Measured]:
    """Load the model on devices and measure it there; on one that is lost, when it is back.

    Raises:
        UserError: the model cannot be loaded.
        WorkerLostError: one is lost again and again, or did not come back in time.
    """
    measuring, limit = _Measuring(client, config, prompt), config.cluster.rejoin_timeout
    all_there = monotonic()
    while waiting := [device for device in devices if device not in measuring.found]:
        workers = measuring.look()
        absent = [device.name for device in waiting if not measuring.go_on(device, workers)]
        if not absent:
            all_there = monotonic()
        elif monotonic() - all_there > limit:
            raise WorkerLostError(
                f"the worker {absent[0]}, on which the model is to be measured, did not come back "
                f"in {limit:.0f} s (cluster.rejoin_timeout); start it again"
            )
        sleep(POLL_SECONDS)
    return {device: measuring.found[device] for device in devices}


class _Measuring:
    """Tasks that measure, each on a device, and what they found."""

    def __init__(self, client: Client, config: RunConfig, prompt: Prompt) -> None:
        self.found: dict[Device, Measured] = {}
        self._client = client
        self._config = config
        self._prompt = prompt
        self._watch = Watch(client, config.cluster)
        self._futures: dict[str, Future[Measured]] = {}  # by device, as are the next two
        self._addresses: dict[str, str] = {}
        self._followers: dict[str, Mapping[str, str]] = {}
        self._losses = Counter[str]()

    def look(self) -> dict[str, Presence]:
        """Give up what was under way on workers that are lost; return the others, by name.

        Raises:
            WorkerLostError: one was lost too often.
        """
        seen = self._watch.look(self._addresses, (), self._followers)
        for name, why in seen.lost.items():
            del self._futures[name]
            address = self._addresses.pop(name)
            for own in (address, *self._followers.pop(name).values()):  # a gang is lost whole
                if own in seen.workers:
                    dismiss(self._client, own)
            self._losses[name] += 1
            text = f"worker {name} ({address}) {why}, on which the model was being measured"
            if self._losses[name] >= MAX_LOSSES:
                raise WorkerLostError(
                    f"{text}; it was lost {MAX_LOSSES} times: see its log, and the memory of its "
                    "machine"
                )
            warn(f"{text}; it is measured again when it is back")
        return {own.name: own for own in seen.workers.values() if own.name not in seen.lost}

    def go_on(self, device: Device, workers: Mapping[str, Presence]) -> bool:
        """Have a device measured, or keep what was found; say whether its workers are there."""
        future = self._futures.get(device.name)
        if future is None:
            return self._begin(device, workers.get(device.name))
        if not future.done():
            return True
        if isinstance(error := future.exception(), GangBrokenError):
            why = f"is a gang that cannot go on: {error}"
            self._watch.broken(self._addresses[device.name], why)
            return True
        self.found[device] = future.result()
        del self._addresses[device.name]  # it is not needed any more
        return True

    def _begin(self, device: Device, leader: Presence | None) -> bool:
        if leader is None or leader.lacks:
            return False
        followers = list(leader.followers.values())
        if followers:  # they may still be the gang of another run
            silence = self._config.cluster.heartbeat_timeout
            form_gang(self._client, leader.address, followers, silence)
        asked = measure_alone, self._config, self._prompt
        future = self._client.submit(*asked, workers=[leader.address], pure=False)
        self._futures[device.name] = future
        self._addresses[device.name] = leader.address
        self._followers[device.name] = leader.followers
        return True
