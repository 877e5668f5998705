"""Gangs that a cluster file describes, started as it says: team by team, of unequal devices."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed import Client

from deployments.operation.launching import files_for
from digen_core.config.schedule import ClusterConfig
from digen_core.control.protocol import Device
from digen_core.planning.clusters.cluster import load_cluster
from support.layout_runs import BOTH, Case, check_weights, run_case
from support.paths import ROOT
from support.started import SRUN, write_program

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

ROOM = """
[slurm.constraints]
large = "rtx4090"
small = "rtx4060ti"
[[devices]]
kind = "large"
count = 1
hosts = ["a"]
[[devices]]
kind = "small"
count = 1
hosts = ["b"]
[[gangs]]
kind = "room"
ranks = ["large", "small"]
"""
SETTINGS = {"algorithm.kl_coefficient": 0.1, "parallel.stages": 2}
MEMBERS = {"room-0", "room-0.1"}


class RoomCase(Case):
    """A gang of two that does everything."""

    @property
    def changes(self) -> dict:
        return super().changes | SETTINGS

    @property
    def devices(self) -> list[Device]:
        return [Device("room-0", BOTH, "cpu x2", 2)]


@pytest.fixture
def address(prefect_backend, tmp_path) -> Iterator[str]:
    """Address of a cluster whose gang a job script for SLURM has started, with TLS.

    What stands for SLURM runs the steps of both components of the job on this machine.
    """
    from tasks.cluster.cluster import as_environment, run_cluster
    from tasks.cluster.listening import own_tls_settings

    file = tmp_path / "room.toml"
    file.write_text(ROOM)
    (script,) = files_for(load_cluster(file), "slurm", tls=True).values()
    path = write_program(tmp_path / "job.sbatch", script)
    write_program(tmp_path / "bin-srun", SRUN).rename(tmp_path / "srun")
    with run_cluster(ClusterConfig(), []) as address:
        variables = as_environment(own_tls_settings(tls=True))
        variables |= {"PYTHONPATH": os.pathsep.join(sys.path), "DASK_SCHEDULER_ADDRESS": address}
        (tmp_path / "runs" / "up").mkdir(parents=True)
        lines = [f"{name}='{value}'\n" for name, value in variables.items()]
        (tmp_path / "runs" / "up" / "env").write_text("".join(lines))
        paths = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
        job = subprocess.Popen(
            [path],
            cwd=tmp_path,
            env={**os.environ, "PATH": paths, "SCRIPT": str(path)},
            start_new_session=True,
        )
        try:
            with Client(address, set_as_default=False) as client:
                client.wait_for_workers(len(MEMBERS), timeout=180)
                workers = client.scheduler_info(n_workers=-1)["workers"].values()
                assert {own["name"] for own in workers} == MEMBERS
            yield address
        finally:
            os.killpg(job.pid, 15)
            job.wait()


def test_a_gang_of_unequal_cards_that_slurm_starts_gives_the_weights_of_the_serial_loop(
    tree, tiny_flux, address, monkeypatch
):
    case = RoomCase("colocated", (1,))
    run = run_case(case, tree, address, monkeypatch, **{"model.path": tiny_flux})
    check_weights(run)
    assert {span.device for span in run.spans} == {"room-0"}


@pytest.mark.timeout(600)
def test_digen_up_starts_the_teams_of_a_gang_and_a_run_trains_on_it(tmp_path):
    digen = [sys.executable, "-c", "from deployments.cli import main; main()"]
    hidden = ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", "DASK_SCHEDULER_ADDRESS")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {"PREFECT_HOME": str(tmp_path / "prefect"), "PYTHONPATH": str(ROOT)}
    here = ROOM.replace('hosts = ["a"]\n', "").replace('count = 1\nhosts = ["b"]\n', "count = 2\n")
    (tmp_path / "here.toml").write_text(here)

    environment_of_up = "set -a; . runs/up/env; set +a"
    leave = "worker --name small-spare-0 --leave"

    def call(*command: str | Path) -> subprocess.CompletedProcess:
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280
        )

    try:
        up = call(*digen, "up", "here.toml", "--ports", "14200", "15000", "18786", "18787")
        assert up.returncode == 0, up.stderr
        assert "starting room-0, room-0.1, small-spare-0 ..." in up.stdout
        left = call("bash", "-c", f"{environment_of_up}; {' '.join(map(repr, digen))} {leave}")
        assert left.stdout.endswith("small-spare-0 has left\n"), left.stdout + left.stderr
        words = (
            "train shapes --num-iterations 1 --parallel.stages 2 --schedule.layout colocated "
            "--rollout.prompts-per-iteration 2 --rollout.group-size 2 --rollout.fragment-size 2 "
            "--evaluation.samples-per-prompt 1 --evaluation.num-steps 2"
        )
        script = f"{environment_of_up}; exec {' '.join(map(repr, digen))} {words}"
        trained = call("bash", "-c", script)
        assert trained.returncode == 0, trained.stdout + trained.stderr
    finally:
        call(*digen, "down")
