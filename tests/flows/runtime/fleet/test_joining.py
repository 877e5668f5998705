"""Which roles a worker gets that comes while a run works, and who is waited for how long."""

from dataclasses import replace
from threading import Event
from types import SimpleNamespace

import pytest

from digen_core.config.run import RunConfig
from digen_core.control.protocol import Device
from flows.runtime.fleet import joining, waiting
from flows.runtime.fleet.joining import (
    END_SECONDS,
    AbandonedError,
    JoinFailed,
    Joining,
    Newcomer,
    await_roles,
    make_ready,
    roles_for,
)
from support.contexts import SPLIT, run_context
from tasks.cluster.presence import ROLES, Presence

BOTH = frozenset(ROLES)
COMING = Presence("w", "at w", BOTH, 0.0)


def run_of(folder, layout, devices):
    return run_context(folder, RunConfig.model_validate({"schedule": {"layout": layout}}), devices)


@pytest.mark.parametrize("before", [{"rollout"}, {"trainer"}])
def test_a_run_that_goes_on_in_a_colocated_layout_has_who_comes_do_both(tmp_path, before):
    run = run_of(tmp_path, "colocated", [Device("a", BOTH)])
    run.fleet.took_part([Device("w", frozenset(before))])
    assert roles_for(run, COMING) == BOTH
    assert [own.name for own in run.fleet.all_devices] == ["a", "w"]


def test_one_that_was_colocated_before_gives_one_role(tmp_path):
    run = run_of(tmp_path, "tsp", SPLIT)
    run.fleet.took_part([Device("w", BOTH)])
    assert roles_for(run, COMING) == {"rollout"}


def test_who_was_lost_since_the_run_goes_on_has_the_role_that_it_had(tmp_path):
    run = run_of(tmp_path, "tsp", [*SPLIT, Device("w", frozenset({"trainer"}))])
    run.fleet.addresses["w"] = "at w before"
    run.fleet.took_part([Device("w", BOTH)])
    run.fleet.lose(["w"])
    assert roles_for(run, COMING) == {"trainer"}


def test_a_run_that_waits_says_once_of_a_worker_that_it_cannot_use(tmp_path, monkeypatch):
    run = run_of(tmp_path, "colocated", [])
    run = replace(run, lineage=run.lineage.model_copy(update={"flow_run_ids": ("own",)}))
    single = Presence("single", "at single", frozenset({"trainer"}), 0.0)
    looks, said = [{"at single": single}] * 3 + [{"at single": single, "at w": COMING}], []
    seen = iter([SimpleNamespace(workers=workers) for workers in looks])
    monkeypatch.setattr(joining, "look", lambda run: next(seen))
    monkeypatch.setattr(joining, "sleep", lambda seconds: None)
    monkeypatch.setattr(joining, "notify", lambda run, event, text: said.append(text))
    monkeypatch.setattr(waiting, "show_state", lambda *of, **how: None)

    def devices_among(client, workers):
        return [Device(worker.name, worker.roles) for worker in workers]

    monkeypatch.setattr(joining, "devices_among", devices_among)
    await_roles(run)
    assert run.fleet.names == {"w"}
    assert len(said) == 1


def test_a_worker_that_was_left_out_is_tried_again_when_it_was_started_again(tmp_path, monkeypatch):
    """With a port of its own it comes back to the same address."""
    run, began = run_of(tmp_path, "tsp", SPLIT), []
    monkeypatch.setattr(joining, "notify", lambda run, event, text: None)
    own = Joining(run)
    monkeypatch.setattr(own, "_begin", lambda worker, roles: began.append(worker.name))
    run.fleet.making_ready(Newcomer(COMING, BOTH))
    own.refuse(JoinFailed("w", "at w", ValueError("it has no such model")))
    for workers, expected in (({"at w": COMING}, []), ({}, []), ({"at w": COMING}, ["w"])):
        own.take_in(workers)
        assert began == expected


def test_a_run_that_goes_back_hears_nothing_of_those_that_were_made_ready_before(
    tmp_path, monkeypatch
):
    """It has taken them in meanwhile, and would let them go."""
    run, ends = run_of(tmp_path, "tsp", SPLIT), Event()

    def on_cluster(run, flow, name):
        ends.wait(60)
        raise AbandonedError

    monkeypatch.setattr(joining, "on_cluster", on_cluster)
    monkeypatch.setattr(joining, "END_SECONDS", 0.0)
    own = Joining(run)
    own.take_in({"at w": COMING})
    (newcomer,) = run.fleet.joining.values()
    own.stop()
    assert "w" not in run.fleet.addresses
    ends.set()
    newcomer.thread.join(60)
    assert run.inbox.empty()


def test_the_end_of_a_run_waits_for_all_newcomers_together(tmp_path, monkeypatch):
    run, clock = run_of(tmp_path, "tsp", SPLIT), SimpleNamespace(now=0.0)

    def join(seconds):
        clock.now += seconds

    monkeypatch.setattr(joining, "monotonic", lambda: clock.now)
    for number in range(20):
        coming = replace(COMING, name=f"w{number}", address=f"at w{number}")
        run.fleet.making_ready(Newcomer(coming, BOTH, thread=SimpleNamespace(join=join)))
    Joining(run).stop()
    assert clock.now == END_SECONDS
    assert run.fleet.addresses.keys() == run.fleet.names


def test_who_is_not_waited_for_any_more_loads_no_model(tmp_path, monkeypatch):
    run, newcomer = run_of(tmp_path, "tsp", SPLIT), Newcomer(COMING, BOTH)
    newcomer.abandoned.set()
    monkeypatch.setattr(joining, "devices_among", lambda client, workers: [Device("w", BOTH)])
    with pytest.raises(AbandonedError):
        make_ready(run, newcomer)
