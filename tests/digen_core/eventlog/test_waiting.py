"""What a run waits for, in scenes by hand and at any event of random orders."""

import pytest

from digen_core.control import protocol as p
from digen_core.control.controller import Controller
from digen_core.control.fragments import fragments_of
from digen_core.control.layout import LAYOUTS
from digen_core.control.schedule import Schedule
from digen_core.eventlog.recorder import Recorder
from digen_core.eventlog.replay import replay
from digen_core.eventlog.under_way import after
from digen_core.eventlog.waiting import Doing, Now, waiting
from support.batches import alone
from support.carried_out import done
from support.random_cluster import TRAINED, make_costs, make_devices, make_workload
from support.recorded import recorded


def now_of(it: Recorder) -> Now:
    log = it.log("a-run", "")
    return waiting(replay(log).end, list(after(log.segments[-1])))


@pytest.fixture
def it() -> Recorder:
    """Two rollout devices and a trainer with version 0, and an iteration of two groups."""
    workload, schedule = make_workload(num_groups=2), Schedule(LAYOUTS["gap"])
    controller = Controller(make_devices("gap", 2, 1), workload, schedule, make_costs())
    times = iter(range(100, 1000))
    recorder = Recorder(controller, lambda: float(next(times)))
    for push in recorder.start():
        recorder.handle(p.VersionLoaded(push.device, push.version))
    recorder.handle(p.IterationOffered(0, TRAINED))
    return recorder


def devices(now: Now) -> dict[str, tuple]:
    return {d.name: (tuple(doing.text for doing in d.doing), d.why_idle) for d in now.devices}


def test_while_fragments_are_generated(it):
    now = now_of(it)
    assert devices(now) == {
        "rollout-0": (("generate i1 g0 f0, steps 0 to 3, with v0",), ""),
        "rollout-1": (("generate i1 g0 f1, steps 0 to 3, with v0",), ""),
        "trainer-0": ((), "no pairs are ready"),
    }
    (iteration,) = now.iterations
    assert iteration.number == 1
    assert iteration.lacks == (
        "fragments under way: i1 g0 f0 on rollout-0, i1 g0 f1 on rollout-1",
        "fragments that wait for a device: i1 g1 f0, i1 g1 f1",
        "groups without advantages: g0, g1",
        "the update",
    )


def test_while_a_fragment_is_scored_and_a_group_trained(it):
    first, second = fragments_of(make_workload(), 0, 0)
    third, _ = fragments_of(make_workload(), 0, 1)
    for fragment in (first, second, third):
        it.handle(p.BatchGenerated(alone(fragment)))
    for fragment in (first, second):
        it.handle(p.FragmentScored(fragment))
    it.handle(p.AdvantagesComputed(0, (0,)))
    now = now_of(it)
    assert devices(now)["rollout-0"] == (("score i1 g1 f0",), "")
    assert devices(now)["trainer-0"] == (("train i1 p0 (1 pair) at v0",), "")
    assert now.iterations[0].lacks == (
        "fragments under way: i1 g1 f1 on rollout-1",
        "fragments that are scored: i1 g1 f0 on rollout-0",
        "groups without advantages: g1",
        "pairs that wait for a device: 6",
        "packs under way: i1 p0 (1 pair) on trainer-0, i1 p1 (1 pair) on trainer-0",
        "the update",
    )


def finish(it, *, do, until):
    """Answer instructions, the first first, until one is of a kind; return that one."""
    while not isinstance(do[0], until):
        do += it.handle(done(do.pop(0)))
    return do


def given(it) -> list:
    return [one.instruction for one in after(it.log("", "").segments[-1])]


def test_while_the_update_is_made_and_pushed(it):
    do = finish(it, do=given(it), until=p.Reduce)
    now = now_of(it)
    assert now.iterations[0].lacks == ("the sum of the gradients",)
    assert devices(now)["rollout-0"] == ((), "the update of i1 is made")
    do = finish(it, do=do, until=p.Step)
    assert now_of(it).iterations[0].lacks == ("the optimizer's step",)
    it.handle(p.IterationOffered(1, TRAINED))
    assert now_of(it).iterations[1].lacks == ("its turn: as many are open as may be",)
    do = finish(it, do=do, until=p.Push)
    it.handle(p.VersionLoaded("rollout-0", 1))
    first, second = now_of(it).iterations
    assert first.lacks == ("devices that do not hold v1: rollout-1, trainer-0",)
    assert second.number == 2
    assert devices(now_of(it))["rollout-1"] == (("load v1 from trainer-0",), "")


def test_with_the_holder_all_pushes_are_void_whoever_is_asked_again():
    """A version crosses to a site once: one of two devices is asked again, the other one waits."""
    near = [p.Device(f"near-{i}", frozenset({"rollout"}), site="a") for i in range(2)]
    trainers = [p.Device(f"{site}-0", frozenset({"trainer"}), site=site) for site in "ab"]
    schedule = Schedule(LAYOUTS["gap"], copies_state=True)
    it = Recorder(Controller([*near, *trainers], make_workload(), schedule, make_costs()))
    copy, *pushes = it.start()
    assert {push.device for push in pushes} == {"near-0", "near-1", "a-0", "b-0"}
    it.handle(done(copy))
    told = it.handle(p.DevicesLost(("a-0",)))
    assert {do.device for do in told} == {"near-0", "b-0"}
    assert given(it) == told
    it.handle(p.DeviceJoined(trainers[0]))
    copy, *_ = given(it)[len(told) :]
    it.handle(done(copy))
    told = it.handle(p.DevicesLost(("b-0",)))
    assert given(it) == told, "the one that came back holds the state now"


def test_between_iterations(it):
    finish(it, do=given(it), until=p.FinishIteration)
    now = now_of(it)
    assert not now.iterations
    assert {why for _, why in devices(now).values()} == {"no iteration is under way"}


def test_since_when(it):
    (doing,) = now_of(it).devices[0].doing
    handled = it.log("", "").segments[0].handled[-1]
    assert doing == Doing("generate i1 g0 f0, steps 0 to 3, with v0", handled.time)


def test_what_the_flow_process_does_is_elsewhere(it):
    for fragment in fragments_of(make_workload(), 0, 0):
        it.handle(p.BatchGenerated(alone(fragment)))
        it.handle(p.FragmentScored(fragment))
    assert [doing.text for doing in now_of(it).elsewhere] == ["compute advantages of i1 g0"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_device_is_asked_for_something_or_it_says_why_not(layout):
    for most in range(1, 120, 17):
        now = now_of(recorded(layout, 2, most=most))
        assert all(bool(device.doing) != bool(device.why_idle) for device in now.devices)
        assert all(iteration.lacks for iteration in now.iterations)
        assert not any("i0" in lack for iteration in now.iterations for lack in iteration.lacks)
