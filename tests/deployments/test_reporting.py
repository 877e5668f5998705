"""What a reported run says: which iteration and device something is of, and the work asked for."""

import json
import socket
from threading import Thread

import pytest

from deployments.reporting import Reporter, device_of, iteration_of, kept_in
from digen_core.checkpoints.manifest import CHECKPOINTS_OF_RUN, MANIFEST
from digen_core.checkpoints.tensors import write_checkpoint
from digen_core.control import protocol as p
from support.batches import alone
from support.checkpoints import position_of, state_of

FRAGMENT = p.Fragment(iteration=2, group=0, index=1, first_sample=0, num_samples=3)
PACK = p.Pack(2, 0, (p.PairBlock(FRAGMENT, 1, 0, 3), p.PairBlock(FRAGMENT, 2, 0, 2)))
DEVICE = p.Device("trainer-1", frozenset({"trainer"}))


@pytest.mark.parametrize(
    ("what", "iteration", "device"),
    [
        (p.Generate(alone(FRAGMENT), 0, 4, 2, "rollout-0"), 2, "rollout-0"),
        (p.FragmentScored(FRAGMENT), 2, ""),
        (p.Train(PACK, 2, "trainer-0"), 2, "trainer-0"),
        (p.Step(2, 2, "trainer-0"), 2, "trainer-0"),
        (p.Stepped(3), 2, ""),
        (p.CopyState(3, "trainer-1", "trainer-0"), 2, "trainer-1"),
        (p.StateCopied("trainer-1", 3), 2, "trainer-1"),
        (p.Push(3, "rollout-0", "trainer-0"), 2, "rollout-0"),
        (p.VersionLoaded("rollout-0", 3), 2, "rollout-0"),
        (p.FinishIteration(2, True), 2, ""),
        (p.DeviceJoined(DEVICE), -1, "trainer-1"),
        (p.DevicesLost(("rollout-0",)), -1, ""),
    ],
)
def test_iteration_and_device(what, iteration, device):
    assert (iteration_of(what), device_of(what)) == (iteration, device)


def test_versions_of_an_iterations_updates_are_of_it():
    found = [iteration_of(p.Stepped(version), 2) for version in (1, 2, 3, 4)]
    assert found == [0, 0, 1, 1]


def test_a_run_waits_for_the_answer():
    ours, theirs = socket.socketpair()
    reporter = Reporter(theirs)
    with ours.makefile("rw") as lines:
        thread = Thread(target=reporter.hear, args=(p.Train(PACK, 2, "trainer-0"),))
        thread.start()
        said = json.loads(lines.readline())
        assert said == {
            "heard": "Train",
            "iteration": 2,
            "device": "trainer-0",
            "lives": [
                {"kept": [], "asked": {"2": {"sample_steps": 0, "pairs": 5}}, "lost": {}},
            ],
        }
        assert thread.is_alive()
        lines.write("who\n")
        lines.flush()
        assert json.loads(lines.readline()) == {}  # it has no workers yet
        lines.write("go\n")
        lines.flush()
        thread.join(60)
        assert not thread.is_alive()


def test_checkpoints_are_known_by_their_iterations(tmp_path):
    """One that is being removed, or is damaged, is none."""
    assert kept_in(tmp_path) == ()
    for version, num_iterations in ((1, 1), (2, 3), (3, 4)):
        folder = tmp_path / CHECKPOINTS_OF_RUN
        written = write_checkpoint(folder, state_of(version), position_of(num_iterations))
    (written / MANIFEST).unlink()
    assert kept_in(tmp_path) == (1, 3)


def test_a_run_goes_on_where_nobody_listens_any_more():
    ours, theirs = socket.socketpair()
    reporter = Reporter(theirs)
    ours.close()
    for _ in range(2):
        reporter.on_phase("training")
