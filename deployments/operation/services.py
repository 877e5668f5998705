"""The parts that ``digen up`` starts: how each is called, where it is, and when it is ready."""

import os
import socket
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from prefect.settings import get_current_settings

from deployments.operation.access import mlflow_environment
from deployments.operation.prefect_server import (
    PrefectApi,
    any_free_port,
    is_free,
    is_healthy,
    is_ours,
    server_command,
    server_settings,
)
from deployments.operation.state import Options, Service, State
from digen_core import PYTHON
from digen_core.config.schedule import mlflow_of_environment
from digen_core.errors import UserError
from tasks.cluster.cluster import QUIET, as_environment
from tasks.cluster.listening import PRELOADS_OF_SCHEDULERS, is_loopback
from tasks.cluster.same_origin import LOOPBACK_NAMES

READY_SECONDS = 300.0  # a busy machine imports slowly
POLL_SECONDS = 0.2

PREFECT, MLFLOW, DASK, DASHBOARD = "prefect-server", "mlflow", "dask-scheduler", "dashboard"


def reachable_host(host: str) -> str:
    """Return the host under which others reach what listens on ``host``."""
    if host in ("0.0.0.0", "::"):
        from distributed.utils import get_ip

        with warnings.catch_warnings(action="ignore"):  # where it has no route it takes its name's
            return str(get_ip())
    return host


def choose_port(wanted: int, taken: set[int]) -> int:
    """Return a port if it is free, else another one."""
    port = wanted
    while port in taken or not is_free(port):
        port = any_free_port()
    taken.add(port)
    return port


def reused_addresses(*, own_toml: bool) -> dict[str, str]:
    """Return the addresses of servers that run already, are not ours, and are configured.

    Args:
        own_toml: the file prefect.toml is left from an earlier ``digen up``: what it says is gone.

    Raises:
        UserError: a configured one does not answer.
    """
    found = {}
    configured = os.environ.get("PREFECT_API_URL")
    if configured is None and not own_toml:
        configured = get_current_settings().api.url
    if configured is not None:
        if not is_healthy(configured):
            raise UserError(f"no Prefect server answers at {configured} (PREFECT_API_URL)")
        found[PREFECT] = configured
    if mlflow := mlflow_of_environment():
        if not mlflow.startswith("http") or not answers(f"{mlflow.rstrip('/')}/health"):
            raise UserError(f"no MLflow server answers at {mlflow} (MLFLOW_TRACKING_URI)")
        found[MLFLOW] = mlflow
    return found


def new_addresses(options: Options, reused: Mapping[str, str]) -> dict[str, str]:
    """Choose addresses for what is to be started.

    Raises:
        UserError: others are to reach it, and this machine does not know by which address.
    """
    host, taken = reachable_host(options.host), set[int]()
    if is_loopback(host) and not is_loopback(options.host):
        raise UserError(
            f"--host is {options.host}, but by which address others reach this machine is unknown, "
            "as no route leads out of its network; name it, such as --host 10.0.0.1"
        )
    ports = [choose_port(port, taken) for port in options.ports]
    scheme = "tls" if options.tls else "tcp"
    return {
        PREFECT: f"http://{host}:{ports[0]}/api",
        MLFLOW: f"http://{host}:{ports[1]}",
        DASK: f"{scheme}://{host}:{ports[2]}",
        # Whoever can open it sees everything, and it asks for no password: this machine only.
        DASHBOARD: f"http://127.0.0.1:{ports[3]}/status",
        **reused,
    }


def environment_of(addresses: Mapping[str, str], access: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make a process use the servers and the cluster."""
    return {
        "PREFECT_API_URL": addresses[PREFECT],
        "MLFLOW_TRACKING_URI": addresses[MLFLOW],
        "DASK_SCHEDULER_ADDRESS": addresses[DASK],
        **access,
    }


def commands_of(
    options: Options, addresses: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Return command and environment of each server, by name."""
    auth = environment.get("PREFECT_API_AUTH_STRING")
    return {
        PREFECT: (
            server_command(options.host, addresses[PREFECT], names_of(options)),
            server_settings(addresses[PREFECT], auth),
        ),
        MLFLOW: (_mlflow(options, addresses[MLFLOW]), {
            **mlflow_environment(environment),
            # Eight processes that judge what language models say.
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        }),
        DASK: (
            _scheduler(options, addresses),
            {**environment, **as_environment(QUIET)},
        ),
    }  # fmt: skip


def names_of(options: Options) -> list[str]:
    """Return the names by which browsers and programs may call the servers."""
    names = {*LOOPBACK_NAMES, *options.names}
    if not is_loopback(options.host):
        names |= {reachable_host(options.host), socket.gethostname(), socket.getfqdn()}
    return sorted(name.lower() for name in names)


def _mlflow(options: Options, address: str) -> list[str]:
    runs = Path("runs").resolve()
    command = [*PYTHON, "-m", "mlflow", "server", "--workers", "1"]
    command += ["--host", options.host, "--port", str(_port(address))]
    # The file and the folder that runs without a server use: it shows those, too.
    command += ["--backend-store-uri", f"sqlite:///{runs / 'mlflow.db'}"]
    command += ["--artifacts-destination", (runs / "mlartifacts").as_uri()]
    if options.mlflow_auth:
        command += ["--app-name", "basic-auth"]
    # By itself it answers to every name that begins as a private address does: 10.evil.example.
    hosts = [f"[[]{name}]" if ":" in name else name for name in names_of(options)]
    allowed = [pattern for host in hosts for pattern in (host, f"{host}:*")]
    origins = [f"{scheme}://{host}" for scheme in ("http", "https") for host in allowed]
    command += ["--allowed-hosts", ",".join(allowed)]
    return [*command, "--cors-allowed-origins", ",".join(origins)]


def _scheduler(options: Options, addresses: Mapping[str, str]) -> list[str]:
    command = [*PYTHON, "-m", "distributed.cli.dask_scheduler", "--host", options.host]
    command += ["--port", str(_port(addresses[DASK]))]
    command += ["--protocol", "tls" if options.tls else "tcp"]
    command += ["--dashboard-address", f"127.0.0.1:{_port(addresses[DASHBOARD])}"]
    return [*command, *(word for name in PRELOADS_OF_SCHEDULERS for word in ("--preload", name))]


def is_ready(name: str, state: State) -> bool:
    """Say whether a server answers."""
    address = state.addresses[name]
    if name == PREFECT:
        return is_ours(PrefectApi(address, state.environment.get("PREFECT_API_AUTH_STRING")))
    if name == MLFLOW:
        return answers(f"{address}/health")
    with socket.socket() as probe:
        probe.settimeout(2)
        return probe.connect_ex((urlsplit(address).hostname, _port(address))) == 0


def answers(url: str) -> bool:
    """Say whether a page is there."""
    try:
        return httpx.get(url, timeout=2.0).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def wait_until_ready(service: Service, ready: Callable[[], bool]) -> None:
    """Wait for a process to be ready.

    Raises:
        UserError: it ends, or is not ready in time; the message names its log.
    """
    deadline = time.monotonic() + READY_SECONDS
    while not ready():
        if service.process is None:
            raise UserError(f"{service.name} ended as it started; {service.log} says why")
        if time.monotonic() > deadline:
            raise UserError(
                f"{service.name} was not ready in {READY_SECONDS:.0f} s; see {service.log}"
            )
        time.sleep(POLL_SECONDS)


def _port(address: str) -> int:
    """Return the port of an address."""
    port = urlsplit(address).port
    assert port is not None
    return port
