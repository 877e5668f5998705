"""The roles of a run's devices, planned again when workers have come or gone for good.

One device turns at a time, as one that leaves and joins again: of those whose workers declare both
roles the one that shortens an iteration the most, by simulation. Then the next iteration tells
whether another one follows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from digen_core.control.protocol import Device, Role
from digen_core.planning.predict import predicted_seconds
from flows.runtime.context import RunContext
from flows.runtime.workload import layout_of, next_workload, schedule_of
from tasks.cluster.presence import ROLES, Presence

GAIN: Final = 0.03
"""Share of an iteration that a turn has to save: a device is missed while it turns."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A device is to have the other role."""

    device: str
    role: Role
    seconds: float  # of an iteration then, predicted
    seconds_now: float

    def __str__(self) -> str:
        saved = f"{self.seconds_now:.3g} to {self.seconds:.3g} s an iteration"
        return f"worker {self.device} turns to the work of a {self.role} (predicted: {saved})"


def note_declared(run: RunContext, workers: Mapping[str, Presence]) -> None:
    """Note which devices may turn: their workers declare both roles."""
    run.fleet.may_turn = {
        worker.name
        for address, worker in workers.items()
        if worker.roles.issuperset(ROLES) and run.fleet.addresses.get(worker.name) == address
    }


def best_turn(run: RunContext) -> Turn | None:
    """Return the turn that is worth it, after an iteration; None: all stay as they are.

    A worker that is started again within an iteration is no change.
    """
    fleet, devices = run.fleet, list(run.fleet.devices)
    changed = fleet.changed_since_last_plan()
    if not (changed and fleet.may_turn) or layout_of(run.config).colocated or fleet.joining:
        return None
    now = _seconds(run, devices)
    turns = []
    for device in _unlike(devices, fleet.may_turn - {run.progress.holder}):
        (role,) = set(ROLES) - device.roles
        other = replace(device, roles=frozenset([role]))
        seconds = _seconds(run, [other if own is device else own for own in devices])
        turns.append(Turn(device.name, role, seconds, now))
    best = min(turns, key=lambda turn: turn.seconds, default=None)
    if best is None or not best.seconds < (1 - GAIN) * now:
        fleet.roles_are_planned()
        return None
    return best


def _unlike(devices: Sequence[Device], names: set[str]) -> list[Device]:
    """Return one of those devices, the last, for each kind and role."""
    last = {(own.kind, own.roles): own for own in devices if own.name in names}
    return [own for own in last.values() if len(own.roles) == 1]


def _seconds(run: RunContext, devices: list[Device]) -> float:
    if not all(any(role in own.roles for own in devices) for role in ROLES):
        return float("inf")
    return predicted_seconds(
        devices,
        next_workload(run),
        schedule_of(run.config),
        run.progress.known_costs,
        run.config.num_trained_steps,
        run.progress.mixing,
    )
