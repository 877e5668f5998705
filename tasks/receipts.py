"""Receipts: small facts that a task body hands to the flow besides its result.

Results of tasks are big arrays that stay on the workers. What the flow has to know to decide what
comes next is small (seconds, rewards, a policy version) and travels as a *receipt*: the body
attaches it, the worker sends it over Dask's event stream, and
`tasks.runner.completions.Completions` hands it out in the flow process. This module imports neither
Prefect nor Dask, so that any task body may.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import msgpack

MAX_RECEIPT_BYTES = 65_536

_collected: ContextVar[dict[str, Any] | None] = ContextVar("collected_receipt", default=None)


def attach(facts: dict[str, Any]) -> None:
    """Add ``facts`` to the receipt of the running task; later values replace earlier ones.

    Where nobody collects receipts (a body called in a test, or run by another task runner) this
    checks the facts and drops them. A retried task keeps what its earlier attempts attached, save
    what the later ones replace.

    Args:
        facts: Plain values only: None, bool, int, float, str, bytes, and lists and dicts of them.

    Raises:
        TypeError: If a value is not plain; NumPy and torch scalars are not.
        ValueError: If the receipt would exceed `MAX_RECEIPT_BYTES`.
    """
    merged = {**(_collected.get() or {}), **facts}
    try:
        num_bytes = len(msgpack.packb(merged))
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"a receipt takes plain values only, not {facts!r}: {error}") from error
    if num_bytes > MAX_RECEIPT_BYTES:
        raise ValueError(
            f"a receipt of {num_bytes} bytes exceeds {MAX_RECEIPT_BYTES}; "
            "return large values as the task's result instead"
        )
    receipt = _collected.get()
    if receipt is not None:
        receipt.update(facts)


@contextmanager
def collecting() -> Iterator[dict[str, Any]]:
    """Yield the dict into which `attach` writes inside this block."""
    receipt: dict[str, Any] = {}
    token = _collected.set(receipt)
    try:
        yield receipt
    finally:
        _collected.reset(token)


def is_collecting() -> bool:
    """Say whether the caller runs inside a task whose receipt is collected."""
    return _collected.get() is not None
