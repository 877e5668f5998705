"""What an event costs the controller, counted in lines that it runs, as a cluster grows."""

import sys
from types import FrameType

import pytest

from digen_core.control.controller import Controller
from digen_core.control.layout import LAYOUTS
from digen_core.control.protocol import Event, Instruction
from digen_core.control.schedule import Schedule
from digen_core.sim.clock import Jitter
from digen_core.sim.scenario import Scenario
from digen_core.sim.simulation import Simulation

STEPS = 9  # trained: generation and training take about as long


class CountingController(Controller):
    """Counts the lines that it runs, those of loops each time."""

    num_events = num_lines = 0

    def handle(self, event: Event) -> list[Instruction]:
        self.num_events += 1
        measuring = sys.gettrace()  # coverage, if it is taken
        sys.settrace(self._trace)
        try:
            return super().handle(event)
        finally:
            sys.settrace(measuring)

    def _trace(self, frame: FrameType, kind: str, argument: object):
        self.num_lines += kind == "line"
        return self._trace


def lines_per_event(layout: str, devices: int, queue_depth: int = 2, **costs) -> float:
    """Return the lines per event of two iterations of 8 fragments for each device."""
    scenario = Scenario(
        **{
            "devices": devices,
            "prompts": devices,
            "group_size": 8,
            "trained_per_group": 8,
            "steps": 30,
            "trained_steps": STEPS,
            "fragment_size": 1,
            "pack_size": 4,
            "d0": 0.1,
            "d1": 0.9,
            "vae": 2.0,
            "a": 1.2,
            "c": 3.2,
            "reward_seconds": 2.0,
            "reward_servers": devices,
            "push": 4.0,
            "helper_in": 7.0,
            "helper_out": 7.0,
            **costs,
        }
    )
    switches = LAYOUTS[layout]
    split = None if switches.colocated else devices // 2
    schedule = Schedule(switches, max_stale_share=0.5 * switches.stale, queue_depth=queue_depth)
    cluster, known = scenario.cluster(split), scenario.costs(split)
    controller = CountingController(cluster, scenario.workload, schedule, known)
    Simulation(
        controller, cluster, scenario.workload, schedule, known, range(STEPS), Jitter(0.1, 0)
    ).run(3 if schedule.max_stale_share else 2)
    return controller.num_lines / controller.num_events


@pytest.mark.ci_but_one
@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_event_costs_about_as_much_with_four_times_as_many_devices(layout):
    assert lines_per_event(layout, 20) < 1.3 * lines_per_event(layout, 5)


def test_an_event_costs_little_more_where_all_devices_are_of_other_kinds():
    def lines(devices: int) -> float:
        kinds = {f"k{n}": {"count": 1, "generation": 1 + n / 100} for n in range(devices)}
        return lines_per_event("elastic", devices, queue_depth=1, kinds=kinds)

    assert lines(40) < 2.5 * lines(10)
