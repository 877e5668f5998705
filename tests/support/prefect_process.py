"""A Prefect server in a process of its own, which a test can stop and start again."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker
from prefect.settings import PREFECT_API_URL, temporary_settings


class PrefectProcess:
    """One port and one database, whichever process serves them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.api_url = f"http://127.0.0.1:{self._port}/api"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = {
            **os.environ,
            "PREFECT_HOME": str(self._folder / "prefect"),
            "PREFECT_SERVER_UI_API_URL": self.api_url,
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        }
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "prefect", "server", "start", "--port", str(self._port)],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + 120
        while not self._answers():
            assert time.monotonic() < deadline, "the Prefect server does not start"
            time.sleep(0.2)

    def stop(self) -> None:
        process = self._process
        assert process is not None
        process.terminate()
        try:
            process.wait(timeout=5)  # it waits for those who listen, who do not go
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.api_url}/health", timeout=2).is_success
        except httpx.HTTPError:
            return False


@contextmanager
def prefect_process(folder: Path) -> Iterator[PrefectProcess]:
    """Yield a server that flows of this process, and workers that it starts, report to."""
    server = PrefectProcess(folder)
    server.start()
    before = os.environ.get("PREFECT_API_URL")
    os.environ["PREFECT_API_URL"] = server.api_url
    try:
        with temporary_settings({PREFECT_API_URL: server.api_url}):
            yield server
    finally:
        # What is left would be tried again for minutes, and the tests' own server wait for that.
        for service in (APILogWorker, EventsWorker):
            service.drain_all(timeout=60)
        del os.environ["PREFECT_API_URL"]
        if before is not None:
            os.environ["PREFECT_API_URL"] = before
        server.stop()
