"""A lost gang that knows what a user has to change: that is told, and not that it is lost."""

from types import SimpleNamespace
from uuid import UUID

import pytest

from digen_core.config.schedule import ClusterConfig
from digen_core.control.protocol import Device
from digen_core.errors import UserError
from flows.runtime.fleet import joining, losses, task_set
from flows.runtime.fleet.fleet import Fleet
from flows.runtime.fleet.watch import Seen
from flows.runtime.requests import Control
from tasks.cluster.calls import WorkerLostError
from tasks.cluster.presence import Presence
from tasks.runner.completions import Completion

LEADER, FOLLOWER, SINGLE = "tcp://a:1", "tcp://b:1", "tcp://c:1"
BOTH = frozenset({"rollout", "trainer"})


@pytest.fixture
def run(monkeypatch):
    """A run of which the scheduler has the leader of a gang only, and a worker that is in none."""
    fleet = Fleet(
        [Device("room", BOTH, size=2), Device("single", BOTH)],
        {"room": LEADER, "single": SINGLE},
        followers={"room": {"room.1": FOLLOWER}},
    )
    names = {LEADER: "room", SINGLE: "single"}
    workers = {at: Presence(name, at, BOTH, 0.1) for at, name in names.items()}
    seen = Seen(workers, {"room": "is a gang whose member room.1 was lost"})
    found = SimpleNamespace(fleet=fleet, client=None, told={}, dismissed=[])
    found.watch = SimpleNamespace(look=lambda *of: seen)
    found.control = Control()

    def told_by(client, followers):
        return next((found.told[at] for at in followers if at in found.told), None)

    monkeypatch.setattr(losses, "told_by", told_by)
    monkeypatch.setattr(losses, "dismiss", lambda client, at: found.dismissed.append(at))
    monkeypatch.setattr(losses, "notify", lambda *of: None)
    return found


def test_a_lost_gang_is_dismissed_whole(run):
    run.told["tcp://another:1"] = "what another run has to change"
    assert list(losses.look(run).workers) == [SINGLE]
    assert run.dismissed == [LEADER]
    assert run.fleet.names == {"single"}


def test_what_its_lost_member_found_ends_the_run(run):
    run.told[FOLLOWER] = "model.path x cannot be loaded"
    with pytest.raises(UserError, match=r"^model.path x cannot be loaded$"):
        losses.look(run)
    assert run.dismissed == [LEADER], "it may be left in a collective, where the next run meets it"
    assert run.fleet.names == {"room", "single"}


def test_what_a_newcomer_lacks_does_not_end_the_run(run):
    run.told[FOLLOWER] = "model.path x cannot be loaded"
    run.fleet.devices = run.fleet.devices[1:]
    losses.look(run)
    assert run.dismissed == [LEADER]
    assert run.fleet.names == {"single"}


def test_why_a_task_failed_is_read_before_who_is_gone(run, monkeypatch):
    """The members of a gang whose leader failed end, which a look would find."""
    task = UUID(int=1)
    types = ["digen_core.errors.UserError", "builtins.ValueError"]
    completion = SimpleNamespace(
        task_run_id=task, succeeded=False, error_types=types, error_text="too small"
    )
    run.watch.end = lambda ids: None
    looked = []
    monkeypatch.setattr(task_set, "look", looked.append)
    completions = SimpleNamespace(next=lambda timeout: completion)
    tasks = task_set.TaskSet(run, completions, lambda run, now=False: None)
    tasks._pending[task] = task_set.Submitted(None, "load model on room", "room", None)
    with pytest.raises(UserError, match="too small"):
        tasks.next()
    assert not looked


def test_a_newcomer_that_fails_leaves_it_to_others_to_find_who_is_lost(run, monkeypatch):
    """The conductor, or an evaluation, waits for what lost devices were to do."""
    monkeypatch.setattr(joining, "SEEN_SECONDS", 0.0)
    run.control, hastened = SimpleNamespace(check=lambda: None), []
    run.watch.is_due, run.watch.end = False, lambda ids: None
    run.watch.hasten = lambda: hastened.append(True)
    newcomer = joining.Newcomer(Presence("new", "tcp://d:1", BOTH, 0.1), BOTH)
    future = SimpleNamespace(task_run_id=UUID(int=1))
    failed = Completion(future, "FAILED", "Failed", "too large")
    tasks = task_set.TaskSet(run, SimpleNamespace(next=lambda timeout: failed), newcomer.check)
    tasks._pending[UUID(int=1)] = task_set.Submitted(None, "load model on new", "new", future)
    with pytest.raises(task_set.TaskFailedError, match="too large"):
        tasks.next()
    assert run.fleet.names == {"room", "single"}
    assert hastened
    tasks._pending[UUID(int=1)] = task_set.Submitted(None, "load model on new", "new", future)
    newcomer.abandoned.set()
    with pytest.raises(joining.AbandonedError):
        tasks.next()


def test_what_fails_by_itself_while_a_device_is_lost_is_told(run):
    run.watch.is_due, run.watch.end = False, lambda ids: None
    future = SimpleNamespace(task_run_id=UUID(int=1))
    ends = iter([Completion(future, "FAILED", "Failed", "no space left on device")])
    tasks = task_set.TaskSet(run, SimpleNamespace(next=lambda timeout: next(ends)))
    tasks._pending[UUID(int=1)] = task_set.Submitted(None, "export v3", "single", future)
    with pytest.raises(losses.DevicesLostError, match="lost room"):
        tasks.next()
    with pytest.raises(task_set.TaskFailedError, match="export v3 on single failed: no space"):
        tasks.next()
    assert tasks.num_pending == 0


def test_a_run_that_has_grown_outlives_the_loss_of_many_at_once(run):
    run.fleet = Fleet([Device("first", BOTH)], {"first": "tcp://a:1"})
    spots = {f"spot-{number}": f"tcp://s{number}:1" for number in range(4)}
    for name, address in spots.items():
        run.fleet.came(name, address)
        run.fleet.join(Device(name, BOTH))
    others = Presence("first", "tcp://a:1", BOTH, 0.1)
    run.watch.look = lambda *of: Seen({others.address: others}, dict.fromkeys(spots, "was lost"))
    losses.look(run)
    assert run.fleet.names == {"first"}


def test_a_pool_that_is_empty_is_waited_for_as_a_role_is(run, monkeypatch):
    clock, said = [0.0], []
    monkeypatch.setattr(losses, "monotonic", lambda: clock[0])
    monkeypatch.setattr(losses, "say", said.append)
    run.config = SimpleNamespace(cluster=ClusterConfig(rejoin_timeout=600.0))
    run.fleet.pools = {"judges": ["j-0"]}
    there = {SINGLE: Presence("single", SINGLE, BOTH, 0.1)}
    run.watch.look = lambda *of: Seen(there)
    run.control.held = True  # paused, for a night: the pool's machine may be given to others
    for clock[0] in (-9000.0, -1.0):
        losses.look(run)
    assert not said
    run.control.held = False
    for clock[0] in (0.0, 31.0, 600.0):  # its machine starts anew
        losses.look(run)
    assert said == ["waiting for a worker of the pool 'judges': none is left"]
    clock[0] = 601.0
    with pytest.raises(WorkerLostError, match=r"no worker of the pool 'judges' came back in 600 s"):
        losses.look(run)
    there["at j"] = Presence("j-0", "at j", frozenset({"judges"}), 0.1)
    losses.look(run)
    assert not run.fleet.empty_since
