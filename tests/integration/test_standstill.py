"""A worker stops in a run, which stands still: its log says what waits for what, and replays."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic, sleep, time

import pytest
from distributed import Client

from digen_core.config.run import RunConfig
from digen_core.control.protocol import Generate
from digen_core.errors import UserError
from digen_core.eventlog.entries import Log
from digen_core.eventlog.file import read_log
from digen_core.eventlog.replay import replay
from digen_core.eventlog.story import story_of
from digen_core.eventlog.topics import Topic
from support.runs import Watch, merged, only_run

pytestmark = pytest.mark.ci

PATIENCE = 3.0  # seconds, in place of two minutes
DIGEN = [sys.executable, "-c", "from deployments.cli import main; main()"]


class Stopping(Watch):
    """Stops a device that is asked to generate for the second iteration, while somebody looks.

    Trainers have nothing to do then: they have made the version that is generated with.
    """

    def __init__(self, device, pid, look):
        super().__init__()
        self.device, self.pid, self.look = device, pid, look
        self.thread = ThreadPoolExecutor(1)
        self.seen = None

    def hear(self, said):
        match said:
            case Generate(fragment, device=device) if self.seen is None and fragment.iteration == 1:
                assert device == self.device
                os.kill(self.pid, signal.SIGSTOP)
                self.seen = self.thread.submit(self._look, time())

    def _look(self, since):
        try:
            return self.look(since)
        finally:
            os.kill(self.pid, signal.SIGCONT)


def pid_of(address: str, name: str) -> int:
    from tasks.cluster.calls import on_worker
    from tasks.cluster.presence import addresses_of

    with Client(address, set_as_default=False) as client:
        return on_worker(client, addresses_of(client, [name])[name], os.getpid)


def standing_still(folder: Path, since: float) -> Log:
    """Return the log that a run writes when nothing happens any more."""
    deadline = monotonic() + 100
    while True:
        try:
            log = read_log(folder)
            if log.written > since and log.why.startswith(("nothing had happened", "worker ")):
                return log
        except UserError:  # there is none yet
            pass
        assert monotonic() < deadline, "the run did not say that it stands still"
        sleep(0.1)


def explained(folder: Path, *what: str) -> str:
    command = [*DIGEN, "explain", str(folder), *what]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_run_that_stands_still_says_what_waits_for_what(
    tree, cluster_address, prefect_backend, monkeypatch
):
    from flows.post_train import post_train
    from flows.runtime.observers import listening, watching

    monkeypatch.setattr("flows.runtime.fleet.watch.MIN_WARNING", PATIENCE)
    address = cluster_address(1, 1)
    changes = {
        "num_iterations": 4,
        "schedule.layout": "disaggregated",
        "cluster.scheduler_address": address,
        "cluster.heartbeat_timeout": 1000.0,
    }

    def look(since):
        folder = only_run(tree)
        log = standing_still(folder, since)
        # else it may say so again, in place of what it answers
        monkeypatch.setattr("flows.runtime.fleet.watch.Watch.patience", 1000.0)
        return log, json.loads(explained(folder, "--json")), explained(folder, "rollout-0")

    watch = Stopping("rollout-0", pid_of(address, "rollout-0"), look)
    with watching(watch), listening(watch.hear):
        report = post_train(RunConfig.model_validate(merged(tree, changes)))
    log, now, story = watch.seen.result()
    assert report.num_iterations == 4

    replayed = replay(log)
    assert replayed.difference is None
    assert replayed.num_events > 10
    assert any("digen explain" in text for text in watch.warnings)

    assert now["old"] == "", "the run was asked, and answered"
    assert now["why"] == "digen explain asked"
    assert now["replay"].startswith("replayed: a new controller says the same to all ")
    devices = {device["name"]: device for device in now["devices"]}
    assert devices["rollout-0"]["doing"], "it is what everybody waits for"
    asked = {doing["text"] for doing in devices["rollout-0"]["doing"]}
    assert any("rollout-0" in lack for it in now["iterations"] for lack in it["lacks"])
    assert not devices["trainer-0"]["doing"]
    assert devices["trainer-0"]["why_idle"]
    *_, last = story.strip().splitlines()
    assert last.split(" -> ")[1].strip() in asked

    ended = read_log(only_run(tree))
    assert ended.why == "the run ended"
    assert replay(ended).difference is None
    assert story_of(ended, Topic(version=4, device="rollout-0"))
