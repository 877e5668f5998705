"""Processes that are started, kept in a file, and ended: these and no others."""

import os
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from deployments.operation.state import (
    ENVIRONMENT,
    STATE,
    USE_ENVIRONMENT,
    Service,
    State,
    alive_after,
    end,
    load_state,
    locked,
    start,
    start_of,
)
from digen_core.errors import UserError
from support.up_options import OPTIONS

SLEEP = "import time; time.sleep(600)"
FAMILY = f"import subprocess, sys; subprocess.run([sys.executable, '-c', '{SLEEP}'])"
ORPHANS = f"""
import ctypes, subprocess, sys, time
ctypes.CDLL(None).prctl(36, 1)  # it becomes the parent of orphans, for which it does not wait
family = [sys.executable, "-c", {FAMILY!r}]
print(subprocess.Popen(family).pid, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def children_of(pid: int) -> list[psutil.Process]:
    deadline = time.monotonic() + 20
    while not (children := psutil.Process(pid).children()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return children


def test_a_process_is_ended_with_all_that_it_started():
    service = start("family", [sys.executable, "-c", FAMILY], {})
    (child,) = children_of(service.pid)
    assert service.process is not None
    end([service])
    assert service.process is None
    assert not alive_after([child], 0)


def test_a_frozen_family_is_killed():
    service = start("family", [sys.executable, "-c", FAMILY], {})
    (child,) = children_of(service.pid)
    for process in (child, psutil.Process(service.pid)):
        process.suspend()
    end([service], children_seconds=0.2)
    assert service.process is None
    assert not alive_after([child], 0)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such processes")
def test_where_nobody_waits_for_orphans_nothing_is_waited_for(monkeypatch):
    """As in a container whose first process is no init."""
    monkeypatch.setattr("deployments.operation.state.END_SECONDS", 60.0)
    first = subprocess.Popen([sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, text=True)
    try:
        parent = psutil.Process(int(first.stdout.readline()))
        (child,) = children_of(parent.pid)
        started = start_of(parent)
        now = time.monotonic()
        end([Service(name="family", pid=parent.pid, started=started, log="")])
        assert time.monotonic() - now < 60
        ended = [process.status() for process in (parent, child)]
        assert ended == [psutil.STATUS_ZOMBIE] * 2
    finally:
        first.kill()
        first.communicate()


def test_one_that_does_not_listen_is_killed():
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('x', flush=True); "
    service = start("deaf", [sys.executable, "-c", deaf + SLEEP], {})
    deadline = time.monotonic() + 20
    while not Path(service.log).read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    end([service])
    assert service.process is None


def test_a_process_that_got_an_old_id_is_left_alone():
    other = subprocess.Popen([sys.executable, "-c", SLEEP])
    try:
        started = start_of(psutil.Process(other.pid))
        recycled = Service(name="mlflow", pid=other.pid, started=started - 60, log="")
        assert recycled.process is None
        end([recycled])
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems count otherwise")
@pytest.mark.parametrize("seconds", [-3600, 2, 3600])
def test_a_clock_that_is_set_hides_no_process(tmp_path, monkeypatch, seconds):
    """The kernel then says that it was booted at another time, and nothing else."""
    service = start("service", [sys.executable, "-c", SLEEP], {})
    try:
        lines = Path("/proc/stat").read_text().splitlines()
        (booted,) = (int(line.split()[1]) for line in lines if line.startswith("btime"))
        (tmp_path / "stat").write_text(f"btime {booted + seconds}\n")
        (tmp_path / str(service.pid)).symlink_to(f"/proc/{service.pid}")
        with monkeypatch.context() as patch:
            before = psutil.Process(service.pid).create_time()
            patch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
            after = psutil.Process(service.pid).create_time()
            assert after - before == pytest.approx(seconds, abs=1e-3)
            assert service.process is not None
    finally:
        end([service])
    assert service.process is None


def wait(service: Service) -> None:
    """Wait until a process has ended; Python itself takes note if it ended very soon."""
    with suppress(ChildProcessError):
        os.waitpid(service.pid, 0)


def test_an_ended_process_is_not_there():
    service = start("short", [sys.executable, "-c", ""], {})
    wait(service)
    assert service.process is None
    end([service])


def test_the_state_is_kept_for_this_user_alone():
    service = start("short", [sys.executable, "-c", "print('hello')"], {"A": "b"})
    wait(service)
    environment = {"PREFECT_API_AUTH_STRING": "digen:x"}
    state = State(options=OPTIONS, addresses={"mlflow": "http://h:1"}, environment=environment)
    state.with_service(service).save()
    assert load_state() == state.with_service(service)
    assert ENVIRONMENT.read_text() == "PREFECT_API_AUTH_STRING=digen:x\n"
    assert {stat.S_IMODE(path.stat().st_mode) for path in (STATE, ENVIRONMENT)} == {0o600}
    again = service.model_copy(update={"pid": 1})
    assert state.with_service(service).with_service(again).services == (again,)


def test_a_shell_reads_the_environment_whatever_is_in_it():
    environment = {"KEY": "/my lab's $disk/tls/key.pem", "PREFECT_API_URL": "http://[::1]:4200/api"}
    State(options=OPTIONS, addresses={}, environment=environment).save()
    words = f'{USE_ENVIRONMENT}; printf \'%s\\n\' "$KEY" "$PREFECT_API_URL"'
    done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, check=True)
    assert (done.stdout.splitlines(), done.stderr) == ([*environment.values()], "")
    assert "PREFECT_API_URL=http://[::1]:4200/api\n" in ENVIRONMENT.read_text()


def test_no_state_is_nothing_and_a_damaged_one_is_said():
    assert load_state() is None
    STATE.parent.mkdir(parents=True)
    STATE.write_text("{}")
    with pytest.raises(UserError, match=r"cannot read runs/up/state.json; end what it names"):
        load_state()


def test_two_commands_do_not_start_things_at_once():
    with locked(), pytest.raises(UserError, match="another digen up or digen down"), locked():
        pass
