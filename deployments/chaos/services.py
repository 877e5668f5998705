"""The services of a story: processes beside its run, started again some seconds after they end.

Their ports are fixed, so each story needs a network of its own.
"""

import os
import signal
import socket
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep
from typing import Annotated, Final

import psutil
from pydantic import Field, TypeAdapter

from deployments.chaos.story import Service, devices_of
from digen_core import PYTHON
from digen_core.config.rewards import CalledConfig, that_see
from digen_core.config.rewards.servers import RemoteConfig
from digen_core.config.run import RunConfig
from tasks.cluster.start_method import THREAD_VARIABLES
from tasks.worker.process import resources_of

FOLDER: Final = "services"
"""In a story's folder: what services keep, and their logs."""
DATABASE: Final = "mlflow.db"
TABLE: Final[TypeAdapter[dict[str, CalledConfig]]] = TypeAdapter(
    dict[str, Annotated[CalledConfig, Field(discriminator="type")]]
)
"""Of rewards, as the scorer is given it."""
RESTART_SECONDS: Final = 3.0
READY_SECONDS: Final = 300.0
_PORTS: Final[dict[Service, int]] = {"mlflow": 5000, "scorer": 8000, "scheduler": 8786}
_SCHEDULER: Final = f"tcp://127.0.0.1:{_PORTS['scheduler']}"
_RETRIED: Final = {"max-attempts": "12", "timeout": "10"}
"""Of rewards behind HTTP: a scorer that is started again is waited for."""


class Supervised:
    """A process that is started again when it has ended."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        followers: Sequence["Supervised"] = (),
    ) -> None:
        """Start it.

        Args:
            command: of the process.
            environment: beside that of this process.
            log: gets what it writes.
            followers: are started anew, too, when it has ended.
        """
        self._command = [*PYTHON, "-m", *command]
        self._environment = {**os.environ, **environment}
        self._log = log
        self._followers = followers
        self._over = Event()
        self._process = self._start()
        self._thread = Thread(target=self._watch)
        self._thread.start()

    @property
    def pids(self) -> list[int]:
        """The process, and those that it has started."""
        with suppress(psutil.NoSuchProcess):
            own = psutil.Process(self._process.pid)
            return [own.pid, *(child.pid for child in own.children(recursive=True))]
        return []

    def kill(self) -> None:
        """Kill it, with what it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End it for good."""
        self._over.set()
        self.kill()
        self._thread.join()

    def _start(self) -> "subprocess.Popen[bytes]":
        with self._log.open("ab") as log:
            return subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )

    def _watch(self) -> None:
        while True:
            self._process.wait()
            self.kill()  # what it has started
            for follower in self._followers:
                follower.kill()
            if self._over.wait(RESTART_SECONDS):
                return
            self._process = self._start()
            if self._over.is_set():  # since
                self.kill()


class Services:
    """The services of one story."""

    def __init__(self, names: Collection[Service], config: RunConfig, folder: Path) -> None:
        """Start them, and wait until they answer.

        Args:
            names: of the services.
            config: of the run, as it is without them.
            folder: of the story.
        """
        self._names = frozenset(names)
        self._config = config
        self._folder = folder / FOLDER
        self._folder.mkdir()
        self._workers: list[Supervised] = []
        self._services = {name: self._start(name) for name in _PORTS if name in self._names}
        self.settle()

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which the run finds them."""
        variables: dict[Service, dict[str, str]] = {
            "mlflow": {"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{_PORTS['mlflow']}"},
            "scheduler": {"DASK_SCHEDULER_ADDRESS": _SCHEDULER},
        }
        return {k: v for name in self._names for k, v in variables.get(name, {}).items()}

    @property
    def arguments(self) -> list[str]:
        """Of the run's command."""
        return list(_arguments(self._config)) if "scorer" in self._names else []

    @property
    def pids(self) -> dict[str, list[int]]:
        """Processes, by the names of the services."""
        return {name: service.pids for name, service in self._services.items()}

    def settle(self) -> None:
        """Wait until all answer, those started anew that would never.

        Raises:
            TimeoutError: one does not.
        """
        for service in (*self._services.values(), *self._workers):
            if any(_is_stopped(pid) for pid in service.pids):
                service.kill()
        for name in self._services:
            _wait_for(name, self._folder)
        if "scheduler" in self._names:
            _wait_for_workers(sum(1 + len(d.followers) for d, _ in devices_of(self._config)))

    def close(self) -> None:
        """End them."""
        for service in (*self._services.values(), *self._workers):
            service.close()

    def _start(self, name: Service) -> Supervised:
        log, port = self._folder / f"{name}.log", str(_PORTS[name])
        if name == "mlflow":
            return Supervised(self._mlflow(port), {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "0"}, log)
        if name == "scorer":
            rewards = self._folder / "rewards.json"
            rewards.write_bytes(TABLE.dump_json(served(self._config)))
            return Supervised(("deployments.chaos.scorer", port, str(rewards)), {}, log)
        self._workers = [
            self._worker(device.name, roles, 1 + len(device.followers))
            for device, roles in devices_of(self._config)
        ]
        where = ("--host", "127.0.0.1", "--port", port, "--no-dashboard")
        return Supervised(("distributed.cli.dask_scheduler", *where), {}, log, self._workers)

    def _mlflow(self, port: str) -> list[str]:
        command = ["mlflow", "server", "--workers", "1", "--port", port]
        command += ["--backend-store-uri", f"sqlite:///{self._folder / DATABASE}"]
        return [*command, "--artifacts-destination", (self._folder / "artifacts").as_uri()]

    def _worker(self, name: str, resources: Collection[str], members: int) -> Supervised:
        command = ["tasks.worker.process", _SCHEDULER, "--name", name]
        command += ["--resources", resources_of(resources)]
        if members > 1:
            command += ["--members", str(members)]
        threads = str(self._config.cluster.threads_per_worker)
        environment = dict.fromkeys(THREAD_VARIABLES, threads)
        return Supervised(command, environment, self._folder / f"{name}.log")


def served(config: RunConfig) -> dict[str, CalledConfig]:
    """Return the rewards that a scorer can have: those without options of their own."""
    options = RemoteConfig.model_fields
    return {
        name: reward
        for name, reward in that_see(config.rewards, "samples").items()
        if reward.type != "remote" and type(reward).model_fields.keys() <= options.keys()
    }


def _arguments(config: RunConfig) -> Iterator[str]:
    for name in served(config):
        url = f"http://127.0.0.1:{_PORTS['scorer']}/{name}"
        for key, value in {"type": "remote", "url": url, **_RETRIED}.items():
            yield from (f"--rewards.{name}.{key}", value)


def _is_stopped(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    return False


def _wait_for(name: Service, folder: Path) -> None:
    deadline = monotonic() + READY_SECONDS
    while monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", _PORTS[name]), timeout=5):
            return
        sleep(0.2)
    raise TimeoutError(f"{name} does not answer; see {folder / name}.log")


def _wait_for_workers(number: int) -> None:
    from distributed import Client

    with Client(_SCHEDULER, set_as_default=False, timeout=READY_SECONDS) as client:
        client.wait_for_workers(number, timeout=READY_SECONDS)
