"""A command that is tied to a process, and started anew if a signal ended it."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from support.waiting import comes_to
from tasks.cluster.tied import AGAIN

CHILD = """
import os, sys, time
from pathlib import Path
with Path(sys.argv[1]).open("a") as file:
    file.write(f"{os.getpid()}\\n")
time.sleep(600)
"""


@pytest.fixture
def start(tmp_path):
    """Return a function that starts the child, tied; and the file with the pids it had."""
    started = []

    def begin(*options: str, code: str = CHILD) -> tuple[subprocess.Popen, Path]:
        pids = tmp_path / "pids"
        command = [sys.executable, "-m", "tasks.cluster.tied", *options]
        command += [sys.executable, "-c", code, str(pids)]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE))
        return started[-1], pids

    yield begin
    for process in started:
        process.stdin.close()  # ends the child, too
        process.wait(timeout=60)


def pids_in(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()] if path.exists() else []


@pytest.mark.parametrize("killer", ["somebody", "SIGUSR1"])
def test_a_killed_command_is_started_anew(start, killer):
    tied, path = start(AGAIN)
    assert comes_to(lambda: len(pids_in(path)) == 1)
    if killer == "somebody":
        os.kill(pids_in(path)[0], signal.SIGKILL)
    else:
        tied.send_signal(signal.SIGUSR1)
    assert comes_to(lambda: len(pids_in(path)) == 2)
    tied.terminate()
    tied.wait(timeout=60)
    assert len(pids_in(path)) == 2, "what is to end is not started again"


def test_without_that_it_ends_with_the_command(start):
    tied, path = start()
    assert comes_to(lambda: len(pids_in(path)) == 1)
    os.kill(pids_in(path)[0], signal.SIGKILL)
    tied.wait(timeout=60)
    assert len(pids_in(path)) == 1


def test_one_that_ends_by_itself_is_not_started_again(start):
    tied, _ = start(AGAIN, code="raise SystemExit(3)")
    assert tied.wait(timeout=60) == 3


EARLY = """
import os, signal, subprocess, sys
from tasks.cluster import tied

class Popen(subprocess.Popen):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        print(self.pid, flush=True)
        os.kill(os.getpid(), signal.SIGTERM)

tied.subprocess.Popen = Popen
sys.exit(tied.main())
"""


def test_one_that_is_to_end_while_its_command_starts_leaves_nothing():
    """As where a run is stopped just when it starts its Prefect server."""
    command = [
        sys.executable,
        "-c",
        EARLY,
        AGAIN,
        sys.executable,
        "-c",
        "import time; time.sleep(600)",
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as tied:
        child = int(tied.stdout.readline())
        tied.wait(timeout=60)
    try:
        assert comes_to(lambda: not psutil.pid_exists(child), 10)
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
