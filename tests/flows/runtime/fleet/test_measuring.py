"""The model measured for the choice of a layout, on workers that are lost meanwhile."""

from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from digen_core.config.run import RunConfig
from digen_core.control.costs import Linear
from digen_core.control.protocol import Device
from digen_core.planning.profile import Measured
from flows.runtime.fleet import measuring, watch
from flows.runtime.fleet.measuring import measure_devices
from tasks.cluster.calls import WorkerLostError
from tasks.cluster.presence import Presence
from tasks.gang.messages import GangBrokenError

BOTH = frozenset({"rollout", "trainer"})
DEVICES = [Device("a", BOTH), Device("b", BOTH)]
MEASURED = Measured(step=Linear(fixed=0.1), decode=Linear(), pack=Linear(fixed=0.2))


class Cluster:
    """Measures on workers whose addresses end in "alive"; others are killed by it."""

    def __init__(self, a):
        self.a = iter(a)  # addresses at which it is at each look; None: it is not there
        self.asked = []

    def present(self, client):
        there = {"a": next(self.a), "b": "b alive"}
        return {at: Presence(name, at, BOTH, 0.0) for name, at in there.items() if at}

    def submit(self, function, config, prompt, *, workers, pure):
        assert not pure
        self.asked += workers
        future = Future()
        if workers[0].endswith("alive"):
            future.set_result(MEASURED)
        elif workers[0].endswith("broken"):
            future.set_exception(GangBrokenError("member 1 is gone"))
        return future


@pytest.fixture
def measured(monkeypatch):
    """Return a function that measures on a cluster, and what is warned of."""
    warned = []
    monkeypatch.setattr(measuring, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(measuring, "warn", warned.append)

    def measure(cluster, **settings):
        monkeypatch.setattr(watch, "present_workers", cluster.present)
        config = RunConfig.model_validate({"cluster": settings})
        return measure_devices(cluster, config, DEVICES, SimpleNamespace())

    return measure, warned


def test_who_is_lost_while_it_is_measured_is_measured_again_when_it_is_back(measured):
    """Dask would wait for the address at which it was: for ever, as it comes back at another."""
    measure, warned = measured
    cluster = Cluster(["a 1", "a 1", None, None, "a 2 alive", "a 2 alive"])
    assert measure(cluster) == dict.fromkeys(DEVICES, MEASURED)
    assert cluster.asked == ["a 1", "b alive", "a 2 alive"]
    assert warned == [
        "worker a (a 1) was lost, on which the model was being measured; it is measured again "
        "when it is back"
    ]


def test_a_gang_that_breaks_while_it_is_measured_is_measured_again(measured, monkeypatch):
    """Its leader may say so before the member is missed."""
    measure, warned = measured
    gone = []
    monkeypatch.setattr(measuring, "dismiss", lambda client, address: gone.append(address))
    cluster = Cluster(["a broken"] * 4 + ["a 2 alive"] * 3)
    assert measure(cluster) == dict.fromkeys(DEVICES, MEASURED)
    assert cluster.asked == ["a broken", "b alive", "a broken", "a 2 alive"]
    assert gone == ["a broken"]
    assert "is a gang that cannot go on: member 1 is gone, on which" in warned[0]


def test_who_is_lost_whenever_it_is_measured_ends_the_run(measured):
    """As where its machine has too little memory for the model."""
    measure, _ = measured
    cluster = Cluster([f"a {number}" for number in range(9)])
    with pytest.raises(WorkerLostError, match=r"worker a \(a 4\) was lost.* lost 3 times: see"):
        measure(cluster)


def test_who_does_not_come_back_is_waited_for_no_longer_than_the_config_says(measured):
    measure, _ = measured
    cluster = Cluster(["a 1", *[None] * 99])
    with pytest.raises(WorkerLostError, match=r"the worker a,.* did not come back in 0 s"):
        measure(cluster, rejoin_timeout=0)
