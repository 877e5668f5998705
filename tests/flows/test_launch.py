"""The cluster of a run, as it is opened."""

from contextlib import nullcontext
from time import sleep
from types import SimpleNamespace
from unittest.mock import Mock
from uuid import uuid4

import pytest
from httpx import ConnectError

from digen_core.config.run import RunConfig
from digen_core.control.protocol import Device
from digen_core.errors import UserError
from flows import launch, reopen
from flows.launch import connected
from flows.runtime.fleet import losses, watch
from flows.runtime.fleet.fleet import Fleet
from flows.runtime.fleet.joining import new_workers, roles_for
from flows.runtime.observers import watching
from support.contexts import run_context
from tasks.cluster.calls import SchedulerLostError
from tasks.cluster.presence import Presence, present_workers
from tasks.workers import RealWorkers

DEVICES = [Device(name, frozenset({"trainer"})) for name in ("trainer-0", "trainer-1")]
MANAGED_EVERY = 2.0  # seconds, in which Dask's memory manager drops replicas


@pytest.mark.ci
def test_what_a_task_made_stays_on_its_worker():
    """Else it is lost with whoever fetched it, such as the optimizer's state with its standby."""
    with connected(RunConfig(), DEVICES) as (_, client):
        first, second = present_workers(client)
        made = client.submit(bytes, 1000, workers=[first], pure=False)
        for _ in range(4):
            seen = client.submit(len, made, workers=[second], pure=False)
            assert seen.result(timeout=60) == 1000
            sleep(MANAGED_EVERY)
            assert first in client.who_has(made)[made.key]


def test_who_is_not_logged_in_to_a_place_is_told_before_workers_start(monkeypatch):
    check = Mock(side_effect=UserError("nobody is logged in"))
    monkeypatch.setattr("tasks.tracking.also.places._found", lambda name: check)
    monkeypatch.setattr(launch, "_devices", Mock(side_effect=AssertionError("workers start")))
    config = RunConfig.model_validate({"tracking": {"also": ["wandb"]}})
    with pytest.raises(UserError, match="nobody is logged in"), launch.open_run(config):
        pass


@pytest.mark.parametrize(("device", "is_told"), [("auto", True), ("cpu", False)])
def test_workers_that_share_gpus_are_told_if_they_compute_on_them(monkeypatch, device, is_told):
    said = []
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS", raising=False)
    monkeypatch.setattr(launch, "say", said.append)
    monkeypatch.setattr(launch, "visible_gpus", lambda: ["0"])
    monkeypatch.setattr(launch, "connected", Mock(side_effect=ConnectError("no cluster")))
    config = RunConfig.model_validate({"model": {"device": device}})
    with pytest.raises(ConnectError), launch._devices(config):
        pass
    assert any("2 workers share the memory of 1 GPU" in text for text in said) == is_told


@pytest.mark.parametrize(
    ("scheduler", "dismissed"), [("tcp://there:1", ["tcp://busy:1"]), (None, [])]
)
def test_a_gang_that_is_at_work_when_its_run_ends_is_dismissed(monkeypatch, scheduler, dismissed):
    """Its leader may wait half an hour for a member that failed, and the next run behind it."""
    names = ("busy", "idle", "single")
    addresses = {name: f"tcp://{name}:1" for name in names}
    sizes = {"busy": 2, "idle": 2, "single": 1}
    devices = [Device(name, frozenset({"trainer"}), size=sizes[name]) for name in names]
    followers = {name: {f"{name}.1": f"tcp://{name}:2"} for name in ("busy", "idle")}
    fleet = Fleet(devices, addresses, followers=followers)
    config = RunConfig.model_validate({"cluster": {"scheduler_address": scheduler}})
    run = SimpleNamespace(fleet=fleet, config=config, client=None)
    found = []
    monkeypatch.setattr(launch, "addresses_of", lambda client, names: addresses)
    busy = {addresses["busy"], addresses["single"]}
    monkeypatch.setattr(launch, "stop_tasks", lambda client, addresses: busy)
    monkeypatch.setattr(launch, "dismiss", lambda client, address: found.append(address))
    with pytest.raises(KeyboardInterrupt), launch._stopped_on_errors(run):
        raise KeyboardInterrupt
    assert found == dismissed


@pytest.fixture
def opened(monkeypatch, tmp_path):
    """Return a function that opens the context of a run, and its tracker."""
    tracker = Mock(mlflow_run_id="")
    monkeypatch.setattr(launch, "following", lambda *of: nullcontext())
    monkeypatch.setattr(launch, "_stopped_on_errors", lambda run: nullcontext())
    for prompts in ("train_prompts", "evaluation_prompts"):
        monkeypatch.setattr(launch, prompts, lambda config: [])

    def run_on():
        config = RunConfig.model_validate({"schedule": {"layout": "tsp"}})
        at, workers = (tmp_path, "run"), RealWorkers(config)
        return launch.run_on(
            Mock(), "", DEVICES, config, *at, workers, tracker=tracker, pages=False
        )

    return run_on, tracker


def test_a_worker_that_is_lost_before_the_run_knows_its_address_is_found_lost(opened, monkeypatch):
    """As while the run is opened in MLflow: it comes back as it was, and is there once."""
    run_on, _ = opened
    trainer, said = frozenset({"trainer"}), []
    there = [{"trainer-0": "a"}, {"trainer-0": "a"}, {"trainer-0": "a", "trainer-1": "b"}]
    looks = iter({at: Presence(n, at, trainer, 0.0) for n, at in own.items()} for own in there[1:])
    monkeypatch.setattr(launch, "addresses_of", lambda client, names: there[0])
    monkeypatch.setattr(launch, "workers_of_pools", lambda client, pools: {})
    monkeypatch.setattr(watch, "present_workers", lambda client: next(looks))
    monkeypatch.setattr(losses, "notify", lambda run, event, text: said.append(text))
    with run_on() as run:
        losses.look(run)
        assert run.fleet.names == {"trainer-0"}
        (found,) = new_workers(run, losses.look(run).workers)
        assert (found.name, roles_for(run, found)) == ("trainer-1", trainer)
    (text,) = said
    assert text.startswith("worker trainer-1 (gone) was lost; left: trainer-0.")


def test_a_run_whose_scheduler_is_lost_as_it_is_opened_ends_in_mlflow(opened, monkeypatch):
    """It would show as running for ever."""
    run_on, tracker = opened

    def lost(client, names):
        raise SchedulerLostError("the Dask scheduler is gone")

    monkeypatch.setattr(launch, "addresses_of", lost)
    with pytest.raises(SchedulerLostError), run_on():
        raise AssertionError("it is not opened")
    text = "SchedulerLostError: the Dask scheduler is gone"
    tracker.finish.assert_called_once_with("FAILED", text)


@pytest.fixture
def away(monkeypatch):
    """Have Prefect's server away; return what is warned of."""
    warned = []
    client = Mock()
    client.update_flow_run.side_effect = ConnectError("refused")
    client.read_flow_runs.side_effect = ConnectError("refused")
    for module in (launch, reopen):
        monkeypatch.setattr(module, "get_client", lambda **_: nullcontext(client))
        monkeypatch.setattr(module, "warn", warned.append)
    return warned


def test_a_run_whose_page_cannot_be_named_begins(away, tmp_path):
    """It may have waited hours for its cluster, and Prefect is away just then."""
    launch._label_flow_run(run_context(tmp_path))
    assert away == ["Prefect does not show the run by its name: refused"]


def test_a_run_is_resumed_where_prefect_cannot_be_told_that_it_had_ended(away):
    reopen.mark_crashed_flows([str(uuid4())])
    (text,) = away
    assert text == "Prefect may show the run as running where it was killed: refused"


@pytest.mark.parametrize("goes_back", [False, True])
def test_observers_hear_after_how_many_iterations_a_run_goes_on(tmp_path, monkeypatch, goes_back):
    run, found = run_context(tmp_path), []
    resumption = reopen.Resumption(tmp_path, None, None, SimpleNamespace(num_iterations=7))
    monkeypatch.setattr(reopen, "discard", lambda run_dir, at: None)
    monkeypatch.setattr(type(run.progress), "stand_at", lambda *_: None)
    observer = Mock(on_resume=found.append)
    with watching(observer):
        if goes_back:
            reopen._stand_at(run, resumption)
        else:
            reopen.go_on(run, resumption)
    assert found == [7]
