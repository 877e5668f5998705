"""Pushes: sources double, a joiner spares the trainer, and a source that fails is replaced."""

from math import ceil, log2

import pytest

from digen_core.control import protocol as p
from digen_core.control.controller import Controller
from digen_core.control.devices.fleet import Fleet
from digen_core.control.layout import LAYOUTS
from digen_core.control.pushes import Pushes, PushesSnapshot
from digen_core.control.schedule import Schedule
from digen_core.control.state import ControllerError
from support.random_cluster import make_costs, make_workload

ROLLOUT, TRAINER = frozenset({"rollout"}), frozenset({"trainer"})


def cluster(num_rollout: int, pulls_at_once: int | None = 1) -> Controller:
    devices = [p.Device(f"rollout-{i}", ROLLOUT) for i in range(num_rollout)]
    schedule = Schedule(LAYOUTS["disaggregated"], pulls_at_once=pulls_at_once)
    return Controller(
        [*devices, p.Device("trainer-0", TRAINER)], make_workload(), schedule, make_costs()
    )


def pushes(instructions) -> list[p.Push]:
    return [do for do in instructions if isinstance(do, p.Push)]


def load(it: Controller, *under_way: p.Push) -> list[p.Push]:
    return [do for own in under_way for do in pushes(it.handle(p.VersionLoaded(own.device, 0)))]


@pytest.mark.parametrize("num_rollout", [1, 2, 3, 7, 8, 15, 31])
def test_sources_double_with_each_round(num_rollout):
    it = cluster(num_rollout)
    under_way, seen, rounds = pushes(it.start()), [], 0
    assert under_way[-1] == p.Push(0, "trainer-0", "trainer-0")  # it pulls from nobody
    while under_way:
        others = [do for do in under_way if do.source != do.device]
        serving = [do.source for do in others]
        assert len(set(serving)) == len(serving), "a source serves one at a time"
        assert {do.source for do in others} <= {"trainer-0", *(do.device for do in seen)}
        rounds += bool(others)
        seen += under_way
        under_way = load(it, *under_way)
    assert sorted(do.device for do in seen) == sorted(state.name for state in it._state.fleet)
    assert rounds == ceil(log2(num_rollout + 1))


def test_without_a_limit_all_pull_from_the_one_that_made_it():
    assert {do.source for do in pushes(cluster(5, None).start())} == {"trainer-0"}


def test_one_that_joins_pulls_from_a_device_that_generates():
    it = cluster(2)
    under_way = pushes(it.start())
    while under_way:
        under_way = load(it, *under_way)
    (push,) = pushes(it.handle(p.DeviceJoined(p.Device("rollout-9", ROLLOUT))))
    assert push.source == "rollout-0"


SITES = {"far-0": "b", "far-1": "b", "far-2": "b", "near-0": "a", "near-1": "a"}


def two_sites(pulls_at_once: int | None = None) -> Controller:
    devices = [p.Device(name, ROLLOUT, site=site) for name, site in SITES.items()]
    schedule = Schedule(LAYOUTS["disaggregated"], pulls_at_once=pulls_at_once)
    devices.append(p.Device("trainer-0", TRAINER, site="a"))
    return Controller(devices, make_workload(), schedule, make_costs())


@pytest.mark.parametrize("pulls_at_once", [None, 1])
def test_a_version_crosses_to_a_site_once(pulls_at_once):
    it = two_sites(pulls_at_once)
    under_way, seen = pushes(it.start()), []
    while under_way:
        seen += under_way
        under_way = load(it, *under_way)
    assert {do.device for do in seen} == {*SITES, "trainer-0"}
    crossing = [do for do in seen if SITES.get(do.source, "a") != SITES.get(do.device, "a")]
    assert [do.device for do in crossing] == ["far-0"]
    assert {do.source for do in seen if do.device in ("far-1", "far-2")} <= {"far-0", "far-1"}


def test_the_next_one_at_a_site_pulls_from_afar_if_the_first_is_lost():
    it = two_sites()
    first = pushes(it.start())
    assert [do.device for do in first if do.device.startswith("far")] == ["far-0"]
    (push,) = pushes(it.handle(p.DevicesLost(("far-0",))))
    assert (push.device, push.source) == ("far-1", "trainer-0")


def test_a_source_at_the_site_that_fails_is_passed_over_for_one_afar():
    it = two_sites()
    relay = next(do for do in pushes(it.start()) if do.device == "far-0")
    others = load(it, relay)
    assert {(do.device, do.source) for do in others} == {("far-1", "far-0"), ("far-2", "far-0")}
    assert pushes(it.handle(p.PushFailed("far-1", 0, "far-0"))) == []  # far-2 has it soon
    assert pushes(it.handle(p.PushFailed("far-2", 0, "far-0"))) == [p.Push(0, "far-2", "trainer-0")]
    (again,) = load(it, p.Push(0, "far-2", "trainer-0"))
    assert again == p.Push(0, "far-1", "far-2")


def test_a_source_that_is_lost_is_replaced():
    it = cluster(3)
    first, own = pushes(it.start())
    second, third = load(it, own, first)
    assert (second.source, third.source) == ("rollout-0", "trainer-0")
    assert not pushes(it.handle(p.DevicesLost((second.source,))))  # its pull fails by itself
    assert not pushes(it.handle(p.PushFailed(second.device, 0, second.source)))  # one at a time
    (again,) = pushes(it.handle(p.VersionLoaded(third.device, 0)))
    assert again == p.Push(0, second.device, third.device)


def test_another_source_is_asked_before_the_one_that_failed():
    it = cluster(2, None)
    for do in pushes(it.start()):
        it.handle(p.VersionLoaded(do.device, 0))
    (push,) = pushes(it.handle(p.DeviceJoined(p.Device("rollout-9", ROLLOUT))))
    (again,) = pushes(it.handle(p.PushFailed("rollout-9", 0, push.source)))
    assert again.source not in {push.source, "rollout-9"}
    with pytest.raises(ControllerError, match="rollout-9 was not to load version 0"):
        it.handle(p.PushFailed("rollout-9", 0, push.source))


def test_a_push_that_failed_waits_for_another_source():
    it = cluster(3)
    first, own = pushes(it.start())
    second, third = load(it, own, first)
    again = pushes(it.handle(p.PushFailed(second.device, 0, second.source)))
    assert not again, "the trainer serves rollout-2, and rollout-0 has failed"
    (again,) = pushes(it.handle(p.VersionLoaded(third.device, 0)))
    assert again.source == third.device


def test_a_version_that_nobody_needs_any_more_is_not_pushed_again():
    fleet = Fleet.of(
        [p.Device("rollout-0", ROLLOUT), p.Device("trainer-0", TRAINER)],
        make_workload(),
        make_costs(),
    )
    it = Pushes(fleet, 1)
    it.ask(1, ["rollout-0"])
    (push,) = it.begin(1, ())
    assert it.failed(1, "rollout-0", push.source)
    assert list(it.begin(2, {1})) == []  # the holder does not hold it
    fleet["trainer-0"].loaded = frozenset({1})
    assert list(it.begin(2, {1})) == [push]
    fleet["trainer-0"].loaded, fleet["trainer-0"].copied = frozenset(), frozenset({1})
    assert it.failed(1, "rollout-0", push.source)
    assert list(it.begin(2, {1})) == [push]  # it took over with a copy of the state, and publishes
    assert it.failed(1, "rollout-0", push.source)
    assert list(it.begin(2, ())) == []
    assert it.snapshot() == PushesSnapshot((), ())


def test_a_controller_goes_on_from_a_snapshot_with_its_pushes():
    it = cluster(3)
    first, own = pushes(it.start())
    other = Controller.restored(it.snapshot())
    assert other.snapshot() == it.snapshot()
    assert load(other, own, first) == load(it, own, first)
