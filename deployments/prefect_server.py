"""The Prefect server that a command talks to: the configured one, a running one, or its own."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
from prefect import State
from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound
from prefect.logging.handlers import APILogWorker
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_CLIENT_MAX_RETRIES,
    get_current_settings,
    temporary_settings,
)

from digen_core.config import ConfigError

DEFAULT_PORT = 4200
START_SECONDS = 120.0

# On one small machine the server competes with the work: it is to need little CPU.
RECORDER_SETTINGS = {
    # One transaction a second instead of one for each state of each task, which also made the
    # opening of a flow run fail on a locked database and try again two seconds later.
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "500",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
}
_SERVER_SETTINGS = {
    # The pages of runs, tasks and artifacts do not need a copy of every event.
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_ENABLED": "false",
    # It lives as long as a command: nobody gives it automations.
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
    **RECORDER_SETTINGS,
}


@contextmanager
def prefect_server(log_dir: Path) -> Iterator[str]:
    """Yield the API's address, and end the server afterwards if it was started here.

    A server of our own has the UI, so that a run can be watched, and one database for the flow
    and its workers. Without it Prefect starts a hidden server in each process.

    Args:
        log_dir: folder for the log of a server that is started.

    Raises:
        RuntimeError: the server does not start; the message names its log.
    """
    configured = get_current_settings().api.url
    if configured is not None:
        yield configured
        return
    running = local_api(DEFAULT_PORT)
    if is_lasting(running):
        with _used(running):
            yield running
        return
    port = DEFAULT_PORT if is_free(DEFAULT_PORT) else any_free_port()
    log_dir.mkdir(parents=True, exist_ok=True)
    log_path = log_dir / "prefect-server.log"
    with log_path.open("ab") as log:
        server = [sys.executable, "-m", "prefect", "server", "start", "--port", str(port)]
        process = subprocess.Popen(
            [sys.executable, "-m", "deployments.tied", *server],  # ends with us, even if killed
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches the run first, which then ends the server
            env={**os.environ, **_SERVER_SETTINGS, "PREFECT_SERVER_UI_API_URL": local_api(port)},
        )
    try:
        _wait_until_healthy(local_api(port), process, log_path)
        with _used(local_api(port)):
            yield local_api(port)
    finally:
        APILogWorker.drain_all(timeout=10)  # what is still on its way to the server
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()


def set_state(flow_run_id: str, state: State[Any], before: str) -> None:
    """Set the state of a flow run at the server that is configured or answers on Prefect's port.

    Args:
        flow_run_id: of the run.
        state: its new state.
        before: what the run has to be now: running or paused.

    Raises:
        ConfigError: it is not, or no server knows it.
    """
    api_url = get_current_settings().api.url or local_api(DEFAULT_PORT)
    with temporary_settings({PREFECT_API_URL: api_url, PREFECT_CLIENT_MAX_RETRIES: 0}):
        try:
            with get_client(sync_client=True) as client:
                now = client.read_flow_run(UUID(flow_run_id)).state
                if now is None or now.type.value.lower() != before:
                    name = now.name if now else "unknown"
                    raise ConfigError(f"the run is {name} in Prefect, not {before}")
                client.set_flow_run_state(flow_run_id, state, force=True)
        except (httpx.HTTPError, ObjectNotFound) as error:
            raise ConfigError(
                f"the Prefect server at {api_url} does not know the run; set PREFECT_API_URL to "
                "the address that the run printed, followed by /api"
            ) from error


@contextmanager
def _used(api_url: str) -> Iterator[None]:
    """Point this process and those that it starts at an API."""
    before = os.environ.get("PREFECT_API_URL")
    os.environ["PREFECT_API_URL"] = api_url
    try:
        with temporary_settings({PREFECT_API_URL: api_url}):
            yield
    finally:
        del os.environ["PREFECT_API_URL"]
        if before is not None:
            os.environ["PREFECT_API_URL"] = before


def _wait_until_healthy(api_url: str, process: subprocess.Popen[bytes], log_path: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not is_healthy(api_url):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the Prefect server at {api_url} did not start; see {log_path}")
        time.sleep(0.2)


def is_lasting(api_url: str) -> bool:
    """Say whether a server runs that is not another command's own: that one ends with its command.

    A command's own server is told by its settings: nobody else turns the triggers off.
    """
    try:
        settings = httpx.get(f"{api_url}/admin/settings", timeout=2.0).json()
        return bool(settings["server"]["services"]["triggers"]["enabled"])
    except (httpx.HTTPError, ValueError, KeyError):
        return False


def is_healthy(api_url: str) -> bool:
    """Say whether a Prefect server answers."""
    try:
        return httpx.get(f"{api_url}/health", timeout=2.0).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def is_free(port: int) -> bool:
    """Say whether nobody listens on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def any_free_port() -> int:
    """Return a port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def local_api(port: int) -> str:
    """Return the address of the API of a server on this machine."""
    return f"http://127.0.0.1:{port}/api"
