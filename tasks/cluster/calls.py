"""Bounded calls to the Dask scheduler and its workers: each ends, whatever hangs or is gone.

Dask's own ``Client.run`` waits for a frozen worker without limit.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as NotYetError
from time import monotonic
from typing import Any, Final, TypeVar

from distributed import Client
from distributed.comm import CommClosedError
from distributed.metrics import time

T = TypeVar("T")

CALL_SECONDS: Final = 10.0
"""How long an answer may take that needs no work."""
LOOK_SECONDS: Final = 2.0


class WorkerLostError(RuntimeError):
    """A worker that the run needs is gone, or does not answer."""


class SchedulerLostError(RuntimeError):
    """The Dask scheduler is gone, or does not answer."""


def on_scheduler(client: Client, function: Callable[..., Any], **parameters: Any) -> Any:
    """Call a function in the scheduler's process and return what it returns.

    Args:
        client: of the cluster.
        function: it may take ``dask_scheduler``, too; a coroutine function is awaited.
        **parameters: of the function.

    Raises:
        SchedulerLostError: no answer came in time.
    """
    address = client._start_arg if isinstance(client._start_arg, str) else "of this run"
    if client.scheduler is not None and client.status == "running":
        try:
            return client.sync(
                client._run_on_scheduler, function, callback_timeout=CALL_SECONDS, **parameters
            )
        except (OSError, TimeoutError, asyncio.CancelledError) as error:
            reason = f"{type(error).__name__}: {error}".removesuffix(": ")
            raise SchedulerLostError(
                f"the Dask scheduler {address} does not answer ({reason}); see its log"
            ) from error
    raise SchedulerLostError(f"the Dask scheduler {address} is gone; see its log")


def on_worker(
    client: Client,
    address: str,
    function: Callable[..., Any],
    *arguments: Any,
    seconds: float | None = CALL_SECONDS,
) -> Any:
    """Call a function in a worker's event loop, beside its tasks, and return what it returns.

    Args:
        client: of the cluster.
        address: of the worker.
        function: a coroutine function is awaited.
        *arguments: of the function.
        seconds: that the answer may take; None waits as long as the scheduler has the worker.

    Raises:
        WorkerLostError: the worker is gone, or the connection to it, or no answer came in time.
        SchedulerLostError: the scheduler is gone.
        Exception: what the function raised.
    """
    future = _ask(client, address, function, *arguments)
    deadline = None if seconds is None else monotonic() + seconds
    while True:
        try:
            return future.result(timeout=LOOK_SECONDS if seconds is None else seconds)[address]
        except NotYetError as error:
            if future.done() and future.exception() is error:  # the function's own
                raise
            is_late = deadline is not None and monotonic() > deadline
            if is_late or not on_scheduler(client, _has_worker, address=address):
                future.cancel()
                raise WorkerLostError(f"the worker at {address} does not answer") from error
        except OSError as error:
            if not on_scheduler(client, _has_worker, address=address):
                raise WorkerLostError(f"the worker at {address} is gone") from error
            if isinstance(error, CommClosedError):
                text = f"the worker at {address} does not answer: a connection to it has ended"
                raise WorkerLostError(text) from error
            raise  # the function's own


def on_workers(
    client: Client,
    addresses: Iterable[str],
    function: Callable[..., T],
    *,
    seconds: float = CALL_SECONDS,
    silence: float | None = None,
) -> dict[str, T]:
    """Call a function in the event loops of several workers at once.

    Args:
        client: of the cluster.
        addresses: of the workers.
        function: without arguments.
        seconds: that the answers may take.
        silence: seconds without a heartbeat after which, at two looks in a row, a worker is waited
            for no more; None: all are, as long as the answers may take.

    Returns:
        By address what came in time; of workers that are gone or do not answer, nothing.

    Raises:
        SchedulerLostError: the scheduler does not answer, which is asked for heartbeats.
    """
    futures = {address: _ask(client, address, function) for address in addresses}
    if silence is None:
        wait(futures.values(), timeout=seconds)
    else:
        _wait_while_heard(client, futures, seconds, silence)
    found = {}
    for address, future in futures.items():
        if future.done() and not future.exception():
            found[address] = future.result()[address]
        future.cancel()
    return found


def _wait_while_heard(
    client: Client, futures: Mapping[str, "Future[Any]"], seconds: float, silence: float
) -> None:
    """Wait for answers of workers of which the scheduler hears something."""
    deadline, silent = monotonic() + seconds, frozenset[str]()
    waited = set(futures)
    while waited and (left := deadline - monotonic()) > 0:
        wait([futures[address] for address in waited], timeout=min(left, LOOK_SECONDS))
        waited = {address for address in waited if not futures[address].done()}
        if waited:
            before, silent = silent, silent_among(client, waited, silence)
            waited -= before & silent  # once, it may be the scheduler that stood still


def silent_among(client: Client, addresses: Collection[str], seconds: float) -> frozenset[str]:
    """Return which workers are gone, or were not heard of for so many seconds.

    Raises:
        SchedulerLostError: the scheduler does not answer.
    """
    asked = {"addresses": list(addresses), "seconds": seconds}
    return frozenset(on_scheduler(client, _silent, **asked))


def _silent(addresses: list[str], seconds: float, dask_scheduler: Any) -> list[str]:
    there, now = dask_scheduler.workers, time()
    return [a for a in addresses if a not in there or now - there[a].last_seen > seconds]


def _ask(
    client: Client, address: str, function: Callable[..., Any], *arguments: Any
) -> "Future[dict[str, Any]]":
    call = client._run(function, *arguments, workers=[address])
    loop: Any = client.loop  # of tornado, on asyncio
    return asyncio.run_coroutine_threadsafe(call, loop.asyncio_loop)


def _has_worker(address: str, dask_scheduler: Any) -> bool:
    return address in dask_scheduler.workers
