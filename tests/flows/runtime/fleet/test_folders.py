"""Workers see the run's folder before anything is trained: what they keep elsewhere is lost."""

from types import SimpleNamespace

import pytest

from digen_core.config.load import CONFIG_OF_RUN
from digen_core.config.run import RunConfig
from digen_core.control.protocol import Device
from digen_core.errors import UserError
from flows.runtime.fleet import folders, loading
from flows.runtime.fleet.fleet import Fleet
from support.coming_workers import coming_workers

TRAINER = Device("trainer-0", frozenset({"trainer"}))
ROLLOUT = Device("rollout-0", frozenset({"rollout"}))
GANG = Device("gang-0", frozenset({"trainer"}), size=2)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run with three devices; ``blind`` has the addresses that do not see its folder."""
    (tmp_path / CONFIG_OF_RUN).write_text("{}")
    devices = [TRAINER, ROLLOUT, GANG]
    fleet = Fleet(devices, {device.name: f"tcp://{device.name}" for device in devices})
    fleet.formed("gang-0", {"gang-0.1": "tcp://other"})
    fleet.has_to_see_folder()
    found = SimpleNamespace(fleet=fleet, client=None, shared_dir=tmp_path, config=RunConfig())
    found.blind, found.asked = set(), []

    def on_workers(client, members, look):
        found.asked.append(list(members))
        return {at: at not in found.blind for at in members if at != "tcp://silent"}

    monkeypatch.setattr(folders, "on_workers", on_workers)
    monkeypatch.setattr(folders, "SEEN_SECONDS", 0.05)
    monkeypatch.setattr(folders, "LOOK_SECONDS", 0.01)
    return found


def test_a_trainer_that_does_not_see_the_folder_is_refused(run, tmp_path):
    run.blind = {"tcp://trainer-0"}
    with pytest.raises(UserError, match=r"^the worker trainer-0 \(tcp://trainer-0\) does not see"):
        folders.require_folder(run, TRAINER)
    assert len(run.asked) > 1, "a disk of a network may take a moment"


def test_each_member_of_a_gang_writes(run):
    run.blind = {"tcp://other"}
    with pytest.raises(UserError, match=r"the worker gang-0 \(tcp://other\)"):
        folders.require_folder(run, GANG)


@pytest.mark.parametrize(
    ("tracking", "writes"),
    [
        ({}, False),
        ({"keep_images": "extremes"}, True),
        ({"keep_trajectories": "all"}, True),
        ({"profile_iterations": [1]}, True),
    ],
)
def test_who_only_generates_writes_what_the_config_has_it_keep(run, tracking, writes):
    run.config, run.blind = RunConfig.model_validate({"tracking": tracking}), {"tcp://rollout-0"}
    if writes:
        with pytest.raises(UserError, match="rollout-0"):
            folders.require_folder(run, ROLLOUT)
    else:
        folders.require_folder(run, ROLLOUT)


def test_who_does_not_answer_is_not_waited_for(run):
    run.fleet.came("trainer-0", "tcp://silent")
    folders.require_folder(run, TRAINER)


def test_measurements_keep_nothing_so_nobody_has_to_see_their_folder(run):
    run.fleet.shares_folder, run.blind = False, {"tcp://trainer-0"}
    folders.require_folder(run, TRAINER)
    assert not run.asked


def test_it_is_refused_before_the_model_is_loaded(run):
    run.blind, run.workers = {"tcp://trainer-0"}, None
    with pytest.raises(UserError, match="trainer-0"):
        loading.load_models(run, None, [TRAINER])


def test_a_worker_is_asked_through_dask(tmp_path):
    (tmp_path / CONFIG_OF_RUN).write_text("{}")
    with coming_workers() as workers:
        workers.come("trainer-0", "trainer")
        address = workers.seen["trainer-0"].address
        run = SimpleNamespace(client=workers.client)
        assert folders._without(run, tmp_path / CONFIG_OF_RUN, [address]) == []
        assert folders._without(run, tmp_path / "other", [address]) == [address]
