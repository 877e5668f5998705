"""What other workers sent for the running task."""

import io
import pickle
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from dask.sizeof import sizeof
from distributed import get_worker
from prefect import State

from digen_core.transport.weighty import Weighty
from tasks.cluster.presence import SITE
from tasks.gang.received import take_received
from tasks.receipts import Received

MOST_TOLD: Final = 64
"""From as many workers: each of a gang may be sent something by several of another gang."""

_counted = defaultdict[str, set[tuple[str, float]]](set)
"""Transfers to a worker of this process, by key and start, that were counted for a task."""


@sizeof.register(State)  # type: ignore[untyped-decorator]
def sent_bytes(state: "State[object]") -> int:
    """Return the size of a task's result as it is sent; Dask itself sees only the outermost object.

    The arrays in it are not copied for that, and gradients stay on their device.
    """
    sizer = _Sizer()
    sizer.dump(state)
    return sizer.num_bytes


class _Sizer(pickle.Pickler):
    """Counts what a pickle would have."""

    def __init__(self) -> None:
        self._rest = io.BytesIO()
        self._buffers: list[pickle.PickleBuffer] = []
        self._weights = 0  # of weighty values
        super().__init__(self._rest, protocol=5, buffer_callback=self._buffers.append)

    def reducer_override(self, value: object) -> Any:
        if isinstance(value, Weighty):
            self._weights += value.num_bytes
            return object, ()
        return NotImplemented

    @property
    def num_bytes(self) -> int:
        """Of all that was dumped."""
        buffers = sum(buffer.raw().nbytes for buffer in self._buffers)
        return len(self._rest.getvalue()) + buffers + self._weights


def received() -> list[Received]:
    """Return what came from other workers for this task; nothing outside of a worker.

    That are inputs, of which what several tasks here read is sent once and counted for the first of
    them, and what it pulled itself, in a gang each member its rows.
    """
    return _inputs() + take_received()


def crossing(found: Sequence[Received]) -> list[Received]:
    """Return the largest of what came, if this worker is at a site; a receipt has room for few."""
    try:
        resources = get_worker().state.total_resources
    except ValueError:  # outside of a worker
        return []
    if not any(name.startswith(SITE) for name in resources):
        return []
    return sorted(found, key=lambda own: own.num_bytes)[-MOST_TOLD:]


def _inputs() -> list[Received]:
    try:
        worker = get_worker()
        key = worker.get_current_task()
    except ValueError:
        return []
    inputs = {str(task.key) for task in worker.state.tasks[key].dependencies}
    log = list(worker.transfer_incoming_log)
    logged = {(str(name), entry["start"]) for entry in log for name in entry["keys"]}
    counted = _counted[worker.address]
    counted.intersection_update(logged)
    found = []
    for entry in log:  # Dask's log has a limited length
        new = {
            (str(name), entry["start"]): num_bytes
            for name, num_bytes in entry["keys"].items()
            if str(name) in inputs and (str(name), entry["start"]) not in counted
        }
        counted.update(new)
        if new:
            found.append(Received(entry["who"], sum(new.values()), entry["start"], entry["stop"]))
    return found
