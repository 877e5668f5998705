"""Predictions: how long a task should take, and an iteration, by a simulation of the controller."""

from collections.abc import Sequence

from digen_core.control.costs import Costs
from digen_core.control.protocol import Device
from digen_core.control.schedule import UNMIXED, Mixing, Schedule, Workload, mixings
from digen_core.planning.search import stale_iterations
from digen_core.records import Span
from digen_core.sim.simulator import simulate


def expected_seconds(costs: Costs, kind: str, span: Span) -> float | None:
    """Return the seconds that a task should take once it runs; 0 for one that takes little.

    None if nobody knows: how long the first push takes, all weights may take very long.

    Args:
        costs: as far as they are known.
        kind: of the device.
        span: of the task, without its times.
    """
    device = costs.kinds.get(kind)
    if device is None:
        return 0.0
    match span.kind:
        case "denoise" | "samples":
            return (span.end_step - span.first_step) * device.step(span.num_items, span.cost)
        case "score":
            return device.decode(span.num_items, span.cost)
        case "train":
            return device.pack(span.num_items, span.cost)
        case "step":
            return costs.optimizer_step
        case "push":
            sites = {site for link in costs.links for site in link.between}
            # It may be the one that crosses.
            return costs.push + costs.crossing(sites, whole=True) or None
    return 0.0


def predicted_seconds(
    devices: Sequence[Device],
    workload: Workload,
    schedule: Schedule,
    costs: Costs,
    num_trained_steps: int,
    mixing: Mixing = UNMIXED,
) -> float:
    """Return the seconds per iteration in steady state, without jitter.

    Args:
        devices: of the run, with the roles that they have.
        workload: the shape of an iteration.
        schedule: the layout and its quantities.
        costs: of every kind of the devices.
        num_trained_steps: of a trajectory.
        mixing: of groups that cost differently.
    """
    num_iterations = 2
    if schedule.max_stale_share:
        num_iterations = stale_iterations(schedule.max_staleness)
    report = simulate(
        devices,
        workload,
        schedule,
        costs,
        trained_steps=range(num_trained_steps),
        num_iterations=num_iterations,
        mixing=mixing,
    )
    return report.seconds


def fastest_mixing(
    devices: Sequence[Device],
    workload: Workload,
    schedule: Schedule,
    costs: Costs,
    num_trained_steps: int,
) -> Mixing:
    """Return how groups that cost differently are generated the fastest; arguments as above."""
    job, ways = (devices, workload, schedule, costs, num_trained_steps), mixings(workload)
    return min(ways, key=lambda way: predicted_seconds(*job, way)) if len(ways) > 1 else ways[0]
