"""Results of work: batches that were generated, fragments with rewards, groups, packs.

| Generate -> BatchGenerated -> Score -> FragmentScored
|   -> ComputeAdvantages -> AdvantagesComputed -> Train -> PackTrained
"""

from digen_core.control.devices.device_state import DeviceState
from digen_core.control.iteration import Iteration
from digen_core.control.protocol import (
    AdvantagesComputed,
    Batch,
    ComputeAdvantages,
    Fragment,
    Generate,
    Instruction,
    Pack,
    Score,
    Train,
)
from digen_core.control.recovery import put_back
from digen_core.control.state import ControllerError, ControllerState
from digen_core.control.turns import Turns
from digen_core.control.updates import Updates


class Results:
    """What follows from what devices and rewards have done."""

    def __init__(self, state: ControllerState, turns: Turns, updates: Updates) -> None:
        self._it = state
        self._turns = turns
        self._updates = updates

    # --- generation -----------------------------------------------------------------------

    def on_generated(self, batch: Batch) -> list[Instruction]:
        """Have fragments scored: now, or when all of their iteration are generated."""
        iteration, device = self._generated(batch)
        state = self._it.fleet[device]
        if state.late not in (None, batch):
            self._it.fleet.be_late(state, None, 1.0)
        is_regenerated = False
        for fragment in batch.fragments:
            if fragment in iteration.to_restart:
                self._restart(iteration, fragment)
                continue
            iteration.num_to_generate -= 1
            if fragment in iteration.regenerating:  # its rewards are known
                iteration.regenerating.discard(fragment)
                iteration.put(iteration.parked.pop(fragment, []))
                is_regenerated = True
            else:
                iteration.to_score.append(Score(fragment, device))
        turned: list[Instruction] = []
        if is_regenerated:
            turned = [*self._updates.closed(iteration), *self._turns.when_generated()]
        if iteration.num_to_generate and not self._it.layout.streamed:
            return turned
        scores, iteration.to_score = iteration.to_score, []
        iteration.scored_on.update({do.fragment: do.device for do in scores})
        return [*scores, *turned]

    def on_paused(self, batch: Batch, next_step: int) -> list[Instruction]:
        """Queue fragments for their other steps."""
        iteration, _ = self._generated(batch)
        for fragment in batch.fragments:
            if fragment in iteration.to_restart:
                self._restart(iteration, fragment)
            else:
                iteration.queue.add(fragment, next_step)
        return []

    def on_late(self, batch: Batch, pace: float) -> list[Instruction]:
        """Take note that a device takes longer than predicted."""
        device, _ = self._told(batch)
        self._it.fleet.be_late(device, batch, pace)
        return []

    def _restart(self, iteration: Iteration, fragment: Fragment) -> None:
        iteration.to_restart.discard(fragment)
        iteration.held_on.pop(fragment, None)
        iteration.queue.add(fragment)

    def _generated(self, batch: Batch) -> tuple[Iteration, str]:
        """Take a batch back from its device."""
        device, do = self._told(batch)
        iteration = self._it.open(batch.iteration)
        for fragment in batch.fragments:
            del iteration.generating[fragment]
        self._it.fleet.take_back(device, do)
        return iteration, device.name

    def _told(self, batch: Batch) -> tuple[DeviceState, Generate]:
        """Return the device that was told to generate a batch, and the instruction."""
        name = self._it.open(batch.iteration).generating.get(batch.fragments[0], "")
        told = self._it.fleet[name].queue if name else []
        for do in told:
            if isinstance(do, Generate) and do.batch == batch:
                return self._it.fleet[name], do
        raise self._it.error(f"{batch} is not being generated")

    def on_scored(self, fragment: Fragment) -> list[Instruction]:
        """Have advantages computed, once all groups that they are made of are scored."""
        iteration = self._it.open(fragment.iteration)
        if not iteration.score(fragment):
            raise self._it.error(f"{fragment} was scored but not waited for")
        work, group = self._it.workload, fragment.group
        if self._waits_for_all and not work.screens(group):  # candidates wait for nobody
            return self._ask_about_all(iteration)
        if iteration.unscored[group]:
            return []
        return [ComputeAdvantages(iteration.index, (group,))]

    @property
    def _waits_for_all(self) -> bool:
        """Whether the advantages of all groups are computed at once."""
        return self._it.workload.advantages_need_all_groups or not self._it.layout.pipelined

    def _ask_about_all(self, iteration: Iteration) -> list[Instruction]:
        """Have advantages computed, if all groups are scored, and none is of candidates."""
        groups = sorted(iteration.without_advantages)
        if not groups or iteration.num_unscored or any(map(self._it.workload.screens, groups)):
            return []
        return [ComputeAdvantages(iteration.index, tuple(groups))]

    # --- training -------------------------------------------------------------------------

    def on_advantages(self, event: AdvantagesComputed) -> list[Instruction]:
        """Make pairs of groups ready."""
        iteration, workload = self._it.open(event.iteration), self._it.workload
        if not iteration.without_advantages.issuperset(event.groups):
            raise self._it.error(f"groups {event.groups} already have advantages")
        everyone = tuple(range(workload.group_size))
        for place, group in enumerate(event.groups):
            iteration.give_advantages(group)
            if group not in event.skipped:
                chosen = event.chosen[place] if event.chosen else everyone
                iteration.add_pairs(group, chosen, workload, self._it.layout)
        closed = self._updates.closed(iteration)  # if no group of an update carried a signal
        asked = self._ask_about_all(iteration) if self._waits_for_all else []
        return [*closed, *asked, *self._turns.when_generated()]

    def on_trained(self, pack: Pack) -> list[Instruction]:
        """Take note that a pack is in the sum of its device."""
        iteration, device = self._take_back(pack)
        iteration.trained.setdefault(device.name, []).append(pack)
        fleet = self._it.fleet
        if not (device.queue or device.packs):
            fleet.training_clock = max(fleet.training_clock, device.trains_until)
        return self._updates.closed(iteration)

    def on_too_large(self, pack: Pack) -> list[Instruction]:
        """Put the pairs of a pack back, and give its device smaller ones."""
        iteration, device = self._take_back(pack)
        if pack.num_pairs == 1:
            raise ControllerError(f"one pair does not fit into the memory of {device.name}")
        device.largest_pack = pack.load / 2
        put_back(iteration, pack, self._it.workload)
        for prepared in self._it.fleet.return_packs(device):  # just as large
            del iteration.training[prepared.index]
            iteration.put(prepared.blocks)
        is_lost = self._it.layout.colocated and len(iteration.queue)  # what they were made of
        return self._turns.all("rollout") if is_lost else []

    def _take_back(self, pack: Pack) -> tuple[Iteration, DeviceState]:
        iteration = self._it.open(pack.iteration)
        _, name = iteration.training.pop(pack.index, (None, ""))
        if not name:
            raise self._it.error(f"pack {pack.index} was not being trained")
        self._it.done(Train(pack, self._it.version, name))
        return iteration, self._it.fleet[name]
