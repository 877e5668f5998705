"""The register of a run's devices: what each is, and indices that are kept with each change."""

from collections.abc import Iterator

from digen_core.control.costs import Costs
from digen_core.control.devices.device_index import DeviceIndex, Entry, Traits
from digen_core.control.devices.device_state import DeviceState, Work
from digen_core.control.devices.rates import Rates
from digen_core.control.protocol import Batch, Device, Pack, Role
from digen_core.control.schedule import Workload


class Register:
    """All devices.

    One is changed by a method of the register, or its attributes are set and then it is filed
    (``file``): so no question of the controller has to look at all devices.
    """

    def __init__(self, workload: Workload, costs: Costs) -> None:
        """Begin without devices."""
        #: By name, in the order in which they came, which is that of their numbers.
        self._states: dict[str, DeviceState] = {}
        #: Devices that ever came: above every number.
        self._num_added = 0
        #: Every device as its attributes are: no method returns before a change is filed.
        self._index = DeviceIndex()
        self._workload = workload
        #: Predicted seconds of training in this update: it moves when a pack is trained.
        self.training_clock = 0.0
        #: The device that holds the optimizer's state: it reduces and steps. One of the fleet's.
        self.holder = ""
        self.learn(costs)

    def __iter__(self) -> Iterator[DeviceState]:
        return iter(self._states.values())

    def __getitem__(self, name: str) -> DeviceState:
        return self._states[name]

    def __contains__(self, name: str) -> bool:
        return name in self._states

    def add(self, device: Device) -> DeviceState:
        """Take a device in; it holds no version yet."""
        home: Role = "rollout" if "rollout" in device.roles else "trainer"
        state = DeviceState(
            device,
            home,
            home,
            self._num_added,
            may_generate="rollout" in device.roles,
            may_train="trainer" in device.roles,
        )
        self._num_added += 1
        self._states[device.name] = state
        self.file(state)
        return state

    def remove(self, name: str) -> DeviceState:
        """Forget a device and return what it was."""
        state = self._states.pop(name)
        self._index.remove(name)
        return state

    def file(self, state: DeviceState) -> None:
        """Bring the indices up to date with a device: after any change of its attributes."""
        training = under_way = None
        if state.mode == "trainer" and not state.leaving:
            training = state.trains_until, self.training_rate(state)
        if do := state.generating:
            half = (do.end_step - do.first_step) // 2
            under_way = do.batch.iteration, half * do.batch.load
        traits = Traits(
            state.device.kind,
            state.home,
            state.mode,
            len(state.queue),
            state.loaded,
            state.may_generate,
            state.may_train,
            state.name == self.holder,
            state.largest_pack,
            bool(state.packs),
            do is not None and not do.first_step and not state.pausing,
            state.leaving,
            state.pace,
        )
        order = (-self.generation_rate(state), state.number)
        self._index.put(state.name, Entry((traits, order), training, under_way))

    def give(self, state: DeviceState, do: Work) -> None:
        """Let a device do something after what it was told before."""
        state.queue.append(do)
        self.file(state)

    def take_back(self, state: DeviceState, do: Work) -> None:
        """Take something off a device's queue.

        Raises:
            ValueError: it is not there.
        """
        if state.queue and state.queue[0] == do:
            state.pausing = False
        state.queue.remove(do)
        self.file(state)

    def be_late(self, state: DeviceState, batch: Batch | None, pace: float) -> None:
        """Note how many times as long a device takes as predicted, and for which batch."""
        state.late, state.pace = batch, pace
        self.file(state)

    def leave(self, state: DeviceState) -> list[Pack]:
        """Let a device get no work any more; return the packs that it was not told to train."""
        state.leaving = True
        for other in self:
            if "trainer" in other.device.roles and not other.leaving:
                other.may_train = True  # whatever it did before: it may be the only one left
                self.file(other)
                break
        return self.return_packs(state)

    def keep_roles(self) -> None:
        """Let devices that are to leave work on where nobody else has their role any more."""
        staying = {role for state in self if not state.leaving for role in state.device.roles}
        for state in self.leaving():
            if not staying.issuperset(state.device.roles):
                state.leaving = False
                self.file(state)

    def return_packs(self, state: DeviceState) -> list[Pack]:
        """Take off a device the packs that it was not told to train."""
        packs, state.packs = state.packs, []
        self.file(state)
        return packs

    def restart_clock(self) -> None:
        """Begin the predictions for another update."""
        self.training_clock = 0.0
        for state in self:
            state.trains_until = 0.0
        self.file_all()

    def learn(self, costs: Costs) -> None:
        """Predict with these costs from now on."""
        self.costs = costs
        self._rates = Rates(costs, self._workload)
        self.file_all()

    def file_all(self) -> None:
        """Build the indices anew: their sums are then rounded as those of a new fleet are."""
        self._index = DeviceIndex()
        for state in self:
            self.file(state)

    def leaving(self) -> list[DeviceState]:
        """Return the devices that are to leave, in the order in which they came."""
        states = (self._states[name] for name in self._index.leaving)
        return sorted(states, key=lambda state: state.number)

    def generation_rate(self, state: DeviceState) -> float:
        """Return of how many samples a device does a denoising step per second."""
        return self._rates.generation(state.device.kind) / state.pace

    def training_rate(self, state: DeviceState) -> float:
        """Return how many pairs per second a device trains in full packs."""
        return self._rates.training(state.device.kind)

    def validate(self) -> None:
        """Raise AssertionError if an index is not what the devices say."""
        index = self._index
        self.file_all()
        expected, self._index = self._index, index
        index.validate(expected)
