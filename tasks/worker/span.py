"""Say on a task's receipt where and when it ran, what arrived for it, and what its process used."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import thread_time, time

from digen_core.models.compiled import compile_meter
from tasks.gang.received import take_received
from tasks.receipts import Ran, attach
from tasks.worker.transfers import crossing, received
from tasks.worker.usage import usage_meter

_body_cpu_seconds = 0.0


def body_cpu_seconds() -> float:
    """Return the CPU time of all task bodies of this process so far, without intra-op threads."""
    return _body_cpu_seconds


@contextmanager
def span_on_receipt(device: str, *, compiling: bool = False) -> Iterator[None]:
    """Run a task body on a device, and attach its span when it succeeds.

    Args:
        device: name of the device, or of a pool's worker.
        compiling: whether blocks of its model are compiled when they are first called.
    """
    global _body_cpu_seconds
    take_received()  # of a task that failed
    started, cpu = time(), thread_time()
    yield
    _body_cpu_seconds += thread_time() - cpu
    ended, came = time(), received()
    ran = Ran(
        device,
        started,
        ended,
        num_bytes=sum(own.num_bytes for own in came),
        received=crossing(came) if came else [],
        compile_seconds=compile_meter().read() if compiling else 0.0,
        usage=usage_meter().read(),
    )
    attach(ran)
