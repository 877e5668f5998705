"""A long run in which workers are killed, as `digen bench soak` makes it."""

import os
import re
import subprocess
import sys

import pytest

from deployments.soak import DATABASE, LIMIT_MB, LIMIT_TASKS, TASKS, Growth, Soak, print_soak
from deployments.views.terminal import terminal
from support.paths import ROOT

DIGEN = [sys.executable, "-c", "from deployments.cli import main; main()"]


def test_a_single_jump_is_no_growth():
    jump = Growth("flow", {i: 100.0 + 8 * (i > 12) for i in range(20)})
    assert jump.slope == 0
    assert jump.holds


def test_growth_is_found_in_noise():
    growing = Growth("flow", {i: 100 + 0.3 * i + (-1) ** i for i in range(40)})
    assert growing.slope == pytest.approx(0.3, abs=0.02)
    assert not growing.holds
    assert Growth(DATABASE, growing.readings).holds


def test_a_run_that_is_stopped_early_says_nothing_of_growth(tmp_path, capsys):
    soak = Soak(tmp_path, seed=0, every_seconds=30.0, num_done=1)
    soak.readings["flow", 1][0] = 100.0
    assert not print_soak(soak, terminal())
    said = capsys.readouterr().out
    assert "1 iteration, 0 workers killed; too few to tell what grows" in said


def test_limits():
    assert Growth("flow", {0: 0.0, 1: LIMIT_MB}).holds
    assert not Growth(TASKS, {0: 0.0, 1: 2 * LIMIT_TASKS}).holds


@pytest.mark.operation
@pytest.mark.timeout(900)
def test_workers_are_killed_and_the_scheduler_forgets_tasks(tmp_path):
    """Memory says little in so short a run; tasks are counted. Three an iteration embed prompts."""
    command = ["bench", "soak", "chaos", "--num-iterations", "20", "--every-seconds", "10"]
    done = subprocess.run(
        [*DIGEN, *command, "--evaluation.every", "0", "--tracking.runs-dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    rows = dict(re.findall(r"^(\S.*?) +[\d.]+ +[\d.]+ +([+-][\d.]+) *$", done.stdout, re.M))
    assert rows.keys() >= {"flow, MB", "Prefect's server, MB", f"{DATABASE}, MB", TASKS}
    assert float(rows[TASKS]) < 10
    assert float(rows[f"{DATABASE}, MB"]) > 0
    (num_killed,) = re.findall(r"^20 iterations, (\d+) workers killed; ", done.stdout, re.M)
    assert int(num_killed) >= 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--every-seconds 0", "--every-seconds is 0.0; use a number above 0"),
        ("--seed=-1", "--seed is -1; use 0 or more"),
        ("--num-iterations 3", "num_iterations is 3; a soak needs 10 or more"),
        ("--cluster.scheduler-address tcp://a:1", "a soak kills workers that it starts itself"),
    ],
)
def test_what_a_soak_cannot_do(capsys, options, message):
    from deployments.cli import run

    assert run(["bench", "soak", "chaos", "--num-iterations", "20", *options.split()]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.ci
def test_a_soak_needs_a_server_of_its_own():
    url = "http://127.0.0.1:1/api"
    done = subprocess.run(
        [*DIGEN, "bench", "soak", "chaos", "--num-iterations", "20"],
        cwd=ROOT,
        env={**os.environ, "PREFECT_API_URL": url},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert f"Prefect is told to use the server at {url}" in done.stderr
