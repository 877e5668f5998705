"""The devices as the controller knows them: what each is ready for, holds, and was told to do."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from digen_core.control.costs import Costs, DeviceCosts, Linear
from digen_core.control.protocol import Device, Generate, Pack, Role, Switch, Train
from digen_core.control.schedule import Workload

Work = Generate | Train | Switch

UNKNOWN = DeviceCosts(step=Linear(per_item=1.0), pack=Linear(per_item=1.0))


@dataclass
class DeviceState:
    """One device. ``queue`` holds what it was told to do and has not done, in order."""

    device: Device
    home: Role
    mode: Role  # what it is ready for once its queue is done
    loaded: set[int] = field(default_factory=set)  # versions it holds
    queue: list[Work] = field(default_factory=list)
    packs: list[Pack] = field(default_factory=list)  # of its samples, without TSP: to train next
    largest_pack: int | None = None  # pairs that fit into its memory; None: not yet found out
    trains_until: float = 0.0  # predicted, on the fleet's clock of training
    pausing: bool = False  # told to pause the fragment that it generates
    may_generate: bool = False
    may_train: bool = False

    @property
    def name(self) -> str:
        """The device's name."""
        return self.device.name

    @property
    def newest(self) -> int:
        """The newest version that it holds; -1 before the first."""
        return max(self.loaded, default=-1)


class Fleet:
    """All devices, in the order in which they are offered work: the home of the role first."""

    def __init__(self, devices: Sequence[Device], workload: Workload, costs: Costs) -> None:
        self._states: dict[str, DeviceState] = {}
        self._fastest_first: list[DeviceState] | None = None  # asked for with every event
        self._workload = workload
        self.learn(costs)
        #: Predicted seconds of training in this update: it moves when a pack is trained.
        self.training_clock = 0.0
        for device in devices:
            self.add(device)
        #: The device that holds the optimizer's state: it computes advantages, reduces and steps.
        self.holder = self._first("trainer")
        self._first("rollout")

    def _first(self, role: Role) -> str:
        for state in self:
            if role in state.device.roles:
                return state.name
        roles = {state.name: sorted(state.device.roles) for state in self}
        raise ValueError(f"no worker has the role {role!r}: the workers are {roles}")

    def add(self, device: Device) -> DeviceState:
        """Take a device in; it holds no version yet."""
        home: Role = "rollout" if "rollout" in device.roles else "trainer"
        state = DeviceState(
            device,
            home,
            home,
            may_generate="rollout" in device.roles,
            may_train="trainer" in device.roles,
        )
        self._states[device.name] = state
        self._fastest_first = None
        return state

    def remove(self, name: str) -> DeviceState:
        """Forget a device and return what it was."""
        self._fastest_first = None
        return self._states.pop(name)

    def __iter__(self) -> Iterator[DeviceState]:
        return iter(self._states.values())

    def __getitem__(self, name: str) -> DeviceState:
        return self._states[name]

    def __contains__(self, name: str) -> bool:
        return name in self._states

    def with_mode(self, mode: Role) -> list[DeviceState]:
        """Return the devices that do, or get ready for, the work of a role."""
        return [state for state in self if state.mode == mode]

    def with_home(self, home: Role) -> list[DeviceState]:
        """Return the devices whose first role is this one."""
        return [state for state in self if state.home == home]

    def fastest_first(self) -> list[DeviceState]:
        """Return all devices; the first groups come to the fastest, so they are complete early."""
        if self._fastest_first is None:
            self._fastest_first = sorted(self, key=self.generation_rate, reverse=True)
        return self._fastest_first

    def restart_clock(self) -> None:
        """Begin the predictions for another update."""
        self.training_clock = 0.0
        for state in self:
            state.trains_until = 0.0

    def learn(self, costs: Costs) -> None:
        """Predict with these costs from now on."""
        self.costs = costs
        self._rates: dict[str, tuple[float, float]] = {}  # steps and pairs per second, by kind
        self._fastest_first = None

    def costs_of(self, state: DeviceState) -> DeviceCosts:
        """Return what work costs on a device; equal guesses where the kind is unknown."""
        kinds = self.costs.kinds
        return kinds.get(state.device.kind) or next(iter(kinds.values()), UNKNOWN)

    def generation_rate(self, state: DeviceState) -> float:
        """Return how many denoising steps of whole fragments a device does per second."""
        return self._rates_of(state)[0]

    def training_rate(self, state: DeviceState) -> float:
        """Return how many pairs per second a device trains in full packs."""
        return self._rates_of(state)[1]

    def trainer_bound(self, num_trained_steps: int) -> bool:
        """Say whether training, not generation, is the bottleneck of an iteration."""
        workload = self._workload
        trainers = [state for state in self if "trainer" in state.device.roles]
        generation = sum(map(self.generation_rate, self.with_home("rollout")))
        training = sum(map(self.training_rate, trainers))
        steps = workload.num_fragments * workload.num_steps
        pairs = workload.num_groups * workload.trained_per_group * num_trained_steps
        return pairs / training > steps / generation

    def _rates_of(self, state: DeviceState) -> tuple[float, float]:
        rates = self._rates.get(state.device.kind)
        if rates is None:
            costs, workload = self.costs_of(state), self._workload
            step_seconds = costs.step(workload.fragment_size)
            pack_seconds = costs.pack(workload.pack_size)
            rates = (
                1 / max(step_seconds, 1e-12),
                workload.pack_size / max(pack_seconds, 1e-12),
            )
            self._rates[state.device.kind] = rates
        return rates
