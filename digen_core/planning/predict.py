"""How long an iteration of a run will take, by a simulation of its own controller."""

from collections.abc import Sequence

from digen_core.control.costs import Costs
from digen_core.control.protocol import Device
from digen_core.control.schedule import Schedule, Workload
from digen_core.planning.search import STALE_ITERATIONS
from digen_core.sim.simulator import simulate


def predicted_seconds(
    devices: Sequence[Device],
    workload: Workload,
    schedule: Schedule,
    costs: Costs,
    num_trained_steps: int,
) -> float:
    """Return the seconds per iteration in steady state, without jitter.

    Args:
        devices: of the run, with the roles that they have.
        workload: the shape of an iteration.
        schedule: the layout and its quantities.
        costs: of every kind of the devices.
        num_trained_steps: of a trajectory.
    """
    num_iterations = 2
    if schedule.max_stale_share:
        num_iterations = max(STALE_ITERATIONS, 2 + schedule.max_staleness)
    report = simulate(
        devices,
        workload,
        schedule,
        costs,
        trained_steps=range(num_trained_steps),
        num_iterations=num_iterations,
    )
    return report.seconds
