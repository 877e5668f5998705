"""Which devices do the other role's work, and when: predicted makespans, switch costs included.

What is left to generate and to train is shared by the devices that do so now, in proportion to
their speed; a device turns if it is ready, and has done a piece of work, before they are done.
"""

from dataclasses import dataclass

from digen_core.control.costs import Costs
from digen_core.control.fleet import Fleet
from digen_core.control.schedule import Schedule, Workload


@dataclass(frozen=True, slots=True)
class Backlog:
    """What is left of an update, in seconds, if nobody turns from one role to the other."""

    generation: float
    """Until the generating devices have generated all fragments; infinite without devices."""

    training: float
    """Until the training devices have trained all pairs; infinite without devices."""


def pays_to_train(training_seconds: float, costs: Costs, *, smallest_pack_seconds: float) -> bool:
    """Say whether a device without fragments should train until the update.

    It must be ready, and have trained a pack, before the others are done without it. Coming back
    costs nothing while the optimizer steps and the new version is on its way.
    """
    back = max(0.0, costs.switch_to_rollout - costs.optimizer_step - costs.push)
    return training_seconds > costs.switch_to_trainer + back + smallest_pack_seconds


def pays_to_generate(generation_seconds: float, costs: Costs, *, fragment_seconds: float) -> bool:
    """Say whether a trainer without pairs should generate.

    It must be ready, and have done a good part of a fragment, before the others are done without
    it; otherwise it only delays its training.
    """
    return generation_seconds > costs.switch_to_rollout + 0.5 * fragment_seconds


def choose_helpers(
    fleet: Fleet, workload: Workload, schedule: Schedule, num_trained_steps: int
) -> None:
    """Say which devices may do the other role's work in the coming iteration."""
    layout, costs = schedule.layout, fleet.costs
    if layout.colocated:
        return
    rollouts, trainers = fleet.with_home("rollout"), fleet.with_home("trainer")
    helpers, assistants = schedule.helpers, schedule.assistants
    if helpers is None:
        counts = {"rollouts": len(rollouts), "trainers": len(trainers)}
        helpers = num_helpers(workload, costs, num_trained_steps, **counts)
    if not layout.trainers_help:
        helpers = 0
    if assistants is None:
        assistants = len(rollouts)
    if not layout.rollouts_train:
        assistants = 0
    # With stale groups there is always something to generate: a helper stays with it, where
    # turning costs something. The holder, the first trainer, helps last, and never for good.
    switching = costs.switch_to_rollout + costs.switch_to_trainer
    for_good = bool(schedule.max_stale_share and switching)
    for place, device in enumerate(trainers):
        device.may_generate = place >= max(len(trainers) - helpers, int(for_good))
        device.may_train = not (device.may_generate and for_good)
    for place, device in enumerate(rollouts):
        device.may_train = place < assistants


def num_helpers(
    workload: Workload, costs: Costs, num_trained_steps: int, *, rollouts: int, trainers: int
) -> int:
    """Return how many trainers help, on-policy: all of them or none, by the closed forms.

    +tsp takes p + q + (n-1) max(p, q); with help it is h + s + W_t / M, where all devices generate
    for h seconds (docs/scheduling.md). Helping needs h to be at least one fragment.
    """
    device = next(iter(costs.kinds.values()), None)
    if device is None or not rollouts:
        return trainers
    fragment = device.fragment(workload.fragment_size, workload.num_steps)
    generation = device.generation(workload)
    training = device.training(workload, num_trained_steps, workload.pack_size)
    p = generation / (rollouts * workload.num_groups)
    q = training / (trainers * workload.num_groups)
    switching = costs.switch_to_rollout + costs.switch_to_trainer
    share = rollouts / (rollouts + trainers)
    help_seconds = share * (generation / rollouts + q - switching - training / trainers)
    without = p + q + (workload.num_groups - 1) * max(p, q)
    with_help = help_seconds + switching + training / trainers
    return trainers if help_seconds >= fragment and with_help < without else 0
