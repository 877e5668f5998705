"""Say on a task's receipt where and when it ran, what arrived for it, and what its process used."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from time import time

from tasks import receipts
from tasks.transfers import received_bytes
from tasks.usage import usage_meter


@contextmanager
def span_on_receipt(device: str) -> Iterator[None]:
    """Run a task body on a device, and attach its span when it succeeds."""
    started = time()
    yield
    span = {"device": device, "started": started, "ended": time()}
    receipts.attach({**span, "num_bytes": received_bytes()})
    if used := usage_meter().read():
        receipts.attach({"usage": asdict(used)})
