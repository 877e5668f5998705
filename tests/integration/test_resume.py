"""A run that was interrupted goes on, and ends as if it had not been."""

import logging
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from deployments.operation.state import alive_after
from digen_core.config.run import RunConfig
from digen_core.config.toml import as_toml
from support.paths import ROOT
from support.resumed import ITERATIONS, JOB, check_run, stop_before_checkpoint
from support.runs import TOLERANCE, Watch, distance, merged, only_run, reference

pytestmark = pytest.mark.slow

OPERATION = pytest.mark.operation

CASES = {
    "a decaying rate, an average and several updates": {
        "train.learning_rate_decay": "cosine",
        "train.updates_per_iteration": 2,
    },
    "the old policy": {
        "algorithm": {"type": "diffusion_nft", "old_policy_decay": "ramp"},
        "train.learning_rate": 1e-2,
        "train.updates_per_iteration": 2,
    },
    "the history of rewards": {
        "algorithm": {"type": "ddpo", "buffer_size": 16, "min_count": 5},
    },
}


@pytest.mark.ci
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if "rate" in case else OPERATION) for case in CASES]
)
def test_a_run_goes_on_with_other_workers_in_another_layout(
    case, tree, cluster_address, prefect_backend
):
    from flows.post_train import post_train
    from flows.runtime.observers import watching

    def config_of(layout: str, *workers: int) -> RunConfig:
        changes = {**JOB, **CASES[case], "schedule.layout": layout}
        changes["cluster.scheduler_address"] = cluster_address(*workers)
        tree_ = merged(tree, changes)
        if "algorithm" in CASES[case]:
            tree_["algorithm"] = CASES[case]["algorithm"]
        return RunConfig.model_validate(tree_)

    stop_before_checkpoint(3, config_of("disaggregated", 1, 1))
    folder = only_run(tree)
    # The third is done again; the fourth, which may have ended before the run did, was not kept.
    kept = sorted(file.name for file in (folder / "samples").iterdir())
    assert kept == [f"iteration-{index:06d}.parquet" for index in range(3)]

    layout = "disaggregated" if case == "the history of rewards" else "tsp"  # needs all rewards
    config = config_of(layout, 2, 2)
    watch = Watch()
    with watching(watch):
        report = post_train(config, str(folder))
    assert [record.iteration for record in watch.records] == [2, 3, 4]
    assert (report.run_id, report.num_iterations) == (folder.name, ITERATIONS)
    assert (report.before.version, report.after.version) == (0, config.num_updates)
    check_run(folder, config)


LAYOUTS = [
    {"schedule.layout": "disaggregated", "rollout.fragment_size": 2},
    {"schedule.layout": "colocated", "cluster.trainer_workers": 2},
    {"schedule.layout": "tsp", "cluster.trainer_workers": 2, "train.pack_size": 3},
    {"schedule.layout": "elastic", "cluster.rollout_workers": 2, "rollout.steps_per_task": 2},
    {"schedule.layout": "gap", "cluster.rollout_workers": 2, "cluster.trainer_workers": 2},
    {"schedule.layout": "colocated-strong"},
]


@pytest.mark.timeout(1800)
@pytest.mark.operation
@pytest.mark.parametrize("num_kills", [1, 5])
def test_a_killed_run_goes_on(num_kills, tree, prefect_backend, tmp_path):
    """SIGKILL at random points, each time resumed with other workers in another layout."""
    dice = random.Random(num_kills)
    tree = merged(tree, {**JOB, "model.dtype": "float32"})
    (tmp_path / "job.toml").write_text(as_toml(RunConfig.model_validate(tree)))
    points = sorted(dice.sample(range(ITERATIONS), num_kills)) if num_kills > 1 else [2]
    arguments = ["job.toml"]
    for done, changes in zip([*points, None], LAYOUTS, strict=False):
        settings = [f"--{key}={value}" for key, value in changes.items()]
        process = digen(tmp_path, "train", *arguments, *settings)
        if done is None:
            output, _ = process.communicate(timeout=900)
            assert process.returncode == 0, output
            break
        wait_for(lambda done=done: progress(tmp_path) >= done, process)
        time.sleep(dice.uniform(0, 2))
        kill(process)
        arguments = ["--resume", str(only_run(tree))]
    check_run(only_run(tree), RunConfig.model_validate(tree))


@pytest.mark.ci
def test_a_run_of_which_all_processes_are_told_to_end_is_over_in_seconds(tree, tmp_path):
    """As those of a job that SLURM cancels. Prefect's server is one, and answers no more."""
    config = RunConfig.model_validate(merged(tree, {"num_iterations": 1000}))
    (tmp_path / "job.toml").write_text(as_toml(config))
    process = digen(tmp_path, "train", "job.toml", own_server=True)
    wait_for(lambda: progress(tmp_path) >= 1, process)
    started = psutil.Process(process.pid).children(recursive=True)
    for one in (*started, process):
        with suppress(psutil.NoSuchProcess):
            one.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)  # Prefect's client waits for minutes
    assert process.returncode == 128 + signal.SIGTERM, output
    folder = only_run(tree)
    assert f"resume it with: digen train --resume {folder}" in output
    assert "failed" not in output
    assert '"KILLED"' in (folder / "tracking/entries.jsonl").read_text()
    assert not alive_after(started, 60)


def digen(folder: Path, *arguments: str, own_server: bool = False) -> "subprocess.Popen[str]":
    """Start the command as a user does, with the tests' Prefect server or one of its own."""
    from prefect.settings import get_current_settings

    paths = [str(ROOT / "tests/support/own"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    if own_server:
        environment.pop("PREFECT_API_URL", None)
        environment["PREFECT_HOME"] = str(folder / "prefect")
    else:
        environment["PREFECT_API_URL"] = str(get_current_settings().api.url)
    code = "from deployments.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def progress(folder: Path) -> int:
    """Return the finished iterations; -1 before the run is tracked."""
    runs = list((folder / "runs").glob("*/lineage.json"))
    return len(list((runs[0].parent / "metrics").glob("*.json"))) if runs else -1


def wait_for(condition, process) -> None:
    deadline = time.monotonic() + 600
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def kill(process) -> None:
    """Kill the flow process; its workers and all else that it started end by themselves."""
    started = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    left = alive_after(started, 60)
    assert not left, [child.cmdline() for child in left]


def test_what_is_tied_to_a_process_ends_with_it():
    code = """
import subprocess, sys, time
child = [sys.executable, "-c", "import time; time.sleep(600)"]
tied = [sys.executable, "-m", "tasks.cluster.tied", *child]
subprocess.Popen(tied, stdin=subprocess.PIPE)
time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    wait_for(lambda: len(psutil.Process(process.pid).children(recursive=True)) == 2, process)
    kill(process)


@pytest.fixture
def address(cluster_address):
    """Address of a cluster that is there before caplog, whose handler its start would silence."""
    return cluster_address(1, 1)


@pytest.mark.nightly
def test_damaged_files_do_not_refuse_a_resume(tree, address, prefect_backend, capsys, caplog):
    from prefect.logging.configuration import setup_logging

    from deployments.cli import run
    from digen_core.checkpoints.tensors import last_state
    from flows.post_train import post_train
    from flows.runtime.observers import watching

    def config_of(num_iterations: int) -> RunConfig:
        changes = {**JOB, "num_iterations": num_iterations, "evaluation.every": 0}
        changes["cluster.scheduler_address"] = address
        return RunConfig.model_validate(merged(tree, changes))

    setup_logging()  # else the first flow of a process does, and takes caplog's handler away
    logging.getLogger().addHandler(caplog.handler)
    post_train(config_of(2))
    folder = only_run(tree)
    for name in ("devices.parquet", "evaluation/before.json", "metrics/iteration-000000.json"):
        (folder / name).write_bytes(b"\x00 damaged")
    for name in ("run.json", "sent.json"):
        (folder / "tracking" / name).write_bytes(b"{")
    entries = folder / "tracking" / "entries.jsonl"
    lines = entries.read_bytes().splitlines(keepends=True)
    entries.write_bytes(b"".join([*lines[:2], b'{"key": \xff\n', b"[]\n", *lines[2:]]))
    (newest,) = (folder / "checkpoints").glob("v*2")
    content = bytearray((newest / "state.safetensors").read_bytes())
    content[len(content) // 2] ^= 1
    (newest / "state.safetensors").write_bytes(content)

    watch = Watch()
    with watching(watch):
        report = post_train(config_of(3), str(folder))
    assert report.before is None
    assert [record.iteration for record in watch.records] == [1, 2]
    state = last_state(folder)
    assert distance(state.weights, reference(config_of(3)).weights) < TOLERANCE["float64"]
    for name in ("before.json", "iteration-000000.json", "run.json", "sent.json"):
        assert f"{name} is damaged" in caplog.text
    assert run(["compare", str(folder), str(folder)]) == 0
    assert "reward/mean" in capsys.readouterr().out
