"""The Prefect server that a command talks to: the configured one, or one of its own."""

import json
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import httpx
import psutil
from prefect import State
from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound
from prefect.settings import (
    PREFECT_API_AUTH_STRING,
    PREFECT_API_URL,
    PREFECT_CLIENT_MAX_RETRIES,
    get_current_settings,
    temporary_settings,
)
from prefect.states import Scheduled

from deployments.operation.sign_in import is_answered, link_to
from deployments.operation.state import write_privately
from deployments.processes import PREFECT_MODULE
from digen_core import PYTHON
from digen_core.errors import UserError
from digen_core.preflight.network import check_server, check_writable
from tasks.cluster.start_method import variables_set
from tasks.cluster.tied import AGAIN
from tasks.runner.prefect_api import send_logs

DEFAULT_PORT = 4200
START_SECONDS = 120.0
END_SECONDS = 20.0
LOOK_SECONDS = 5.0
NEWER_DATABASE = "Can't locate revision"
"""What Alembic says in the log of a server that does not know its database's tables yet."""
LAST_CHARACTERS = 2000
MOST_SILENT_SECONDS = 60.0
"""In which a command's own server has to answer at all; else it is started anew."""

# On one small machine the server competes with the work: it is to need little CPU.
RECORDER_SETTINGS = {
    # One transaction every two seconds instead of one for each state of each task, which also made
    # the opening of a flow run fail on a locked database and try again two seconds later.
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "500",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "2",
    # Of a server that keeps events: those that only said what the pages of task runs know.
    "PREFECT_SERVER_SERVICES_DB_VACUUM_EVENT_RETENTION_OVERRIDES": json.dumps(
        {f"prefect.task-run.{state}": 3600 for state in ("Running", "Completed")}
    ),
}
COMMAND_SETTINGS = {
    # The pages of runs, tasks and artifacts do not need a copy of every event.
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_ENABLED": "false",
    # It lives as long as a command: nobody gives it automations, schedules or work pools.
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_LATE_RUNS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_FOREMAN_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_CLEANUP_RECONCILER_ENABLED": "false",
    # Nor concurrency limits, whose leases might expire; and a pause waits for a person.
    "PREFECT_SERVER_SERVICES_REPOSSESSOR_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_PAUSE_EXPIRATIONS_LOOP_SECONDS": "60",
}


@dataclass(frozen=True, slots=True)
class PrefectApi:
    """Where a Prefect server is."""

    url: str
    auth: str | None = None
    """``user:password`` of a server that digen started."""

    def page(self) -> str:
        """Return the address of its pages; one that signs a browser in, if digen started it."""
        return link_to(self.url, self.auth) if self.auth else self.url.removesuffix("/api")


def server_command(host: str, api_url: str, names: Collection[str] = ()) -> list[str]:
    """Return the command that starts a server.

    Args:
        host: to listen on.
        api_url: of its API.
        names: by which others call it.
    """
    command = [*PYTHON, "-m", PREFECT_MODULE, "--host", host]
    command += ["--port", str(urlsplit(api_url).port)]
    return [*command, *(word for name in names for word in ("--name", name))]


def server_settings(api_url: str, auth: str | None) -> dict[str, str]:
    """Return the variables of a server: who may come in, and what it spends its time on."""
    asks = {"PREFECT_SERVER_API_AUTH_STRING": auth} if auth else {}
    return {
        **asks,
        **RECORDER_SETTINGS,
        "PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS": api_url.removesuffix("/api"),
        "PREFECT_SERVER_API_CSRF_PROTECTION_ENABLED": "true",
        "PREFECT_SERVER_UI_API_URL": "/api",  # under whatever name and port it is reached
        # Whatever the paths of a server are that the user has behind a proxy.
        "PREFECT_SERVER_API_BASE_PATH": "/api",
        "PREFECT_SERVER_UI_SERVE_BASE": "/",
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "INFO",  # in its log; terminals are silent
    }


@contextmanager
def prefect_server(log_dir: Path) -> Iterator[PrefectApi]:
    """Yield a server, and end it afterwards if it was started here.

    It is the configured one (PREFECT_API_URL, a Prefect profile, prefect.toml in this folder). No
    other that runs is taken: whose it is cannot be known. A server of our own has the UI, so that a
    run can be watched, and one database for the flow and its workers. Without it Prefect starts a
    hidden server in each process.

    Args:
        log_dir: folder for the log of a server that is started, and for the variables by which
            other commands reach it.

    Raises:
        UserError: the configured one does not answer.
            Or the database of one that is started cannot be written to, or is a newer Prefect's.
        RuntimeError: the server does not start; the message names its log.
    """
    configured = get_current_settings().api.url
    if configured is not None:
        _check_configured(configured)
        yield PrefectApi(configured)
        return
    check_home()
    log_dir.mkdir(parents=True, exist_ok=True)
    with _started(log_dir / "prefect-server.log") as (api, process):
        variables = variables_of(log_dir, urlsplit(api.url).port or 0)
        lines = [f"{name}={value}\n" for name, value in _environment(api).items()]
        write_privately(variables, "".join(lines))
        try:
            with _used(api), _watched(api, process):
                yield api
        finally:
            send_logs(10)
            with suppress(OSError):  # a disk that fails ended the run, and that is to be said
                variables.unlink()


def check_home() -> None:
    """Check that a server of our own can have its database in the home of Prefect, if it does.

    Raises:
        ConfigError: it cannot.
    """
    settings = get_current_settings()
    url = settings.server.database.connection_url
    if url and f"{settings.home}/" in url.get_secret_value():
        check_writable(f"PREFECT_HOME, for Prefect's database, is {settings.home}", settings.home)


def _check_configured(url: str) -> None:
    """Check that something answers at the address of a server that is to be used."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise UserError(
            f"PREFECT_API_URL, or that of Prefect's profile, is {url!r}; use http://HOST:PORT/api"
        )
    check_server("PREFECT_API_URL, or that of Prefect's profile,", url)


@contextmanager
def _started(log_path: Path) -> Iterator[tuple[PrefectApi, "subprocess.Popen[bytes]"]]:
    """Yield a server of our own, and end it afterwards.

    It has the port that people know, unless somebody else has it, or takes it before the server
    does: two commands that are started at once both find it free.
    """
    for port in _ports():
        api = PrefectApi(local_api(port), f"digen:{secrets.token_urlsafe(18)}")
        process = _start(api, log_path)
        try:
            if _is_ours_soon(api, process):
                yield api, process
                return
        finally:
            _end(process)
        if is_free(port):  # it is not the port
            break
    if NEWER_DATABASE in log_path.read_text(errors="replace")[-LAST_CHARACTERS:]:
        raise UserError(
            "the Prefect server did not start: a newer Prefect, of another environment, has used "
            "its database; set PREFECT_HOME to a folder for this one"
        )
    raise RuntimeError(f"the Prefect server at {api.url} did not start; see {log_path}")


def _ports() -> Iterator[int]:
    if is_free(DEFAULT_PORT):
        yield DEFAULT_PORT
    yield any_free_port()


def _start(api: PrefectApi, log_path: Path) -> "subprocess.Popen[bytes]":
    with log_path.open("ab") as log:
        server = server_command("127.0.0.1", api.url)
        return subprocess.Popen(
            # It ends with us, even if we are killed; and is started anew if it is.
            [*PYTHON, "-m", "tasks.cluster.tied", AGAIN, *server],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches the run first, which then ends the server
            env={**os.environ, **COMMAND_SETTINGS, **server_settings(api.url, api.auth)},
        )


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a server that was started here; one that is frozen is killed with what it is tied to."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=END_SECONDS)
        return
    tied = psutil.Process(process.pid)
    for own in (tied, *tied.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            own.kill()
    process.wait()


def variables_of(folder: Path, port: int | str) -> Path:
    """Return the file of the variables by which a command's own server is reached."""
    return folder / f"prefect-server-{port}.env"


def set_state(runs_dir: Path, flow_run_id: str, state: State[Any], before: str) -> None:
    """Set the state of a flow run at the configured server, or at that of a command.

    Args:
        runs_dir: folder of the runs, in which commands keep how their servers are reached.
        flow_run_id: of the run.
        state: its new state.
        before: what the run has to be now: running or paused.

    Raises:
        UserError: it is not, or no server knows it.
    """
    for api in _known_servers(runs_dir):
        settings = {PREFECT_API_URL: api.url, PREFECT_CLIENT_MAX_RETRIES: 0}
        if api.auth is not None:
            settings[PREFECT_API_AUTH_STRING] = api.auth
        try:
            with temporary_settings(settings), get_client(sync_client=True) as client:
                run = client.read_flow_run(UUID(flow_run_id))
                if (now := run.state) is None or now.type.value.lower() != before:
                    name = now.name if now else "unknown"
                    raise UserError(f"the run is {name} in Prefect, not {before}")
                if now.state_details.pause_reschedule and run.deployment_id:
                    state = Scheduled(name="Resuming")  # it has no process: a worker starts one
                client.set_flow_run_state(flow_run_id, state, force=True)
                return
        except (httpx.HTTPError, ObjectNotFound):
            continue  # it ended, or is another run's
    raise UserError(
        f"no Prefect server knows the run: neither the configured one nor one of {runs_dir}; set "
        "PREFECT_API_URL, and PREFECT_API_AUTH_STRING if it asks for a password, to those of the "
        "server that the run uses"
    )


def _known_servers(runs_dir: Path) -> Iterator[PrefectApi]:
    """Yield the configured server, and those of commands that run."""
    configured = get_current_settings().api.url
    if configured is not None:
        yield PrefectApi(configured)
    for path in sorted(runs_dir.glob(variables_of(Path(), "*").name)):
        try:
            lines = path.read_text().splitlines()
        except OSError:  # its command has just ended, or is another user's
            continue
        values = dict(line.split("=", 1) for line in lines if "=" in line)
        yield PrefectApi(values.get("PREFECT_API_URL", ""), values.get("PREFECT_API_AUTH_STRING"))


def _environment(api: PrefectApi) -> dict[str, str]:
    """Return the variables by which a process uses a server that was started here."""
    assert api.auth is not None
    return {"PREFECT_API_URL": api.url, "PREFECT_API_AUTH_STRING": api.auth}


@contextmanager
def _watched(api: PrefectApi, process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Have a server that was started here killed while it does not answer: it starts anew."""
    is_over = Event()

    def look() -> None:
        answered = time.monotonic()
        while not is_over.wait(LOOK_SECONDS):
            now = time.monotonic()
            if is_healthy(api.url, timeout=LOOK_SECONDS):
                answered = now
            elif now - answered > MOST_SILENT_SECONDS:
                process.send_signal(signal.SIGUSR1)
                answered = now + START_SECONDS - MOST_SILENT_SECONDS  # it has that long to start

    watch = Thread(target=look, daemon=True)
    watch.start()
    try:
        yield
    finally:
        is_over.set()
        watch.join()


@contextmanager
def _used(api: PrefectApi) -> Iterator[None]:
    """Point this process and those that it starts at a server that was started here."""
    settings = {PREFECT_API_URL: api.url, PREFECT_API_AUTH_STRING: api.auth}
    with variables_set(_environment(api)), temporary_settings(settings):
        yield


def _is_ours_soon(api: PrefectApi, process: "subprocess.Popen[bytes]") -> bool:
    """Wait until a server that was started answers; say whether it does."""
    deadline = time.monotonic() + START_SECONDS
    while not is_ours(api):
        if process.poll() is not None or time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def is_ours(api: PrefectApi) -> bool:
    """Say whether the server that was started answers, and not somebody else's on its port."""
    return is_healthy(api.url) and (api.auth is None or is_answered(api.url, api.auth))


def is_healthy(api_url: str, timeout: float = 2.0) -> bool:
    """Say whether a Prefect server answers, in some seconds."""
    try:
        return httpx.get(f"{api_url}/health", timeout=timeout).status_code == httpx.codes.OK
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
