"""The fleet: what the controller asks of the devices of a run, and predicts of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from digen_core.control.costs import Costs, DeviceCosts
from digen_core.control.devices.device_index import Traits
from digen_core.control.devices.device_state import DeviceState
from digen_core.control.devices.register import Register
from digen_core.control.protocol import Device, Role
from digen_core.control.schedule import Workload


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """Devices as plain data; the fields are those of :class:`Fleet`."""

    devices: tuple[DeviceState, ...]  # copies, in the order in which they came
    num_added: int
    holder: str
    training_clock: float


class Fleet(Register):
    """All devices, as they are asked about."""

    @classmethod
    def of(cls, devices: Sequence[Device], workload: Workload, costs: Costs) -> "Fleet":
        """Return the devices that a run begins with; the first trainer is the holder.

        Raises:
            ValueError: none has one of the roles.
        """
        fleet = cls(workload, costs)
        for device in devices:
            fleet.add(device)
        fleet.holder = fleet._first("trainer")
        fleet.file(fleet[fleet.holder])
        fleet._first("rollout")
        return fleet

    @classmethod
    def restored(cls, snapshot: FleetSnapshot, workload: Workload, costs: Costs) -> "Fleet":
        """Return the devices that a snapshot is of."""
        fleet = cls(workload, costs)
        fleet._states = {state.name: state.copy() for state in snapshot.devices}
        fleet._num_added = snapshot.num_added
        fleet.holder, fleet.training_clock = snapshot.holder, snapshot.training_clock
        fleet.file_all()
        return fleet

    def snapshot(self) -> FleetSnapshot:
        """Return all that the devices are, and nothing that follows from it."""
        states = tuple(state.copy() for state in self)
        return FleetSnapshot(states, self._num_added, self.holder, self.training_clock)

    def replace_holder(self) -> None:
        """Make the first trainer that is left the holder; it trains, whatever it did before."""
        self.holder = self._first("trainer")
        self[self.holder].may_train = True
        self.file(self[self.holder])

    def _first(self, role: Role) -> str:
        for state in self:
            if role in state.device.roles:
                return state.name
        roles = {state.name: sorted(state.device.roles) for state in self}
        raise ValueError(f"no worker has the role {role!r}: the workers are {roles}")

    # --- questions ------------------------------------------------------------------------

    def with_home(self, home: Role) -> list[DeviceState]:
        """Return the devices whose first role is this one, and that stay."""
        return [state for state in self if state.home == home and not state.leaving]

    def late(self) -> list[DeviceState]:
        """Return the devices that generate what is late, or pause it, in the order they came."""
        states = (self._states[name] for name in self._index.late)
        late = (own for own in states if own.generating and own.generating.batch == own.late)
        return sorted(late, key=lambda state: state.number)

    def num_idle(self, version: int, than: DeviceState) -> int:
        """Return how many devices could generate on a version now, faster than another one."""
        names = self._index.names(
            lambda traits: (
                traits.mode == "rollout"
                and not (traits.num_queued or traits.is_leaving)
                and version in traits.loaded
                and self._generation(traits) > self.generation_rate(than)
            )
        )
        return len(names)

    def num(self, mode: Role) -> int:
        """Return how many devices that stay do, or get ready for, the work of a role."""
        return sum(num for traits, num in self._index.staying() if traits.mode == mode)

    def num_awaited(self, version: int) -> int:
        """Return how many devices may generate, but train until a version arrives."""
        return sum(
            num
            for traits, num in self._index.staying()
            if traits.may_generate and traits.mode == "trainer" and version not in traits.loaded
        )

    def all_busy(self, mode: Role) -> bool:
        """Say whether all those devices have something to do."""
        return all(traits.num_queued or traits.mode != mode for traits, _ in self._index.staying())

    def num_faster(self, state: DeviceState, factor: float) -> int:
        """Return how many devices that generate are so many times as fast as one that does."""
        least = factor * self.generation_rate(state)
        return sum(
            num
            for traits, num in self._index.staying()
            if traits.mode == "rollout" and self._generation(traits) > least
        )

    def all_hold(self, version: int) -> bool:
        """Say whether every device holds a version, or a newer one."""
        return all(max(traits.loaded, default=-1) >= version for traits in self._index.traits())

    def any_turns_to_train(self) -> bool:
        """Say whether a device that is there to generate is at a task of the other role."""
        return any(
            traits.num_queued and traits.home == "rollout" and traits.mode == "trainer"
            for traits in self._index.traits()
        )

    def with_room(self, depth: int, after: DeviceState | None) -> Iterator[DeviceState]:
        """Yield the first device of each traits that was told to do less than ``depth`` things.

        The fastest come first: the first groups go to them, so they are complete early.

        Args:
            depth: pieces of work.
            after: the device that they follow; None: they may be any.
        """
        order = None if after is None else (-self.generation_rate(after), after.number)
        return map(self._states.__getitem__, self._index.in_order(depth, order))

    def traits_of(self, state: DeviceState) -> Traits:
        """Return what the work that a device may get depends on."""
        return self._index.traits_of(state.name)

    def to_pause(self, version: int) -> list[DeviceState]:
        """Return the trainers whose batch may be paused, and which hold a version."""
        names = self._index.names(
            lambda traits: (
                traits.may_pause
                and traits.home == "trainer"
                and version in traits.loaded
                and not traits.is_leaving
            )
        )
        return sorted((self._states[name] for name in names), key=lambda state: state.number)

    # --- predictions ----------------------------------------------------------------------

    def costs_of(self, state: DeviceState) -> DeviceCosts:
        """Return what work costs on a device."""
        return self._rates.costs_of(state.device.kind)

    def _generation(self, traits: Traits) -> float:
        """Return the same of a device with such traits."""
        return self._rates.generation(traits.kind) / traits.pace

    def smallest_pack(self, state: DeviceState, most: int) -> int:
        """Return the fewest pairs that are worth a device's pack while more will come."""
        return self._rates.smallest_pack(state.device.kind, most)

    def smallest_batch(self, state: DeviceState) -> int:
        """Return the fewest samples that are worth a denoising step of a device, in a batch."""
        return self._rates.smallest_batch(state.device.kind)

    def generation_speed(self, *, of_home: bool = False) -> float:
        """Return of how many samples the devices that generate do a denoising step per second.

        Args:
            of_home: of those whose first role that is, whatever they do now.
        """
        return sum(
            num * self._generation(traits)
            for traits, num in self._index.staying()
            if (traits.home if of_home else traits.mode) == "rollout"
        )

    def under_way(self, iteration: int) -> float:
        """Return the load of an iteration's steps that devices are doing, half done each."""
        return self._index.under_way.get(iteration, 0.0)

    def seconds_to_train(self, pairs: float, *, with_helpers: bool = False) -> float:
        """Return how long the devices that train need for pairs, after what they do already.

        Args:
            pairs: of the mean size, that they share, so that all finish together.
            with_helpers: trainers that generate turn, and train too.
        """
        free, clock = self._index.training, self.training_clock
        helpers: list[tuple[float, float]] = []
        if with_helpers:
            ready = clock + self.costs.switch_to_trainer
            helpers = [
                (ready, num * self._rates.training(traits.kind))
                for traits, num in self._index.staying()
                if traits.home == "trainer" and traits.mode == "rollout"
            ]
        if not (free or helpers):
            return inf if pairs else 0.0
        for helper in helpers:
            free.add(*helper)
        seconds = free.trained_at(pairs + free.trained_by(clock)) - clock
        for helper in helpers:
            free.remove(*helper)
        return max(0.0, seconds)
