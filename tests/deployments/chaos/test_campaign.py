"""Stories of real runs, as `digen chaos` plays them."""

import signal
import subprocess
import sys
from time import sleep

import pytest

from deployments.chaos.campaign import Campaign
from deployments.chaos.namespaces import are_there
from deployments.errors import RunFailedError
from digen_core.config.run import RunConfig
from support.paths import ROOT

DIGEN = [sys.executable, "-c", "from deployments.cli import main; main()"]
SEED = 2611
STORIES_OF_A_CASE = 2
SERVICES = {8: ("mlflow", "scorer"), 9: ("mlflow", "scorer", "scheduler")}


@pytest.mark.operation
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("case", range(10))
def test_stories_end_as_the_run_in_peace(tmp_path, case):
    """Twenty of them, and the faults of a case are not those of another one."""
    command = ["chaos", "chaos", "--seed", str(SEED + case), "--stories", str(STORIES_OF_A_CASE)]
    if beside := SERVICES.get(case):
        if not are_there():
            pytest.skip("this machine has no namespaces")
        command += ["--services", *beside]
    # one at a time: other tests run beside
    done = digen(*command, "--jobs", "1", "--tracking.runs-dir", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{STORIES_OF_A_CASE} stories, 0 of them wrong" in done.stdout
    (report,) = tmp_path.glob("*/report.md")
    assert f"## Story {SEED + case}.1: " in report.read_text()


@pytest.mark.operation
@pytest.mark.timeout(900)
def test_a_campaign_that_is_stopped_tells_of_the_stories_until_then(tmp_path):
    options = ["--seed", str(SEED), "--stories", "50", "--jobs", "1", "--only", "kill"]
    command = [*DIGEN, "chaos", "chaos", *options, "--tracking.runs-dir", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as campaign:
        try:
            first = next(line for line in campaign.stdout if f"{SEED}." in line)
            campaign.send_signal(signal.SIGINT)
            rest, _ = campaign.communicate(timeout=60)
        finally:
            campaign.kill()
    assert campaign.returncode == 130
    number = first.split()[0]
    assert "1 stories, 0 of them wrong" in rest
    (report,) = tmp_path.glob("*/report.md")
    assert f"## Story {number}: " in report.read_text()


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--services", "mlflo", "--services names 'mlflo'; use some of mlflow, scorer, scheduler"),
        ("--only", "stop", "--only names 'stop'; use some of kill"),
    ],
)
def test_a_name_that_is_none_is_refused(option, value, said):
    done = digen("chaos", "chaos", option, value)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_a_story_that_cannot_be_played_ends_the_campaign(tmp_path, monkeypatch):
    """Those that wait for their turn are not played for nothing."""
    played = []

    def fail(campaign, story, folder):
        played.append(story.number)
        if story.number < 0:  # the run in peace
            return type("Peace", (), {"seconds": 1.0})()
        sleep(0.2)  # else all are over before anybody looks
        raise RunFailedError(f"story {story.name} could not be played")

    monkeypatch.setattr(Campaign, "_played", fail)
    monkeypatch.setattr("deployments.chaos.campaign.complaints_of", lambda *arguments: [])
    campaign = Campaign(RunConfig(), [], tmp_path)
    with pytest.raises(RunFailedError, match="could not be played"):
        list(campaign.play(1, range(50), 1, ["kill"]))
    assert played[0] == -1
    assert len(played) < 25


def digen(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*DIGEN, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
