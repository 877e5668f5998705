"""The state of ``digen up``, in ``runs/up/state.json``; and ending exactly what it names.

A process is known by its id and the time at which it began, as ids are given again.
"""

import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

import psutil
from pydantic import ValidationError

from digen_core.errors import UserError
from digen_core.strict import Strict
from digen_core.transport.files import try_lock, written_whole

FOLDER = Path("runs/up")
STATE = FOLDER / "state.json"
ENVIRONMENT = FOLDER / "env"
USE_ENVIRONMENT = f"set -a; . {ENVIRONMENT}; set +a"
SAME_START_SECONDS = 0.005  # half of what the kernel counts in
END_SECONDS = 2.0  # what does not end by then is killed
KILL_SECONDS = 10.0  # a busy machine takes its time even for that
POLL_SECONDS = 0.02
ENDED = (None, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


class Options(Strict):
    """What ``digen up`` was asked for."""

    cluster: str
    workers: bool  # whether those of the cluster that have no host are started here
    host: str
    tls: bool
    prefect_auth: bool
    mlflow_auth: bool
    names: tuple[str, ...]  # by which others call the servers, beside the host
    deployments: str
    ports: tuple[int, int, int, int]  # Prefect, MLflow, Dask scheduler, its dashboard


class Service(Strict):
    """A process that was started."""

    name: str
    pid: int
    started: float  # as `start_of` says
    log: str
    gpus: tuple[str, ...] = ()
    """Those of this machine that it sees alone, as CUDA names them."""

    @property
    def process(self) -> psutil.Process | None:
        """The process, if it still runs."""
        try:
            process = psutil.Process(self.pid)
            same = abs(start_of(process) - self.started) < SAME_START_SECONDS
            return process if same and _status(process) not in ENDED else None
        except psutil.NoSuchProcess:
            return None


class State(Strict):
    """All that runs, and how to reach it."""

    options: Options
    addresses: dict[str, str]
    """Of what is reachable, by name."""

    reused: tuple[str, ...] = ()
    """What ran before: it is not ended."""

    environment: dict[str, str]
    """What a process needs to use it."""

    services: tuple[Service, ...] = ()

    def with_service(self, service: Service) -> "State":
        """Return the state with one more process, in place of an ended one of its name."""
        others = [other for other in self.services if other.name != service.name]
        return self.model_copy(update={"services": (*others, service)})

    def without(self, name: str) -> "State":
        """Return the state without a process that has ended as it was told to."""
        others = tuple(other for other in self.services if other.name != name)
        return self.model_copy(update={"services": others})

    def save(self) -> None:
        """Write the state and the environment; only this user may read them, for the passwords."""
        FOLDER.mkdir(parents=True, exist_ok=True)
        lines = [f"{name}={_in_shell(value)}\n" for name, value in self.environment.items()]
        write_privately(ENVIRONMENT, "".join(lines))
        write_privately(STATE, self.model_dump_json(indent=2))


def _in_shell(value: str) -> str:
    """Return a value as a shell reads it: in quotes if it has to be, which kubectl would keep."""
    return value if re.fullmatch(r"[\w@%+=:,./\[\]-]*", value) else shlex.quote(value)


def load_state() -> State | None:
    """Return what an earlier ``digen up`` left, if it is not down.

    Raises:
        UserError: the file is damaged.
    """
    try:
        return State.model_validate_json(STATE.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise UserError(f"cannot read {STATE}; end what it names, and remove it") from error


@contextmanager
def locked() -> Iterator[None]:
    """Run the body while no other command starts or ends services of this folder.

    Raises:
        UserError: one does.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    with try_lock(FOLDER / "lock") as is_ours:
        if not is_ours:
            raise UserError("another digen up or digen down is at work in this folder")
        yield


def start(
    name: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    gpus: tuple[str, ...] = (),
) -> Service:
    """Start a process that outlives this one; what it prints goes to its log."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    log = FOLDER / f"{name}.log"
    with log.open("ab") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C and the end of the terminal do not reach it
            env={**os.environ, **environment},
        )
    started = start_of(psutil.Process(process.pid))
    return Service(name=name, pid=process.pid, started=started, log=str(log), gpus=gpus)


def start_of(process: psutil.Process) -> float:
    """Return when a process began, in seconds: since the boot on Linux, where that is known.

    It stays the same if the clock is set: psutil adds the boot's time, which moves with the clock.
    """
    began = process.create_time()
    return began - psutil.boot_time() if psutil.LINUX else began


def end(services: Sequence[Service], children_seconds: float | None = None) -> None:
    """End processes and all that they started, in seconds, and wait until they are gone.

    Args:
        services: to end; each ends what it started itself, and what is left then is ended, too.
        children_seconds: What they started is ended before, and has this long for it.
    """
    processes = [process for service in services if (process := service.process)]
    children = [child for process in processes for child in _children(process)]
    if children_seconds is not None:
        _end(children, children_seconds)
    _end(processes, END_SECONDS)
    _end(children, END_SECONDS)


def _end(processes: Sequence[psutil.Process], seconds: float) -> None:
    stopped = [process for process in processes if _status(process) == psutil.STATUS_STOPPED]
    _each(stopped, "kill")  # it would not hear of anything else
    _each(processes, "terminate")
    alive = alive_after(processes, seconds)
    _each(alive, "kill")
    alive_after(alive, KILL_SECONDS)


def alive_after(processes: Iterable[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Return the processes that have not ended within some seconds.

    ``psutil.wait_procs`` will not do: in a container whose first process does not wait for orphans,
    what has ended stays there as a zombie for ever.
    """
    deadline = monotonic() + seconds
    alive = list(processes)
    while alive := [process for process in alive if _status(process) not in ENDED]:
        if monotonic() >= deadline:
            break
        sleep(POLL_SECONDS)
    return alive


def _status(process: psutil.Process) -> str | None:
    """Return what a process does, None if it is gone and its id may be another's."""
    try:
        return str(process.status()) if process.is_running() else None
    except psutil.NoSuchProcess:
        return None


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _each(processes: Sequence[psutil.Process], action: str) -> None:
    for process in processes:
        try:
            getattr(process, action)()
        except psutil.NoSuchProcess:
            continue


def write_privately(path: Path, text: str) -> None:
    """Write a file whole that only this user may read, from its first byte on."""
    with written_whole(path) as unfinished:
        unfinished.unlink(missing_ok=True)
        unfinished.touch(mode=0o600, exist_ok=False)
        unfinished.write_text(text)
