"""A controller that is built from a snapshot decides as the one that it was taken of."""

import hypothesis.strategies as st
import pytest
from hypothesis import given
from pydantic import TypeAdapter

from digen_core.control.controller import Controller
from digen_core.control.snapshot import Snapshot
from support.control_strategies import schedules, workloads
from support.random_cluster import RandomCluster, make_costs, make_devices

JSON = TypeAdapter(Snapshot)


class Replaced:
    """A controller beside one that is restored now and then, which must say the same."""

    def __init__(self, controller: Controller, every: int):
        self.one, self.other, self.every, self.number = controller, controller, every, 0

    def start(self):
        return self.one.start()

    def handle(self, event):
        if self.number % self.every == 0:
            self.one.round_anew()
            taken = self.one.snapshot()
            read = JSON.validate_json(JSON.dump_json(taken))
            assert read == taken
            self.other = Controller.restored(read)
            assert self.other.snapshot() == taken
        self.number += 1
        said = self.one.handle(event)
        assert self.other.handle(event) == said
        return said

    def survives(self, lost):
        assert self.other.survives(lost) == self.one.survives(lost)
        return self.one.survives(lost)

    def validate(self):
        self.other.validate()

    def __repr__(self):
        return f"{self.one!r} beside {self.other!r}"


@pytest.mark.ci
@given(
    schedules(),
    workloads(),
    st.integers(2, 4),
    st.integers(1, 3),
    st.sampled_from([0.0, 0.3]),
    st.randoms(use_true_random=False),
    st.integers(0, 3),
    st.booleans(),
    st.sampled_from([7, 30]),
    st.sampled_from([1, 2, 100]),
)
def test_in_every_order(
    schedule, workload, num_rollout, num_trainers, switch, random, losses, joins, every, fits
):
    devices = make_devices(schedule.layout.name, num_rollout, num_trainers, ("default", "slow"))
    it = Replaced(Controller(devices, workload, schedule, make_costs(switch)), every)
    skipped = {(0, 0), (1, 1)}
    cluster = RandomCluster(
        it, workload, schedule, devices, random=random, skipped=skipped, refill=1
    )
    cluster.run(3, pause_odds=0.1, losses=losses, joins=joins, fits=fits)
