"""Addresses and keys of Dask's processes: whoever may connect to one can run code.

A worker listens on the address by which it reaches its scheduler, so one of a scheduler on
127.0.0.1 cannot be reached from the network. TLS with one pair for all keeps everybody else out.
"""

import asyncio
import functools
import ipaddress
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Literal

import dask
from distributed import Scheduler, Security, Worker
from distributed.cli.dask_worker import main as dask_worker
from distributed.comm import connect, get_address_host
from distributed.utils import get_ip, get_ip_interface, json_load_robust

from digen_core.errors import UserError
from digen_core.preflight.network import parse_address
from tasks.cluster import ahead, dashboard, lineage, tls_errors

tls_errors.tell_apart()

INSECURE: Final = "--insecure"
"""Option of a worker that may listen on a network without TLS."""

PRELOADS_OF_SCHEDULERS: Final = (dashboard.PRELOAD, lineage.PRELOAD, ahead.PRELOAD)


MOST_LOGGED: Final = 500
"""Transfers that a worker remembers: of a pack each worker that generated may send some, and those
of the next task arrive while it waits."""
MISSED: Final = ("worker-heartbeat-missing", "worker-handle-scheduler-connection-broken")
"""Reasons of Dask for which a worker closes by itself: it was dismissed, or it was cut off."""
GRACE_SECONDS: Final = 0.5
"""Before it does: where the scheduler has closed it, or itself, that is acted on first."""


class TaskWorker(Worker):
    """A worker that keeps only what it needs, without an HTTP server, which nobody would ask.

    If its scheduler does not know it any more, or cannot be reached, its nanny starts another one.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, plugins=(lineage.ForgetsSources(),), **options)
        self.transfer_incoming_log = deque(maxlen=MOST_LOGGED)  # tasks tell what they were sent

    def start_http_server(self, *arguments: Any, **options: Any) -> None:
        """Start none."""

    async def close(  # type: ignore[override]
        self,
        timeout: float = 30,
        executor_wait: bool = True,
        nanny: bool = True,
        reason: str = "worker-close",
    ) -> str | None:
        """Close the worker, and the nanny if another worker is not to take its place."""
        if reason in MISSED:
            # A nanny that is told of it starts none: a dismissed worker would be lost for good.
            nanny = False
            await asyncio.sleep(GRACE_SECONDS)
        closed: str | None = await super().close(timeout, executor_wait, nanny, reason)
        return closed


TASK_WORKER: Final = f"{TaskWorker.__module__}.{TaskWorker.__name__}"


def is_loopback(host: str) -> bool:
    """Say whether only this machine reaches a host; of names only localhost is known."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


ENCRYPTED: Final[dict[str, object]] = {"distributed.comm.require-encryption": True}
"""Settings of a process that talks to no part of Dask without TLS."""


def tls_settings(certificate: Path | str, key: Path | str) -> dict[str, object]:
    """Return the Dask settings that make every part use a certificate and its key.

    Args:
        certificate: a file, or its text; it is the authority, too.
        key: likewise.
    """
    settings: dict[str, object] = {"distributed.comm.tls.ca-file": str(certificate)}
    for part in ("scheduler", "worker", "client"):
        settings[f"distributed.comm.tls.{part}.cert"] = str(certificate)
        settings[f"distributed.comm.tls.{part}.key"] = str(key)
    return settings


@functools.cache
def _own_pair() -> tuple[str, str]:
    """Make the certificate and the key of this process's clusters; neither is left on a disk."""
    made = Security.temporary()
    return made.tls_ca_file, made.tls_client_key


def own_tls_settings(tls: bool) -> dict[str, object]:
    """Return the Dask settings for a cluster of this process, while it starts and is used.

    Args:
        tls: whether its parts are to take nobody in who is not of this process.
    """
    return tls_settings(*_own_pair()) if tls else {}


def own_scheduler(tls: bool) -> dict[str, Any]:
    """Describe the scheduler of a cluster of this process, for a SpecCluster.

    Args:
        tls: as in `own_tls_settings`.
    """
    options = {
        "host": "127.0.0.1",
        "port": 0,
        "protocol": "tls" if tls else "tcp",
        "dashboard_address": "127.0.0.1:0",
        "preload": list(PRELOADS_OF_SCHEDULERS),
    }
    return {"cls": Scheduler, "options": options}


def asked_of_worker(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the values of the options of ``dask worker``, by name."""
    return dask_worker.make_context("digen worker", list(arguments)).params


def options_of_worker(arguments: Sequence[str], *, insecure: bool) -> list[str]:
    """Return options by which a worker listens where it reaches its scheduler, and only there.

    Args:
        arguments: of ``dask worker``; what they say of the host counts.
        insecure: whether it may listen on a network without TLS.

    Raises:
        UserError: it would listen on a network without TLS, and may not; or the scheduler's
            address is none.
    """
    asked = asked_of_worker(arguments)
    address = scheduler_of(asked)
    scheduler = parse_address("the scheduler's address", address)
    options = ["--worker-class", TASK_WORKER]
    if asked["listen_address"]:
        host = get_address_host(asked["listen_address"])
    elif asked["interface"]:
        host = get_ip_interface(asked["interface"])
    elif asked["host"]:
        host = asked["host"]
    else:
        host = get_ip(scheduler["host"])
        options += ["--host", host]
    protocol = asked["protocol"] or scheduler["scheme"]
    if protocol != "tls" and not insecure and not is_loopback(host):
        raise UserError(
            f"a worker of {address} would listen on {host} without TLS, and whoever reaches it "
            "there could run code on this machine; use a scheduler with TLS (digen up --host ... "
            "has it; docs/clusters.md says how to make one of your own), or "
            f"{INSECURE} if you know that nobody else is in that network"
        )
    return options


def scheduler_of(asked: dict[str, Any]) -> str:
    """Return the address of a worker's scheduler.

    Args:
        asked: as `asked_of_worker` returns it.
    """
    if asked["scheduler_file"]:
        return str(json_load_robust(asked["scheduler_file"])["address"])
    return str(asked["scheduler"] or dask.config.get("scheduler-address", ""))


def require_entry(
    address: str, part: Literal["client", "worker"], keys: Mapping[str, str] | None = None
) -> None:
    """Check that a scheduler lets this process in.

    Args:
        address: of the scheduler, at which something listens.
        part: as what it is to be let in.
        keys: files that count in place of those that Dask's settings name; as of `Security`.

    Raises:
        UserError: it does not, mostly as this process lacks its keys.
    """
    try:
        options = Security(**(keys or {})).get_connection_args(part)
        with ThreadPoolExecutor(1) as pool:  # in a notebook a loop runs in this thread
            pool.submit(lambda: asyncio.run(_knock(address, options))).result()
    except (OSError, TypeError, ValueError, RuntimeError) as error:
        # The second is Dask's word for no key, the third Tornado's for one that speaks no TLS.
        why = "no key for TLS is set here" if isinstance(error, TypeError) else str(error)
        raise UserError(
            f"the scheduler at {address} does not let this process in ({' '.join(why.split())}); "
            "digen up leaves address and keys in its folder: set -a; . runs/up/env; set +a"
        ) from error


async def _knock(address: str, options: Mapping[str, Any]) -> None:
    """Open a connection to a scheduler, and close it."""
    door = await connect(address, **options)
    await door.close()
