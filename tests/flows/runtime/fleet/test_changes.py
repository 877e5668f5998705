"""Workers that come and go while iterations run."""

from dataclasses import replace
from threading import Thread
from types import SimpleNamespace

import pytest

from digen_core.config.run import RunConfig
from digen_core.control.costs import Costs, DeviceCosts, Linear
from digen_core.control.protocol import Device, DevicesLost
from digen_core.planning.profile import Profile
from flows.runtime.fleet import changes as changes_module
from flows.runtime.fleet import losses, waiting, watch
from flows.runtime.fleet.changes import FleetChanges
from flows.runtime.fleet.joining import (
    AbandonedError,
    Joined,
    JoinFailed,
    Joining,
    Newcomer,
    new_workers,
)
from flows.runtime.fleet.task_set import TaskFailedError
from flows.runtime.scheduling import keep_prediction
from support.contexts import run_context
from tasks.cluster.calls import WorkerLostError
from tasks.cluster.presence import Presence

ROLLOUT = frozenset({"rollout"})
COSTS = DeviceCosts(step=Linear(fixed=0.1), pack=Linear(fixed=0.1))


@pytest.fixture
def run(tmp_path):
    """A run of two devices."""
    devices = [Device("a", ROLLOUT), Device("b", frozenset({"trainer"}))]
    config = RunConfig.model_validate({"schedule": {"layout": "tsp"}})
    return run_context(tmp_path, config, devices)


def test_who_is_ready_when_the_run_goes_back_is_found_again(run):
    """No iteration was open in which that would show, as before an evaluation that failed."""
    coming = Presence("c", "at c", ROLLOUT, 0.0)
    changes = FleetChanges(run, SimpleNamespace(is_open=False), None, print)
    run.fleet.making_ready(Newcomer(coming, ROLLOUT))
    changes.hear(Joined(Device("c", ROLLOUT), "at c", {}))
    assert changes.take_in() == []
    assert new_workers(run, {"at c": coming}) == []
    changes.stop()
    assert new_workers(run, {"at c": coming}) == [coming]


@pytest.mark.parametrize("is_open", [True, False], ids=["works", "is paused"])
def test_a_run_that_is_paused_waits_for_nobody(run, monkeypatch, is_open):
    """However long that is: who comes back is taken in when it goes on."""
    settings = {"cluster": {"rejoin_timeout": 0.0}, "schedule": {"layout": "tsp"}}
    run = replace(run, config=RunConfig.model_validate(settings))
    run.fleet.lose(["a"])
    there = {"": Presence("b", "", frozenset({"trainer"}), 0.0)}
    monkeypatch.setattr(changes_module, "look", lambda run: watch.Seen(there))
    monkeypatch.setattr(waiting.Waiting, "_show", lambda *of: None)
    executor = SimpleNamespace(is_open=is_open, num_running=0)
    changes = FleetChanges(run, executor, None, print)
    changes.look(now=True)
    if not is_open:
        changes.look(now=True)
        return
    with pytest.raises(WorkerLostError, match="the role rollout came back in 0 s"):
        changes.look(now=True)


def test_who_is_lost_while_it_is_made_ready_is_not_waited_for_whoever_finds_that(run, monkeypatch):
    """An evaluation does, or its own thread, where a task of it fails with its gang."""
    there = {"": Presence("a", "", ROLLOUT, 0.0)}
    monkeypatch.setattr(watch, "present_workers", lambda client: there)
    monkeypatch.setattr(losses, "notify", lambda *of: None)
    newcomer = Newcomer(Presence("c", "at c", ROLLOUT, 0.0), ROLLOUT)
    changes = FleetChanges(run, SimpleNamespace(is_open=False), None, print)
    run.fleet.making_ready(newcomer)
    losses.look(run)
    changes.hear(JoinFailed("c", "at c", RuntimeError("load model on c failed: member 1 is gone")))
    assert not run.fleet.joining
    with pytest.raises(AbandonedError):
        newcomer.check(run)


def test_who_dies_whenever_it_is_made_ready_is_left_out_and_the_run_goes_on(run, monkeypatch):
    """As where its host has too little memory for the model; it is tried again after a while."""
    there, said, begun = {"": Presence("a", "", ROLLOUT, 0.0)}, [], []
    monkeypatch.setattr(watch, "present_workers", lambda client: there)
    monkeypatch.setattr(losses, "notify", lambda run, event, text: said.append(event))
    own = Joining(run)

    def begin(worker, roles):
        begun.append(worker.address)
        run.fleet.making_ready(Newcomer(worker, roles))

    monkeypatch.setattr(own, "_begin", begin)
    for number in range(5):
        coming = Presence("c", f"at c {number}", ROLLOUT, 0.0)
        own.take_in({coming.address: coming})
        losses.look(run)
    assert begun == ["at c 0", "at c 1", "at c 2"]
    assert said == ["worker-lost"] * 3 + ["join-failed"]
    assert run.fleet.names == {"a", "b"}
    run.fleet.forgive_losses()
    own.take_in({coming.address: coming})
    assert begun[3:] == ["at c 4"]


def test_who_is_started_again_in_an_evaluation_is_not_taken_for_the_one_that_was_ready(run):
    changes = FleetChanges(run, SimpleNamespace(is_open=True), None, print)
    again = Newcomer(Presence("c", "at c again", ROLLOUT, 0.0), ROLLOUT)
    run.fleet.making_ready(Newcomer(Presence("c", "at c", ROLLOUT, 0.0), ROLLOUT))
    run.fleet.lose(["c"])
    run.fleet.making_ready(again)
    changes.hear(Joined(Device("c", ROLLOUT), "at c", {}))
    assert changes.take_in() == []
    changes.hear(JoinFailed("c", "at c", None))
    assert run.fleet.joining == {"c": again}
    assert run.fleet.addresses["c"] == "at c again"


def test_nor_if_the_run_had_heard_that_it_was_ready(run):
    executor = SimpleNamespace(is_open=False)
    changes = FleetChanges(run, executor, None, print)
    run.fleet.making_ready(Newcomer(Presence("c", "at c", ROLLOUT, 0.0), ROLLOUT))
    changes.hear(Joined(Device("c", ROLLOUT), "at c", {}))
    run.fleet.lose(["c"])
    run.fleet.making_ready(Newcomer(Presence("c", "at c again", ROLLOUT, 0.0), ROLLOUT))
    executor.is_open = True
    assert changes.take_in() == []
    assert run.fleet.names == {"a", "b"}
    changes.stop()
    assert "c" not in run.fleet.addresses


def test_who_joins_while_a_record_is_published_takes_part_when_its_costs_are_known(run):
    """Publishing goes on to predict the next iteration, with the devices that there are then."""
    run.progress.profile = Profile(Costs(kinds={"default": COSTS}), run.fleet.devices)
    changes = FleetChanges(run, SimpleNamespace(is_open=True), None, print)
    run.fleet.making_ready(Newcomer(Presence("c", "at c", ROLLOUT, 0.0), ROLLOUT))
    changes.hear(Joined(Device("c", ROLLOUT, "of a new kind"), "at c", {}))
    joining = Thread(target=changes.take_in, daemon=True)
    with run.publishing:
        with run.learning:
            joining.start()
            joining.join(0.5)
            assert run.fleet.names == {"a", "b"}
            keep_prediction(run)
        joining.join(10)  # a checkpoint that is being written is not waited for
        assert run.fleet.names == {"a", "b", "c"}
        keep_prediction(run)


@pytest.mark.parametrize("others_do_its_work", [True, False])
def test_who_joined_and_could_load_no_version_goes_if_others_do_its_work(
    run, monkeypatch, others_do_its_work
):
    gone = []
    monkeypatch.setattr(changes_module, "let_go", lambda client, address: gone.append(address))
    monkeypatch.setattr(changes_module, "notify", lambda *of: None)
    executor = SimpleNamespace(is_open=True, forget=gone.extend)
    controller = SimpleNamespace(may_leave=lambda name: others_do_its_work)
    changes = FleetChanges(run, executor, controller, print)
    failed = JoinFailed("a", "", TaskFailedError("version 3 cannot be pushed to a"))
    changes.hear(failed)
    if not others_do_its_work:
        with pytest.raises(TaskFailedError, match="cannot be pushed"):
            changes.take_in()
        return
    assert changes.take_in() == [DevicesLost(("a",))]
    assert (gone, run.fleet.names) == (["a", ""], {"b"})
    changes.hear(failed)
    assert changes.take_in() == [], "it has left"
