"""Who generates, scores, trains, steps and loads, and when: a state machine without I/O.

| IterationOffered -> Encode*, Generate* -> FragmentGenerated -> Score -> FragmentScored
|   -> ComputeAdvantages -> AdvantagesComputed -> (barrier: all groups) Train* -> PackTrained
|   -> Reduce -> GradientReduced -> Step -> Stepped -> Push* -> VersionLoaded -> FinishIteration

`handle` takes what happened and returns what to do. Layout `disaggregated`: rollout devices
generate, and when the last group has its advantages (the barrier) trainer devices train. A device's
work is queued at most `QUEUE_DEPTH` deep, so that it finds its next task waiting while fragments
still go to whichever device is free first.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from digen_core.control.costs import Costs
from digen_core.control.packing import make_packs
from digen_core.control.protocol import (
    AdvantagesComputed,
    ComputeAdvantages,
    Device,
    Encode,
    Event,
    FinishIteration,
    Fragment,
    FragmentGenerated,
    FragmentScored,
    Generate,
    GradientReduced,
    Instruction,
    IterationOffered,
    Pack,
    PackTrained,
    Push,
    Reduce,
    Role,
    Score,
    Step,
    Stepped,
    Train,
    VersionLoaded,
)
from digen_core.control.schedule import Schedule, Workload

QUEUE_DEPTH = 2


class ControllerError(RuntimeError):
    """An event that cannot happen in the controller's state: a bug in whoever drives it."""


class Controller:
    """Mutated only through ``handle``."""

    def __init__(
        self,
        devices: Sequence[Device],
        workload: Workload,
        schedule: Schedule,
        costs: Costs,
    ) -> None:
        self._rollout = _names(devices, "rollout")
        self._trainers = _names(devices, "trainer")
        self._devices = tuple(device.name for device in devices)
        self._workload = workload
        self._version = 0
        self._loaded: dict[str, int] = {}
        self._iteration: int | None = None
        self._offered: deque[IterationOffered] = deque()
        self._trained_steps: tuple[int, ...] = ()
        self._to_generate: deque[Fragment] = deque()
        self._generating: dict[Fragment, str] = {}
        self._unscored: dict[int, set[Fragment]] = {}  # group -> fragments without rewards
        self._without_advantages: set[int] = set()
        self._skipped: set[int] = set()
        self._to_train: deque[Pack] = deque()
        self._training: dict[int, str] = {}  # pack index -> device
        self._gradient_devices: set[str] = set()

    def start(self) -> list[Instruction]:
        """Give every device version 0."""
        return [Push(0, device) for device in self._devices]

    def handle(self, event: Event) -> list[Instruction]:  # noqa: C901 - a table of events
        """Advance by one event and return the instructions it caused, in order.

        Raises:
            ControllerError: the event does not fit the state.
        """
        match event:
            case VersionLoaded(device, version):
                return self._on_loaded(device, version)
            case IterationOffered(iteration, trained_steps, _):
                if self._iteration is not None:
                    self._offered.append(event)
                    return []
                return self._on_iteration(iteration, trained_steps)
            case FragmentGenerated(fragment):
                return self._on_generated(fragment)
            case FragmentScored(fragment):
                return self._on_scored(fragment)
            case AdvantagesComputed(_, groups, skipped):
                return self._on_advantages(groups, skipped)
            case PackTrained(pack):
                return self._on_trained(pack)
            case GradientReduced(iteration):
                return [Step(iteration, self._version, self._trainers[0])]
            case Stepped(version):
                return self._on_stepped(version)
            case _:
                raise ControllerError(f"{event} is not for this layout: {self!r}")

    def fragments_of(self, iteration: int, group: int) -> tuple[Fragment, ...]:
        """Cut a group into fragments."""
        size = self._workload.fragment_size
        starts = range(0, self._workload.group_size, size)
        return tuple(
            Fragment(iteration, group, index, start, min(size, self._workload.group_size - start))
            for index, start in enumerate(starts)
        )

    # --- generation -----------------------------------------------------------------------

    def _on_iteration(self, iteration: int, trained_steps: tuple[int, ...]) -> list[Instruction]:
        behind = [name for name in self._devices if self._loaded.get(name) != self._version]
        if self._iteration is not None or behind:
            raise ControllerError(f"iteration {iteration} cannot start: {behind=}, {self!r}")
        self._iteration, self._trained_steps = iteration, trained_steps
        groups = range(self._workload.num_groups)
        fragments = {group: self.fragments_of(iteration, group) for group in groups}
        self._unscored = {group: set(parts) for group, parts in fragments.items()}
        self._without_advantages = set(groups)
        # Group-major: all samples of a prompt before the next prompt: groups complete early.
        self._to_generate.extend(fragment for parts in fragments.values() for fragment in parts)
        return self._dispatch_generation()

    def _dispatch_generation(self) -> list[Instruction]:
        instructions: list[Instruction] = []
        load = _loads(self._rollout, self._generating.values())
        while self._to_generate:
            device = min(self._rollout, key=load.__getitem__)
            if load[device] >= QUEUE_DEPTH:
                break
            load[device] += 1
            fragment = self._to_generate.popleft()
            self._generating[fragment] = device
            if fragment.index == 0:
                instructions.append(Encode(fragment.iteration, fragment.group, device))
            steps = self._workload.num_steps
            instructions.append(Generate(fragment, 0, steps, self._version, device))
        return instructions

    def _on_generated(self, fragment: Fragment) -> list[Instruction]:
        device = self._generating.pop(fragment, None)
        if device is None:
            raise ControllerError(f"{fragment} was not being generated: {self!r}")
        return [Score(fragment, device), *self._dispatch_generation()]

    def _on_scored(self, fragment: Fragment) -> list[Instruction]:
        waiting = self._unscored.get(fragment.group, set())
        if fragment not in waiting:
            raise ControllerError(f"{fragment} was scored but not waited for: {self!r}")
        waiting.remove(fragment)
        if waiting:
            return []
        if not self._workload.advantages_need_all_groups:
            groups: tuple[int, ...] = (fragment.group,)
            return [ComputeAdvantages(fragment.iteration, groups, self._trainers[0])]
        if any(self._unscored.values()):
            return []
        groups = tuple(sorted(self._unscored))
        return [ComputeAdvantages(fragment.iteration, groups, self._trainers[0])]

    # --- training -------------------------------------------------------------------------

    def _on_advantages(
        self, groups: tuple[int, ...], skipped: tuple[int, ...]
    ) -> list[Instruction]:
        if not self._without_advantages.issuperset(groups):
            raise ControllerError(f"groups {groups} already have advantages: {self!r}")
        self._without_advantages.difference_update(groups)
        self._skipped.update(skipped)
        if self._without_advantages:
            return []
        return self._start_training()

    def _start_training(self) -> list[Instruction]:
        assert self._iteration is not None
        fragments = [
            fragment
            for group in sorted(self._unscored)
            if group not in self._skipped
            for fragment in self.fragments_of(self._iteration, group)
        ]
        self._to_train.extend(
            make_packs(
                fragments,
                self._trained_steps,
                iteration=self._iteration,
                pack_size=self._workload.pack_size,
            )
        )
        if not self._to_train:
            return self._finish(updated=False)
        return self._dispatch_training()

    def _dispatch_training(self) -> list[Instruction]:
        instructions: list[Instruction] = []
        load = _loads(self._trainers, self._training.values())
        while self._to_train:
            device = min(self._trainers, key=load.__getitem__)
            if load[device] >= QUEUE_DEPTH:
                break
            load[device] += 1
            pack = self._to_train.popleft()
            self._training[pack.index] = device
            self._gradient_devices.add(device)
            instructions.append(Train(pack, self._version, device))
        return instructions

    def _on_trained(self, pack: Pack) -> list[Instruction]:
        if pack.iteration != self._iteration or self._training.pop(pack.index, None) is None:
            raise ControllerError(f"pack {pack.index} was not being trained: {self!r}")
        if self._to_train or self._training:
            return self._dispatch_training()
        devices = tuple(sorted(self._gradient_devices))
        return [Reduce(pack.iteration, devices, self._trainers[0])]

    # --- versions -------------------------------------------------------------------------

    def _on_stepped(self, version: int) -> list[Instruction]:
        if version != self._version + 1:
            raise ControllerError(f"version {version} does not follow: {self!r}")
        self._version = version
        return [Push(version, device) for device in self._devices]

    def _on_loaded(self, device: str, version: int) -> list[Instruction]:
        if device not in self._devices or version != self._version:
            raise ControllerError(f"{device} loaded version {version} unasked: {self!r}")
        self._loaded[device] = version
        if self._iteration is None:  # version 0, before the first iteration
            return []
        if any(self._loaded[name] != version for name in self._devices):
            return []
        return self._finish(updated=True)

    def _finish(self, *, updated: bool) -> list[Instruction]:
        assert self._iteration is not None
        finished = FinishIteration(self._iteration, updated)
        self._iteration = None
        self._unscored, self._skipped, self._gradient_devices = {}, set(), set()
        if not self._offered:
            return [finished]
        offer = self._offered.popleft()
        return [finished, *self._on_iteration(offer.iteration, offer.trained_steps)]

    def __repr__(self) -> str:
        return (
            f"Controller(version={self._version}, iteration={self._iteration}, "
            f"to_generate={len(self._to_generate)}, generating={sorted(self._generating)}, "
            f"without_advantages={sorted(self._without_advantages)}, "
            f"to_train={len(self._to_train)}, training={self._training}, loaded={self._loaded})"
        )


def _names(devices: Sequence[Device], role: Role) -> tuple[str, ...]:
    """Return the devices with a role.

    Raises:
        ValueError: there is none, so its work would wait for ever.
    """
    names = tuple(device.name for device in devices if role in device.roles)
    if not names:
        raise ValueError(
            f"no worker has the role {role!r}: the workers are "
            f"{ {device.name: sorted(device.roles) for device in devices} }"
        )
    return names


def _loads(names: Sequence[str], busy: Iterable[str]) -> dict[str, int]:
    """Count the tasks that each device has queued or running."""
    load = dict.fromkeys(names, 0)
    for name in busy:
        load[name] += 1
    return load
