"""The controller's cost as clusters grow: CPU time of its decisions in simulated runs.

Half of the devices generate and half train (in colocated layouts all do both), with 16 fragments of
an iteration for each, and generation takes about as long as training. Devices are told to do two
things ahead, as in a real run. Python's garbage collector passes over all that the process holds,
the records of the simulation too: its pauses count in the simulation, not in the decisions.
"""

import gc
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import log
from time import process_time

import numpy as np
from rich.console import Console

from deployments.views.terminal import borderless, terminal
from digen_core.control.controller import Controller
from digen_core.control.layout import LAYOUTS, LayoutName
from digen_core.control.protocol import Event, Instruction
from digen_core.control.schedule import Schedule
from digen_core.sim.clock import Jitter
from digen_core.sim.scenario import Scenario
from digen_core.sim.simulation import Simulation

FRAGMENTS = 16  # of each device in an iteration, and of a group
STEPS, TRAINED_STEPS = 30, 9
JITTER = 0.03
STALE_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Row:
    """A simulation of a layout on some devices."""

    layout: LayoutName
    devices: int
    fragments: int  # of an iteration
    events: int  # of all iterations
    controller: float  # CPU seconds of all its decisions
    simulation: float  # CPU seconds in all

    @property
    def microseconds(self) -> float:
        """Of the controller for an event."""
        return 1e6 * self.controller / self.events


class CollectorClock:
    """CPU seconds of the garbage collector, while it is among ``gc.callbacks``."""

    def __init__(self) -> None:
        self.seconds = self._started = 0.0

    def __call__(self, phase: str, info: object) -> None:
        """Note that a collection starts or stops."""
        if phase == "start":
            self._started = process_time()
        else:
            self.seconds += process_time() - self._started


class TimedController(Controller):
    """Measures the CPU time of its decisions, without the garbage collector's."""

    seconds = 0.0
    num_events = 0
    collector = CollectorClock()

    def handle(self, event: Event) -> list[Instruction]:
        """Do as the controller does."""
        started, collecting = process_time(), self.collector.seconds
        instructions = super().handle(event)
        self.seconds += process_time() - started - (self.collector.seconds - collecting)
        self.num_events += 1
        return instructions


def scenario_of(devices: int) -> Scenario:
    """Return a recipe for a number of devices: a fragment takes 32 s, its pairs 31.5 s."""
    return Scenario(
        devices=devices,
        prompts=devices,
        group_size=FRAGMENTS,
        trained_per_group=FRAGMENTS,
        steps=STEPS,
        trained_steps=TRAINED_STEPS,
        fragment_size=1,
        pack_size=4,
        d0=0.1,
        d1=0.9,
        vae=2.0,
        a=1.2,
        c=3.2,
        optimizer_step=1.0,
        reward_seconds=2.0,
        reward_servers=devices,
        push=4.0,
        switch_colocated=14.0,
        helper_in=7.0,
        helper_out=7.0,
    )


def measure(layout: LayoutName, devices: int) -> Row:
    """Simulate two iterations of a layout, three with stale groups."""
    scenario, switches = scenario_of(devices), LAYOUTS[layout]
    split = None if switches.colocated else devices // 2
    schedule = Schedule(switches, max_stale_share=STALE_SHARE * switches.stale, queue_depth=2)
    cluster, workload, costs = scenario.cluster(split), scenario.workload, scenario.costs(split)
    started = process_time()
    controller = TimedController(cluster, workload, schedule, costs)
    simulation = Simulation(
        controller, cluster, workload, schedule, costs, range(TRAINED_STEPS), Jitter(JITTER, 0)
    )
    gc.callbacks.append(controller.collector)
    try:
        simulation.run(3 if schedule.max_stale_share else 2)
    finally:
        gc.callbacks.remove(controller.collector)
    return Row(
        layout,
        devices,
        workload.num_fragments,
        controller.num_events,
        controller.seconds,
        process_time() - started,
    )


def bench_controller(layouts: Iterable[LayoutName], devices: Sequence[int]) -> list[Row]:
    """Measure each layout on each number of devices, the smallest first."""
    return [measure(layout, number) for layout in layouts for number in sorted(devices)]


def exponent(fragments: Sequence[int], seconds: Sequence[float]) -> float:
    """Return the p of seconds = constant * fragments ** p that fits best: a line in logarithms."""
    return float(np.polyfit(np.log(fragments), np.log(seconds), 1)[0])


def print_bench(rows: Sequence[Row], console: Console | None = None) -> None:
    """Print what was measured, and how it grows."""
    console = console or terminal()
    table = borderless()
    table.add_column("layout", no_wrap=True)
    for heading in ("devices", "fragments", "events", "controller", "per event", "in all"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.layout,
            f"{row.devices:,}",
            f"{row.fragments:,}",
            f"{row.events:,}",
            f"{row.controller:.2f} s",
            f"{row.microseconds:.0f} µs",
            f"{row.simulation:.1f} s",
        )
    console.print(table)
    for layout in dict.fromkeys(row.layout for row in rows):
        own = [row for row in rows if row.layout == layout]
        sizes = [row.fragments for row in own]
        if len(set(sizes)) > 1:
            found = exponent(sizes, [row.controller for row in own])
            bound = exponent(sizes, [size * log(size) for size in sizes])
            console.print(
                f"{layout}: the controller's seconds grow with fragments^{found:.2f} "
                f"(n log n here: {bound:.2f})"
            )
