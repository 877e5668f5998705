"""Workers that come and go while iterations run."""

from types import SimpleNamespace

import pytest

from digen_core.config.run import RunConfig
from digen_core.control.protocol import Device
from flows.runtime.fleet.changes import FleetChanges
from flows.runtime.fleet.joining import Joined, Newcomer, new_workers
from support.contexts import run_context
from tasks.cluster.presence import Presence

ROLLOUT = frozenset({"rollout"})


@pytest.fixture
def run(tmp_path):
    """A run of two devices."""
    devices = [Device("a", ROLLOUT), Device("b", frozenset({"trainer"}))]
    return run_context(tmp_path, RunConfig(), devices)


def test_who_is_ready_when_the_run_goes_back_is_found_again(run):
    """No iteration was open in which that would show, as before an evaluation that failed."""
    coming = Presence("c", "at c", ROLLOUT, 0.0)
    changes = FleetChanges(run, SimpleNamespace(is_open=False), None, print)
    run.fleet.making_ready(Newcomer(coming, ROLLOUT))
    changes.hear(Joined(Device("c", ROLLOUT), {}))
    assert changes.take_in() == []
    assert new_workers(run, {"at c": coming}) == []
    changes.stop()
    assert new_workers(run, {"at c": coming}) == [coming]
