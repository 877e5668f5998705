"""A real MLflow server, to be stopped and started again."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import requests


class MlflowServer:
    """A server on a port of its own whose data outlives it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uri = f"http://127.0.0.1:{free_port()}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--workers", "1"]
        command += ["--port", self.uri.rpartition(":")[2]]
        command += ["--backend-store-uri", f"sqlite:///{self.folder}/server.db"]
        command += ["--artifacts-destination", f"{self.folder}/artifacts"]
        log = self.folder / "server.log"
        with log.open("a") as file:
            self.process = process = subprocess.Popen(
                command,
                stdout=file,
                stderr=file,
                start_new_session=True,
                env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},  # starts sooner
            )
        deadline = time.monotonic() + 120
        while not self.answers():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, "the MLflow server did not start"
            time.sleep(0.2)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def answers(self) -> bool:
        try:
            return requests.get(f"{self.uri}/health", timeout=5).ok
        except requests.RequestException:
            return False


def free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])
