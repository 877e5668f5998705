"""Workers of this machine are copies of a process that has imported what they need."""

import os
import signal
import subprocess
import sys
from time import monotonic, sleep
from types import ModuleType

import psutil
import pytest
from distributed import Client
from prefect.settings import PREFECT_API_URL

from digen_core.config.schedule import ClusterConfig
from tasks.cluster.cluster import local_devices, run_cluster
from tasks.cluster.start_method import IMPORTS, import_ahead, start_method, variables_set


def test_where_there_is_an_accelerator_each_worker_imports_for_itself(tmp_path, monkeypatch):
    """CUDA does not survive a fork."""
    device = tmp_path / "device"
    monkeypatch.setattr("tasks.cluster.start_method.ACCELERATORS", [str(device)])
    assert start_method() == ("forkserver" if sys.platform == "linux" else "spawn")
    device.touch()
    assert start_method() == "spawn"


def test_where_others_could_have_it_run_code_there_is_no_fork_server(monkeypatch):
    """CVE-2022-42919."""
    monkeypatch.setattr("tasks.cluster.start_method.ACCELERATORS", [])
    monkeypatch.setattr(sys, "version_info", (3, 11, 0))
    assert start_method() == "spawn"


@pytest.mark.ci
@pytest.mark.skipif(
    start_method() == "spawn", reason="each worker of this machine imports for itself"
)
def test_what_lies_in_the_folder_that_digen_is_called_in_is_not_imported_ahead(tmp_path):
    """A user's own package may have the name of one of digen's."""
    (tmp_path / "tasks.py").write_text("print('the user's')")
    code = """
import os, sys
sys.path.remove("")  # as of a console script
from tasks.cluster.start_method import SAFE_PATH, import_ahead
import multiprocessing
import_ahead(1)
copy = multiprocessing.get_context("forkserver").Process(
    target=eval, args=(f"print({SAFE_PATH!r} in __import__('os').environ)",)
)
copy.start()
copy.join()
print(SAFE_PATH in os.environ)
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("False\nFalse\n", "")


@pytest.mark.skipif(
    start_method() == "spawn", reason="each worker of this machine imports for itself"
)
def test_copies_start_where_the_path_of_temporary_files_is_long(tmp_path):
    """As on clusters that give each job a folder of its own."""
    folder = tmp_path / ("a" * 60) / ("b" * 60)
    folder.mkdir(parents=True)
    code = """
import multiprocessing, tempfile
from tasks.cluster import start_method
start_method.IMPORTS = ()
start_method.import_ahead(1)
copy = multiprocessing.get_context("forkserver").Process(target=print, args=("here",))
copy.start()
copy.join()
print(tempfile.gettempdir())
"""
    environment = {**os.environ, "TMPDIR": str(folder)}
    said = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    assert said.split() == ["here", str(folder)]


@pytest.mark.ci
@pytest.mark.skipif(
    start_method() == "spawn", reason="each worker of this machine imports for itself"
)
def test_it_imports_ahead_with_the_threads_of_the_workers_and_hears_no_interrupt():
    """Ctrl-C reaches all processes of a terminal, as does its end; who imports shows nothing."""
    code = """
import multiprocessing, os, signal
from multiprocessing import forkserver, resource_tracker
from tasks.cluster.start_method import import_ahead
before = dict(os.environ)
import_ahead(3)
assert os.environ == before
pid = forkserver._forkserver._forkserver_pid
os.kill(pid, signal.SIGINT)
for process in pid, resource_tracker._resource_tracker._pid:
    os.kill(process, signal.SIGHUP)
print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))
copy = multiprocessing.get_context("forkserver").Process(target=int)
copy.start()
copy.join()
print(pid == forkserver._forkserver._forkserver_pid)
with open(f"/proc/{pid}/environ") as environment:
    print("OMP_NUM_THREADS=3" in environment.read().split(chr(0)))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (ran.stdout, ran.stderr) == ("False\nTrue\nTrue\n", "")


@pytest.mark.nightly
def test_what_copies_share_has_no_device_and_no_thread():
    code = f"""
import importlib, sys, threading, torch
for name in {IMPORTS!r}:
    importlib.import_module(name)
print(torch.cuda.is_initialized(), threading.active_count())
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert ran.stdout.split() == ["False", "1"], ran.stderr


@pytest.mark.slow
@pytest.mark.skipif(
    start_method() == "spawn", reason="each worker of this machine imports for itself"
)
def test_workers_are_copies_of_one_process(monkeypatch):
    """They have the variables of this process as they are, Prefect's settings of them too.

    What is lost comes back.
    """
    import_ahead(1)
    monkeypatch.setenv("SET_LATER", "yes")
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/later")
    config = ClusterConfig(threads_per_worker=1)
    with run_cluster(config, local_devices(config)) as address, Client(address) as client:
        client.wait_for_workers(2)
        first = client.run(_parent_and_settings)
        assert len({parent for parent, _ in first.values()}) == 1
        later = {("yes", "http://127.0.0.1:1/later")}
        assert {settings for _, settings in first.values()} == later
        parent = psutil.Process(next(iter(first.values()))[0])
        assert "multiprocessing.forkserver" in " ".join(parent.cmdline())
        lost = next(iter(first))
        os.kill(client.run(os.getpid, workers=[lost])[lost], signal.SIGKILL)
        deadline = monotonic() + 60
        while lost in client.scheduler_info(n_workers=-1)["workers"]:
            assert monotonic() < deadline
            sleep(0.05)
        client.wait_for_workers(2, timeout=100)
        again = client.run(_parent_and_settings)
        assert again.keys() != first.keys()
        assert {settings for _, settings in again.values()} == later


def _parent_and_settings() -> tuple[int, tuple[str | None, str | None]]:
    return os.getppid(), (os.environ.get("SET_LATER"), PREFECT_API_URL.value())


def test_variables_of_two_runs_of_a_process_are_unset_whichever_ends_first(monkeypatch):
    """The one that ended last was said to have failed, when it had trained."""
    monkeypatch.delenv("OF_MINE", raising=False)
    first, second = variables_set({"OF_MINE": "1"}), variables_set({"OF_MINE": "2"})
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    monkeypatch.delenv("OF_MINE", raising=False)


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_script_without_a_guard_is_not_run_again_by_what_it_starts(method, tmp_path):
    """As by workers, of which each would train."""
    (tmp_path / "script.py").write_text(f"""
import multiprocessing
from tasks.cluster.start_method import script_left_out
print("here")
with script_left_out():
    worker = multiprocessing.get_context({method!r}).Process(target=print, args=("there",))
    worker.start()
    worker.join()
print(__spec__)
""")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert (sorted(done.stdout.split()), done.stderr) == (["None", "here", "there"], "")


@pytest.mark.slow
def test_workers_do_not_run_the_script_that_starts_them(monkeypatch):
    script = ModuleType("__main__")
    script.__file__ = "/no/script.py"  # whose run would fail
    monkeypatch.setitem(sys.modules, "__main__", script)
    config = ClusterConfig(rollout_workers=1, trainer_workers=1)
    with (
        run_cluster(config, local_devices(config, colocated=False), lambda *_: None) as address,
        Client(address) as client,
    ):
        assert len(client.scheduler_info()["workers"]) == 2
    assert script.__spec__ is None
