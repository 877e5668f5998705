"""What faults do to real processes, files and connections, and that it is undone."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from deployments.chaos.faults import Faults, send
from deployments.chaos.namespaces import ISOLATE, are_there
from deployments.chaos.story import DISK, FLOW, Fault, Moment
from digen_core.checkpoints.manifest import CHECKPOINTS_OF_RUN
from support.waiting import comes_to

NOW = Moment("stepped", 0)
STOPPED = psutil.STATUS_STOPPED


@pytest.fixture
def process():
    """A process that does nothing."""
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
    yield psutil.Process(started.pid)
    started.kill()
    started.wait()


def test_a_killed_process_is_gone(process, tmp_path):
    faults = Faults(tmp_path)
    assert faults.do(Fault("kill", ("w", "x"), NOW), {"w": [process.pid]}) == ["w"]
    assert comes_to(lambda: process.status() == psutil.STATUS_ZOMBIE)


def test_a_frozen_process_stays_so(process, tmp_path):
    Faults(tmp_path).do(Fault("freeze", ("w",), NOW), {"w": [process.pid]})
    assert comes_to(lambda: process.status() == STOPPED)


@pytest.mark.parametrize("kind", ["pause", "slow"])
def test_a_process_goes_on_afterwards(process, tmp_path, monkeypatch, kind):
    seen = []

    def send_and_look(pids, number):
        send(pids, number)
        is_stopped = number == signal.SIGSTOP
        seen.append(comes_to(lambda: (process.status() == STOPPED) == is_stopped))

    monkeypatch.setattr("deployments.chaos.faults.send", send_and_look)
    faults = Faults(tmp_path)
    faults.do(Fault(kind, ("w",), NOW, seconds=0.5), {"w": [process.pid]})
    faults.settle()
    assert len(seen) >= 2
    assert all(seen)
    assert process.status() != STOPPED


def test_what_lasts_is_undone_at_the_end(process, tmp_path):
    faults = Faults(tmp_path)
    faults.do(Fault("pause", ("w",), NOW, seconds=1000), {"w": [process.pid]})
    assert comes_to(lambda: process.status() == STOPPED)
    faults.close()
    assert comes_to(lambda: process.status() != STOPPED)


def test_signals_to_who_is_gone_do_not_matter(process):
    process.kill()
    process.wait()
    send([process.pid], signal.SIGKILL)


@pytest.mark.parametrize("kind", ["flip", "remove"])
def test_files_are_damaged_after_the_flow_is_killed(process, tmp_path, kind):
    run = tmp_path / "run-1"
    for version in (1, 2):
        checkpoint = run / CHECKPOINTS_OF_RUN / f"v000{version}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "state").write_bytes(bytes(100))
    (run / "metrics").mkdir()  # a record, which nobody can make again
    (run / "evaluation").mkdir()
    (run / "timelines").mkdir()  # of iterations, of which none is left to do
    (run / "config.json").write_text('{"num_iterations": 0}')
    (tmp_path / "mlflow.db").touch()  # beside the runs
    before = contents(run)
    faults = Faults(tmp_path)
    faults.do(Fault(kind, (DISK,), NOW), {FLOW: [process.pid]})
    assert comes_to(lambda: process.status() == psutil.STATUS_ZOMBIE)
    assert contents(run) == before
    faults.settle()
    changed = {path for path, content in before.items() if contents(run).get(path) != content}
    expected = f"{CHECKPOINTS_OF_RUN}/v0002/state" if kind == "flip" else "evaluation"
    assert {str(path.relative_to(run)) for path in changed} == {expected}


def contents(run: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() if path.is_file() else b"" for path in run.rglob("*")}


IN_NAMESPACES = """
import os, socket, sys, time
from pathlib import Path
from deployments.chaos.faults import Faults
from deployments.chaos.namespaces import mount_disk, prepare_network
from deployments.chaos.story import DISK, Fault, Moment

folder, now = Path(sys.argv[1]), Moment("stepped", 0)
prepare_network()
mount_disk(folder)
faults = Faults(folder)

def comes_to(is_so):
    while not is_so():
        time.sleep(0.01)

def refused():
    try:
        with (folder / "file").open("ab") as file:
            file.write(bytes(100_000))
        return False
    except OSError as error:
        return os.strerror(error.errno)

for kind, why in (("fill", "No space left on device"), ("read-only", "Read-only file system")):
    faults.do(Fault(kind, (DISK,), now, seconds=1), {})
    comes_to(lambda: refused() == why)
    comes_to(lambda: not refused())

listening = socket.create_server(("127.0.0.1", 0))
one = socket.create_connection(listening.getsockname())
other, _ = listening.accept()
other.settimeout(1)
faults.do(Fault("cut", ("w",), now, seconds=2), {"w": [os.getpid()]})
began = time.monotonic()
time.sleep(0.5)
one.sendall(b"late")
try:
    other.recv(4)
    sys.exit("packets arrive")
except TimeoutError:
    other.settimeout(60)
assert other.recv(4) == b"late"

faults.do(Fault("cut", ("w",), now, seconds=1), {"w": [os.getpid()]})
faults.do(Fault("cut", ("w",), now, seconds=6), {"w": [os.getpid()]})
time.sleep(2.5)  # the first is over, and has not ended the other
other.settimeout(1)
one.sendall(b"more")
try:
    other.recv(4)
    sys.exit("packets arrive though one of two cuts goes on")
except TimeoutError:
    other.settimeout(60)
assert other.recv(4) == b"more"

faults.do(Fault("fill", (DISK,), now, seconds=1), {})
comes_to(refused)
faults.do(Fault("read-only", (DISK,), now, seconds=3), {})
comes_to(lambda: refused() == "Read-only file system")
comes_to(lambda: not refused())
faults.close()
"""


@pytest.mark.nightly
def test_links_and_disks_fail_and_work_again(tmp_path):
    if not are_there():
        pytest.skip("this machine has no namespaces")
    command = [*ISOLATE, sys.executable, "-c", IN_NAMESPACES, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir()), "the disk was the namespace's own"
    assert os.access(tmp_path, os.W_OK)
