"""A new user's session, with TLS and passwords: up, a deployment run, down, nothing left."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest
import yaml

ROOT = Path(__file__).parents[2]
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
    options = ["--ports", *ports, "--tls", "--prefect-auth", "--mlflow-auth"]
    up = call(*DIGEN, "up", "--deployments", "mine.yaml", *options)
    assert up.returncode == 0, up.stderr + up.stdout
    state = json.loads((tmp_path / "runs" / "up" / "state.json").read_text())
    processes = family(state)
    assert call(*DIGEN, "status").returncode == 0
    other = call(*DIGEN, "up", "--deployments", "mine.yaml", "--ports", *ports)
    assert (other.returncode, other.stderr) == (
        2, "digen: digen is up with tls True, not False; run 'digen down' first\n",
    )  # fmt: skip

    refused = call(*PREFECT, "-p", 'config={"num_iterations": 0}')
    assert refused.returncode == 1
    assert "0 is less than the minimum of 1" in " ".join((refused.stdout + refused.stderr).split())
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
    assert httpx.post(f"{prefect}/flow_runs/count", json={}).status_code == 401

    down = call(*DIGEN, "down")
    assert down.returncode == 0, down.stderr
    assert not [process for process in {*processes, *family(state)} if process.is_running()]
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
    assert not [process for process in processes if process.is_running()]
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
