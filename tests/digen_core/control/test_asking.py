"""To ask one of the devices that are alike is to ask all of them."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from digen_core.control.controller import Controller
from digen_core.control.dispatch import Dispatcher
from digen_core.control.layout import LAYOUTS
from digen_core.control.schedule import Schedule
from support.control_strategies import NUM_ITERATIONS, schedules, workloads
from support.random_cluster import RandomCluster, make_costs, make_devices, make_workload


class AsksAll(Dispatcher):
    """Asks every device that has room, in order, whatever it is like."""

    def _fill(self, depth, iterations, version, another_offered):
        fleet, instructions = self._fleet, []
        for device in sorted(fleet, key=lambda own: (-fleet.generation_rate(own), own.number)):
            if len(device.queue) < depth and self._deep_enough(device, iterations, version, depth):
                instructions += self._next(device, iterations, version, another_offered)
        return instructions


class Both:
    """Two controllers that hear the same, and have to say the same."""

    def __init__(self, *arguments):
        self.one, self.other = Controller(*arguments), Controller(*arguments)
        fleet, (_, workload, schedule, _) = self.other._state.fleet, arguments
        self.other._state.dispatcher = AsksAll(fleet, workload, schedule)

    def validate(self):
        self.one.validate()
        self.other.validate()

    def survives(self, lost):
        return self.one.survives(lost)

    def start(self):
        self.other.start()
        return self.one.start()

    def handle(self, event):
        instructions = self.one.handle(event)
        assert instructions == self.other.handle(event)
        return instructions


@pytest.mark.ci
@settings(max_examples=settings.default.max_examples)
@given(
    schedules(),
    workloads(),
    st.tuples(st.integers(2, 5), st.integers(1, 5)),
    st.sampled_from([0.0, 0.3, 3.0]),
    st.randoms(use_true_random=False),
    st.integers(0, 3),
    st.booleans(),
)
def test_a_device_gets_what_it_would_if_all_were_asked(
    schedule, workload, counts, switch, random, losses, joins
):
    devices = make_devices(schedule.layout.name, *counts, ("default", "slow"))
    both = Both(devices, workload, schedule, make_costs(switch))
    cluster = RandomCluster(both, workload, schedule, devices, random=random, refill=1)
    fits = random.choice([2, 100])
    cluster.run(NUM_ITERATIONS, pause_odds=0.1, losses=losses, joins=joins, fits=fits)


def test_a_change_that_is_not_filed_is_found():
    devices = make_devices("tsp", 1, 1)
    it = Controller(devices, make_workload(), Schedule(LAYOUTS["tsp"]), make_costs())
    it.validate()
    it._state.fleet["trainer-0"].largest_pack = 2
    with pytest.raises(AssertionError, match="a device was changed and not filed"):
        it.validate()
