"""A new user's session, with TLS and passwords: up, a deployment run, down, nothing left."""

import json
import os
import shlex
import signal
import socket
import stat
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import httpx
import psutil
import pytest
import yaml
from distributed import Client, Security

from deployments.operation.state import alive_after
from support.paths import ROOT
from support.sockets import address_of, assert_documented, listening, parts_of_dask

DIGEN = [sys.executable, "-c", "from deployments.cli import main; main()"]
PREFECT = [sys.executable, "-m", "prefect", "--no-prompt", "deployment", "run", "post-train/shapes"]
SMALL = {
    "num_iterations": 1,
    "rollout": {"prompts_per_iteration": 2, "group_size": 2, "fragment_size": 2, "num_steps": 3},
    "algorithm": {"window": [1, 0, 2]},
    "evaluation": {"samples_per_prompt": 1, "num_steps": 2},
    "schedule": {"layout": "tsp"},
}


@pytest.fixture
def call(tmp_path):
    """Return a function that runs a command in a new folder, and ends what is up afterwards."""
    (tmp_path / "deployments").symlink_to(ROOT / "deployments")
    tree = yaml.safe_load((ROOT / "deployments" / "prefect.yaml").read_text())
    tree["deployments"] = tree["deployments"][:1]
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(tree))
    hidden = ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", "DASK_SCHEDULER_ADDRESS")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {"PREFECT_HOME": str(tmp_path / "prefect"), "PYTHONPATH": str(ROOT)}

    def run_command(*command):
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
        )

    yield run_command
    run_command(*DIGEN, "down")


def assert_that_workers_come_and_go(call, folder):
    def names():
        state = json.loads((folder / "runs" / "up" / "state.json").read_text())
        return {own["name"] for own in state["services"] if own["name"].startswith("core-")}

    def leave(name):
        words = shlex.join([*DIGEN, "worker", "--name", name, "--leave"])
        return call("bash", "-c", f"set -a; . runs/up/env; set +a; {words}")

    added = call(*DIGEN, "up", "2-cores", "--add")
    assert added.returncode == 0, added.stderr
    assert names() == {"core-0", "core-1", "core-2", "core-3"}
    left = leave("core-1")
    assert left.stdout.endswith("core-1 has left\n"), left.stderr
    assert names() == {"core-0", "core-2", "core-3"}
    assert call(*DIGEN, "status").returncode == 0
    again = leave("core-1")
    assert (again.returncode, again.stderr) == (
        2,
        "digen: no worker of the cluster is called 'core-1'; there are core-0, core-2, core-3\n",
    )


def free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@pytest.mark.operation
@pytest.mark.timeout(900)
def test_a_session_from_up_to_down(call, tmp_path):
    ports = list(map(str, free_ports(4)))
    options = ["--ports", *ports, "--mlflow-auth"]
    up = call(*DIGEN, "up", "--deployments", "mine.yaml", *options)
    assert up.returncode == 0, up.stderr + up.stdout
    state = json.loads((tmp_path / "runs" / "up" / "state.json").read_text())
    processes = family(state)
    assert call(*DIGEN, "status").returncode == 0
    other = call(*DIGEN, "up", "--deployments", "mine.yaml", "--ports", *ports)
    assert (other.returncode, other.stderr) == (
        2, "digen: digen is up with mlflow_auth True, not False; run 'digen down' first\n",
    )  # fmt: skip

    refused = call(*PREFECT, "-p", 'config={"num_iterations": 0}')
    assert refused.returncode == 1
    assert "0 is less than the minimum of 1" in " ".join((refused.stdout + refused.stderr).split())
    with listening_meanwhile(state, "prefect-worker") as of_worker:
        trained = call(*PREFECT, "--watch", "-p", f"config={json.dumps(SMALL)}")
    assert trained.returncode == 0, trained.stdout + trained.stderr
    (kept,) = (tmp_path / "runs").glob("shapes-*/config.json")
    config = json.loads(kept.read_text())
    assert (config["num_iterations"], config["train"]["learning_rate"]) == (1, 0.0012)  # merged
    statuses = [run["info"]["status"] for run in mlflow_runs(state, auth=True)]
    assert set(statuses) == {"FINISHED"}  # the training and its evaluations
    with pytest.raises(httpx.HTTPStatusError, match="401"):
        mlflow_runs(state, auth=False)
    prefect = state["addresses"]["prefect-server"]
    assert httpx.get(f"{prefect}/admin/settings").status_code == 401
    assert_that_it_listens_as_documented(state, of_worker)
    assert_that_passwords_are_the_owners(tmp_path, state)
    assert_that_workers_come_and_go(call, tmp_path)

    down = call(*DIGEN, "down")
    assert down.returncode == 0, down.stderr
    assert not alive_after({*processes, *family(state)}, 0)
    assert not (tmp_path / "prefect.toml").exists()
    assert call(*DIGEN, "status").returncode == 1


@pytest.mark.operation
@pytest.mark.timeout(600)
def test_whatever_is_frozen_goes_down_in_seconds(call, tmp_path):
    options = ["--ports", *map(str, free_ports(4))]
    up = call(*DIGEN, "up", "--deployments", "mine.yaml", *options)
    assert up.returncode == 0, up.stderr + up.stdout
    processes = family(json.loads((tmp_path / "runs" / "up" / "state.json").read_text()))
    for process in processes:
        process.suspend()
    began = time.monotonic()
    down = call(*DIGEN, "down")
    seconds = time.monotonic() - began
    assert down.returncode == 0, down.stderr
    assert "Prefect does not answer" in down.stdout + down.stderr
    assert not alive_after(processes, 0)
    assert seconds < 30, "it takes 10, on a machine that does nothing else"


@pytest.mark.operation
@pytest.mark.timeout(600)
def test_what_fails_to_start_leaves_nothing(call, tmp_path):
    (tmp_path / "mine.yaml").write_text("deployments: [{name: x, entrypoint: no.such.flow}]")
    up = call(*DIGEN, "up", "--deployments", "mine.yaml", "--no-workers", "--ports",
              *map(str, free_ports(4)))  # fmt: skip
    assert up.returncode == 2, up.stderr
    assert up.stderr.startswith("digen: Prefect did not take the deployments of mine.yaml; see")
    assert up.stderr.count("\n") == 1
    assert not (tmp_path / "runs" / "up" / "state.json").exists()
    assert not (tmp_path / "prefect.toml").exists()
    mine = [
        process.info["pid"]
        for process in psutil.process_iter(["pid", "cwd"])
        if process.info["cwd"] == str(tmp_path)
    ]
    assert not mine


@contextmanager
def listening_meanwhile(state, name):
    """Yield a set of where one process of a service listens, at any time while the body runs."""
    (pid,) = [service["pid"] for service in state["services"] if service["name"] == name]
    process, found, is_over = psutil.Process(pid), set(), Event()

    def look():
        while not is_over.wait(0.2):
            own = process.net_connections(kind="tcp")
            found.update(tuple(at.laddr) for at in own if at.status == psutil.CONN_LISTEN)

    thread = Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        is_over.set()
        thread.join()


def assert_that_it_listens_as_documented(state, of_worker):
    """Every socket is of a part that docs/security.md names, on the interface that it says.

    That of Prefect's worker is there while it has a run.
    """
    environment = state["environment"]
    prefix = "DASK_DISTRIBUTED__COMM__TLS__"
    security = Security(
        require_encryption=True,
        tls_ca_file=environment[f"{prefix}CA_FILE"],
        tls_client_cert=environment[f"{prefix}CLIENT__CERT"],
        tls_client_key=environment[f"{prefix}CLIENT__KEY"],
    )
    address = environment["DASK_SCHEDULER_ADDRESS"]
    with Client(address, security=security, set_as_default=False) as client:
        parts = parts_of_dask(client)
    for name, part in (("prefect-server", "Prefect server"), ("mlflow", "MLflow server")):
        parts[address_of(state["addresses"][name])] = part
    sockets = listening(psutil.Process(service["pid"]) for service in state["services"])
    parts |= dict.fromkeys(of_worker, "Prefect worker")
    assert_documented("digen up", {*sockets, *of_worker}, parts)


def assert_that_passwords_are_the_owners(folder, state):
    """The password is in files that only their owner can read, and in no log or database."""
    password = (folder / "runs" / "up" / "password").read_bytes()
    key = Path(state["environment"]["DASK_DISTRIBUTED__COMM__TLS__CLIENT__KEY"]).read_bytes()
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    holding = [
        path for path in files if any(secret in path.read_bytes() for secret in (password, key))
    ]
    names = {"password", "env", "state.json", "mlflow-auth.ini", "prefect.toml", "key.pem"}
    assert {path.name for path in holding} == names
    assert {stat.S_IMODE(path.stat().st_mode) for path in holding} == {0o600}
    assert any(path.suffix == ".db" for path in files)
    assert any(path.suffix == ".log" for path in files)


def family(state) -> list[psutil.Process]:
    """Return the processes of all services with what they started, as far as they are there."""
    found = []
    for service in state["services"]:
        if psutil.pid_exists(service["pid"]):
            process = psutil.Process(service["pid"])
            found += [process, *process.children(recursive=True)]
    return found


def mlflow_runs(state, *, auth: bool):
    environment = state["environment"]
    names = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")
    answer = httpx.post(
        f"{environment['MLFLOW_TRACKING_URI']}/api/2.0/mlflow/runs/search",
        json={"experiment_ids": ["1"]},
        auth=tuple(environment[name] for name in names) if auth else None,
        timeout=60,
    )
    return answer.raise_for_status().json()["runs"]


@pytest.mark.operation
@pytest.mark.timeout(600)
def test_a_training_opens_what_is_documented(tmp_path):
    (tmp_path / "deployments").symlink_to(ROOT / "deployments")
    hidden = ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", "DASK_SCHEDULER_ADDRESS")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {"PREFECT_HOME": str(tmp_path / "prefect"), "PYTHONPATH": str(ROOT)}
    training = subprocess.Popen(
        [*DIGEN, "train", "deployments/configs/shapes_smoke.toml"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    seen: dict[tuple[str, int], str] = {}
    try:
        deadline = time.monotonic() + 300
        while len(seen) < 7:  # Prefect's, the scheduler's two, and two of each worker
            assert training.poll() is None
            assert time.monotonic() < deadline, seen
            for address, process in listening([psutil.Process(training.pid)]).items():
                if process.pid == training.pid:
                    seen[address] = "run"
                else:
                    command = " ".join(process.cmdline())
                    seen[address] = "Prefect server" if "prefect_app" in command else "worker"
            time.sleep(0.2)
    finally:
        training.send_signal(signal.SIGINT)
        training.wait(120)
    of_the_run = iter(["Dask scheduler", "Dask dashboard", "nanny", "nanny"])
    parts = {at: next(of_the_run) if part == "run" else part for at, part in seen.items()}
    assert_documented("digen train", seen, parts)
    assert not list((tmp_path / "runs").glob("*.env"))
