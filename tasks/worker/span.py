"""Say on a task's receipt where and when it ran, what arrived for it, and what its process used."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from time import thread_time, time

from tasks import receipts
from tasks.worker.transfers import received_bytes
from tasks.worker.usage import usage_meter

_body_cpu_seconds = 0.0


def body_cpu_seconds() -> float:
    """Return the CPU time of all task bodies of this process so far, without intra-op threads."""
    return _body_cpu_seconds


@contextmanager
def span_on_receipt(device: str) -> Iterator[None]:
    """Run a task body on a device, and attach its span when it succeeds."""
    global _body_cpu_seconds
    started, cpu = time(), thread_time()
    yield
    _body_cpu_seconds += thread_time() - cpu
    span = {"device": device, "started": started, "ended": time()}
    receipts.attach({**span, "num_bytes": received_bytes()})
    if used := usage_meter().read():
        receipts.attach({"usage": asdict(used)})
