"""A gang is formed of members that can compute together; and who measures what work costs."""

from types import SimpleNamespace

import pytest

from digen_core.config.run import RunConfig
from digen_core.config.schedule import ClusterConfig
from digen_core.control.protocol import Device
from digen_core.errors import UserError
from flows.runtime.fleet import loading
from flows.runtime.fleet.fleet import Fleet
from support.coming_workers import coming_workers
from tasks.gang import forming

BOTH = frozenset({"rollout", "trainer"})
ROOM = Device("room", BOTH, size=2)


@pytest.fixture
def workers(monkeypatch):
    """A cluster with a gang of two that has lost its follower, and with no time to wait for it."""
    monkeypatch.setattr("tasks.cluster.presence.RESTART_SECONDS", 0.0)
    with coming_workers() as found:
        found.come("room", "rollout", "trainer", members=2)
        yield found


@pytest.fixture
def run(workers, monkeypatch):
    """A run that is to form the gang; what each worker computes on is in ``cards``, by name."""
    fleet = Fleet([ROOM], {"room": workers.seen["room"].address})
    cluster = ClusterConfig(heartbeat_timeout=60)
    found = SimpleNamespace(fleet=fleet, client=workers.client, cards={}, said=[], formed=[])
    found.config = SimpleNamespace(cluster=cluster)
    found.broken = {}
    found.watch = SimpleNamespace(broken=found.broken.__setitem__)

    def on_workers(client, members, *_, **__):
        names = {own.address: name for name, own in workers.seen.items()}
        return {at: found.cards[names[at]] for at in members if names[at] in found.cards}

    monkeypatch.setattr(forming, "on_workers", on_workers)
    monkeypatch.setattr(forming, "on_worker", lambda _, at, *__: found.formed.append(at))
    monkeypatch.setattr(
        loading, "notify", lambda run, event, text: found.said.append((event, text))
    )
    return found


@pytest.mark.parametrize("card", ["", "x"], ids=["sees none", "shares one"])
def test_a_spare_without_a_gpu_of_its_own_gives_its_place_to_another_one(run, workers, card):
    run.cards = {"room": "x", "b8": card, "b9": "y"}
    workers.come("b8", "spare:room")
    assert workers.holder == "b8"
    workers.come("b9", "spare:room")
    loading._form(run, ROOM)
    assert workers.holder == "b9"
    assert [event for event, _ in run.said] == ["spare-unfit", "spare-used"]
    text = run.said[0][1]
    assert text.startswith("the spare b8 is left out of the gang room until it is started again: ")
    what = "sees no GPU, but" if not card else "computes on the GPU of"
    assert f"the worker at {workers.seen['b8'].address}, {what} member 0 of a gang" in text
    assert run.formed == [workers.seen["b9"].address, workers.seen["room"].address]
    assert run.fleet.followers == {"room": {"room.1": workers.seen["b9"].address}}
    assert not run.broken


def test_without_another_one_the_gang_lacks_a_member_and_the_run_goes_on(run, workers):
    """The spare is not dismissed with the gang: started again, it would have the place again."""
    run.cards = {"room": "x", "b8": ""}
    workers.come("b8", "spare:room")
    loading._form(run, ROOM)
    assert [event for event, _ in run.said] == ["spare-unfit"]
    assert run.broken == {workers.seen["room"].address: "is a gang that lacks room.1"}
    assert (run.formed, run.fleet.followers) == ([], {})
    assert workers.seen["room"].lacks == ["room.1"]


def test_what_is_wrong_with_a_gangs_own_members_still_ends_the_run(run, workers):
    run.cards = {"room": "x", "room.1": ""}
    workers.come("room.1", "member")
    with pytest.raises(UserError, match="sees no GPU"):
        loading._form(run, ROOM)


def test_of_whom_nothing_is_known_is_taken(run, workers):
    run.cards = {"b9": "y"}
    workers.come("b9", "spare:room")
    loading._form(run, ROOM)
    assert [event for event, _ in run.said] == ["spare-used"]
    assert len(run.formed) == 2


@pytest.mark.parametrize(
    ("schedule", "generating", "training"),
    [
        ({"layout": "tsp"}, ["rollout"], ["trainer"]),
        ({"layout": "tag"}, ["rollout"], ["rollout", "trainer"]),
        ({"layout": "elastic"}, ["rollout", "trainer"], ["rollout", "trainer"]),
        ({"layout": "elastic", "helpers": 1}, ["rollout", "trainer"], ["rollout", "trainer"]),
        ({"layout": "elastic", "helpers": 0}, ["rollout", "trainer"], ["trainer"]),
        ({"layout": "tcss", "assistants": 0}, ["rollout"], ["rollout", "trainer"]),
    ],
)
def test_who_may_not_help_is_no_helper(schedule, generating, training):
    """It would have to hold what both take, which plans without help are for."""
    run = SimpleNamespace(config=RunConfig.model_validate({"schedule": schedule}))
    assert loading.roles_of(run, Device("rollout-0", frozenset({"rollout"}))) == generating
    assert loading.roles_of(run, Device("trainer-0", frozenset({"trainer"}))) == training


def test_where_all_that_encode_were_lost_a_trainer_that_joins_is_not_measured():
    """Its work is learnt: it waits with the others for somebody who generates."""
    config = RunConfig.model_validate({"schedule": {"layout": "gap"}})
    workers = SimpleNamespace(fixed_costs=None)
    trainer = Device("trainer-1", frozenset({"trainer"}), "of another kind")
    run = SimpleNamespace(config=config, workers=workers, fleet=Fleet([], {}))
    assert loading.measure_costs(run, None, [trainer]) == {}


def test_a_gang_that_loaded_and_was_turned_away_is_formed_anew(run, workers, monkeypatch):
    """As where the run went back to a checkpoint meanwhile: nobody knows its members any more."""
    run.cards = {"room": "x", "room.1": "y"}
    workers.come("room.1", "member")
    address = run.fleet.addresses["room"]
    run.fleet.has_loaded(address)
    run.workers = SimpleNamespace(body=lambda real: real)
    monkeypatch.setattr(loading, "roles_of", lambda *_: ["trainer"])
    submitted = []
    task_set = SimpleNamespace(
        submit=lambda *of: submitted.append(of) or "task", next=lambda: "task"
    )
    for _ in range(2):
        loading.load_models(run, task_set, [ROOM])
    assert len(submitted) == 1
    assert run.fleet.workers_of("room") == (address, workers.seen["room.1"].address)
