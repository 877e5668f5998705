"""Simulate a job: how long its iterations take, and what devices wait for."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from digen_core.control.controller import Controller
from digen_core.control.costs import Costs
from digen_core.control.protocol import Device
from digen_core.control.schedule import UNMIXED, Mixing, Schedule, Workload
from digen_core.sim.clock import Jitter
from digen_core.sim.report import SimulationReport, num_cooling
from digen_core.sim.simulation import Simulation


def simulate(
    devices: Sequence[Device],
    workload: Workload,
    schedule: Schedule,
    costs: Costs,
    *,
    trained_steps: Sequence[int],
    num_iterations: int,
    seed: int = 0,
    jitter: float = 0.0,
    losses: Sequence[tuple[float, str]] = (),
    joins: Sequence[tuple[float, Device]] = (),
    leaves: Sequence[tuple[float, str]] = (),
    mixing: Mixing = UNMIXED,
    unforeseen: Mapping[str, float] = MappingProxyType({}),
) -> SimulationReport:
    """Simulate a job from its first push to the end of its last iteration.

    Args:
        devices: of the job, with their roles and kinds.
        workload: the shape of an iteration.
        schedule: the layout and its quantities.
        costs: seconds of everything, by kind of device.
        trained_steps: of each iteration.
        num_iterations: at least 2; 2 + max_staleness with stale groups.
        seed: of the jitter, and of the samples that best-of-n trains.
        jitter: sigma of the lognormal factor, of mean 1, on the time of everything but pushes.
        losses: (seconds, device): when devices vanish with all they hold.
        joins: (seconds, device): when devices come.
        leaves: (seconds, device): when devices are asked to leave, which others can do without.
        mixing: of groups that cost differently.
        unforeseen: by kind, times that a denoising step really takes of what the costs say.

    Raises:
        ValueError: too few iterations for a steady state.
        SimulationError: the controller ordered something impossible, or stalled.
    """
    least = 2 + num_cooling(schedule)
    if num_iterations < least:
        raise ValueError(f"num_iterations is {num_iterations}; a steady state takes {least}")
    controller = Controller(devices, workload, schedule, costs)
    simulation = Simulation(
        controller,
        devices,
        workload,
        schedule,
        costs,
        trained_steps,
        Jitter(jitter, seed),
        mixing,
        unforeseen,
    )
    for time, name in losses:
        simulation.lose(time, name)
    for time, device in joins:
        simulation.join(time, device)
    for time, name in leaves:
        simulation.leave(time, name)
    return simulation.run(num_iterations)
