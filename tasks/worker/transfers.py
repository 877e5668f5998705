"""Bytes that other workers sent for the running task."""

import io
import pickle
from typing import Any

from dask.sizeof import sizeof
from distributed import get_worker
from prefect import State

from digen_core.training.gradient_sum import GradientSum, UpdateGradient
from tasks.worker.pulling import take_pulled_bytes

_counted: set[tuple[str, float]] = set()
"""Transfers to this worker, by key and start, that were counted for a task."""


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
        self._on_devices = 0
        super().__init__(self._rest, protocol=5, buffer_callback=self._buffers.append)

    def reducer_override(self, value: object) -> Any:
        if isinstance(value, GradientSum | UpdateGradient):
            self._on_devices += value.num_bytes
            return object, ()
        return NotImplemented

    @property
    def num_bytes(self) -> int:
        """Of all that was dumped."""
        buffers = sum(buffer.raw().nbytes for buffer in self._buffers)
        return len(self._rest.getvalue()) + buffers + self._on_devices


def received_bytes() -> int:
    """Return the bytes that came from other workers for this task; 0 outside of a worker.

    They are inputs, of which what several tasks here read is sent once and counted for the first of
    them, and what it pulled itself.
    """
    return _input_bytes() + take_pulled_bytes()


def _input_bytes() -> int:
    try:
        worker = get_worker()
        key = worker.get_current_task()
    except ValueError:
        return 0
    inputs = {str(task.key) for task in worker.state.tasks[key].dependencies}
    logged = {
        (str(name), entry["start"]): num_bytes
        for entry in list(worker.transfer_incoming_log)
        for name, num_bytes in entry["keys"].items()
    }
    _counted.intersection_update(logged)  # Dask's log has a limited length
    new = [transfer for transfer in logged if transfer[0] in inputs and transfer not in _counted]
    _counted.update(new)
    return sum(logged[transfer] for transfer in new)
