"""The roles of devices when others have come or gone."""

from types import SimpleNamespace

import pytest

from digen_core.config.run import RunConfig
from digen_core.control.costs import Costs, DeviceCosts, Linear
from digen_core.control.protocol import Device
from digen_core.planning.predict import predicted_seconds
from digen_core.planning.profile import Profile
from flows.runtime.fleet.changes import FleetChanges
from flows.runtime.fleet.roles import GAIN, Turn, best_turn, note_declared
from flows.runtime.workload import schedule_of
from support.contexts import run_context
from tasks.cluster.presence import Presence

ROLLOUT, TRAINER = frozenset({"rollout"}), frozenset({"trainer"})
BOTH = ROLLOUT | TRAINER
START = [Device("a", ROLLOUT), Device("b", TRAINER)]
NEW = [Device("c", ROLLOUT), Device("d", ROLLOUT)]
TRAINING = Costs(kinds={"default": DeviceCosts(step=Linear(fixed=0.1), pack=Linear(fixed=9.0))})
CONFIG = {
    "rollout": {"prompts_per_iteration": 8, "group_size": 2, "num_steps": 3, "fragment_size": 2},
    "algorithm": {"window": (1, 0, 1)},
    "train": {"pack_size": 2},
}


@pytest.fixture
def run(tmp_path):
    """A run in which training takes almost all the time, and two devices have come to generate."""
    return run_of(tmp_path, "tsp")


def run_of(folder, layout):
    tree = {**CONFIG, "schedule": {"layout": layout}}
    found = run_context(folder, RunConfig.model_validate(tree), START)
    found.progress.holder = "b"
    found.progress.profile = Profile(TRAINING, START)
    return found


def come(run, devices, *, declared=BOTH):
    run.fleet.addresses |= {device.name: f"at {device.name}" for device in devices}
    for device in devices:
        run.fleet.join(device)
    workers = [Presence(own.name, f"at {own.name}", declared, 0.0) for own in devices]
    note_declared(run, {worker.address: worker for worker in workers})


def test_who_came_turns_to_what_is_waited_for(run):
    assert best_turn(run) is None
    come(run, NEW)
    assert best_turn(run) is None, "they may go as soon as they came"
    turn = best_turn(run)
    assert (turn.device, turn.role) == ("d", "trainer")
    devices = [*START, NEW[0], Device("d", TRAINER)]
    args = run.workers.workload, schedule_of(run.config), TRAINING, run.config.num_trained_steps
    assert turn.seconds == predicted_seconds(devices, *args)
    assert turn.seconds < 0.6 * turn.seconds_now


def test_one_after_the_other_until_nothing_is_gained(run):
    come(run, NEW)
    turned = []
    best_turn(run)
    while turn := best_turn(run):
        turned.append(turn.device)
        run.fleet.turned(turn.device, turn.role)
        run.fleet.left(turn.device)
        best_turn(run)
        run.fleet.came(turn.device, f"at {turn.device}")
        run.fleet.join(run.fleet.known[turn.device])
        best_turn(run)
    assert turned == ["d", "c"]
    assert best_turn(run) is None
    assert [own.name for own in run.fleet.devices if own.roles == TRAINER] == ["b", "d", "c"]


@pytest.mark.parametrize("declared", [ROLLOUT, frozenset()])
def test_workers_of_one_role_keep_it(run, declared):
    come(run, NEW, declared=declared)
    assert [best_turn(run), best_turn(run)] == [None, None]


def test_without_a_gain_that_is_worth_it_all_stay(run, monkeypatch):
    come(run, NEW)
    best_turn(run)
    better = best_turn(run)
    monkeypatch.setattr("flows.runtime.fleet.roles.GAIN", 1 - better.seconds / better.seconds_now)
    assert best_turn(run) is None
    monkeypatch.setattr("flows.runtime.fleet.roles.GAIN", GAIN)
    assert best_turn(run) is None, "it is planned once"


def test_who_holds_the_state_and_the_last_of_a_role_stay(run):
    note_declared(run, {})
    run.fleet.may_turn = {"a", "b"}
    run.fleet.planned = (frozenset("x"), frozenset("ab"))
    assert best_turn(run) is None


def test_colocated_devices_have_no_role_to_turn_to(tmp_path):
    run = run_of(tmp_path, "colocated")
    come(run, NEW)
    assert [best_turn(run), best_turn(run)] == [None, None]


def test_a_gang_that_turns_keeps_its_members_where_it_keeps_its_model(tmp_path):
    run, gang = run_of(tmp_path, "elastic"), Device("d", ROLLOUT, size=2)
    come(run, [gang])
    run.fleet.formed("d", {"d.1": "at d.1"})
    run.fleet.has_loaded("at d")
    executor = SimpleNamespace(forget=lambda names: None)
    changes = FleetChanges(run, executor, None, print)
    changes.hear(Turn("d", "trainer", 1.0, 2.0))
    changes.release("d")
    run.fleet.came("d", "at d")  # as the next look finds it
    turned = run.fleet.known["d"]
    assert turned.roles == TRAINER
    assert run.fleet.holds_model(turned)
    assert run.fleet.workers_of("d") == ("at d", "at d.1")


def test_a_device_that_turns_comes_back_though_another_turn_is_planned_meanwhile(run, monkeypatch):
    """It is released when nobody needs what it has, which may take more than an iteration."""
    come(run, NEW)
    let_go, executor = [], SimpleNamespace(forget=lambda names: None)
    monkeypatch.setattr("flows.runtime.fleet.changes.let_go", lambda client, at: let_go.append(at))
    changes = FleetChanges(run, executor, SimpleNamespace(leaving=["d"]), print)
    changes.hear(Turn("d", "trainer", 1.0, 2.0))
    changes.hear(Turn("c", "trainer", 0.9, 2.0))
    changes.release("d")
    assert not let_go
    assert run.fleet.known["d"].roles == TRAINER
