"""Waiting for something that another process does."""

from collections.abc import Callable
from time import monotonic, sleep


def comes_to(is_so: Callable[[], object], seconds: float = 60.0) -> bool:
    """Wait until something is so, and return whether it came to that."""
    deadline = monotonic() + seconds
    while not is_so() and monotonic() < deadline:
        sleep(0.01)
    return bool(is_so())
