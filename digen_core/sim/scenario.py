"""A scenario: a recipe and a cluster as numbers, from which schedules are simulated and planned."""

from collections import Counter
from dataclasses import replace
from itertools import count, cycle, islice
from math import ceil
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import Field, ValidationError, model_validator

from digen_core.config.combinations import MAX_STEPS_PER_ITERATION
from digen_core.config.load import describe_fields
from digen_core.config.train import DealtBy
from digen_core.control.costs import LEAST_SECONDS, Costs, DeviceCosts, Linear, Link, Sent
from digen_core.control.protocol import Device
from digen_core.control.schedule import Workload, relative_costs
from digen_core.errors import UserError
from digen_core.inputs.reading import read_toml
from digen_core.inputs.text import number_of
from digen_core.sim.deal import BOTH, deal
from digen_core.sim.kinds import MANY, DeviceKind, Factor
from digen_core.sim.problem import MIN_ROLLOUT_SHARE
from digen_core.strict import AtMost, Duration, Strict

TIMES = (
    "d0",
    "d1",
    "vae",
    "a",
    "c",
    "optimizer_step",
    "gradient_sum",
    "reward_seconds",
    "push",
    "switch_colocated",
    "helper_in",
    "helper_out",
)

MOST_BYTES: Final = 1e18  # of anything, and in a second: with more, predictions are not finite

_STEPS: Final = AtMost(1000, "models are trained with 1000 noise levels")


class Scenario(Strict):
    """One iteration's work and what it costs, in seconds, on a number of devices."""

    description: str = ""
    """What it stands for."""

    devices: Annotated[int, MANY] = Field(ge=2)
    """Devices in all (P)."""

    prompts: Annotated[int, MANY] = Field(ge=1)
    """Groups of an iteration (N)."""

    group_size: Annotated[int, MANY] = Field(ge=1)
    """Samples of a group (G)."""

    trained_per_group: Annotated[int, MANY] = Field(ge=1)
    """Samples of a group that are trained; fewer than group_size with best-of-n."""

    steps: Annotated[int, _STEPS] = Field(ge=1)
    """Denoising steps (T)."""

    trained_steps: Annotated[int, _STEPS] = Field(ge=1)
    """Trained steps of a trajectory (K)."""

    fragment_size: Annotated[int, MANY] = Field(ge=1)
    """Samples of a group that are denoised together."""

    batch_size: Annotated[int, MANY] = Field(1, ge=1)
    """Samples that are denoised together at most, as whole fragments of one group or of several."""

    pack_size: Annotated[int, MANY] = Field(ge=1)
    """Most pairs in one forward and backward (b), in layouts that pack."""

    d0: Duration = Field(ge=0)
    """A denoising step of n samples takes d0 + n d1."""

    d1: Duration = Field(ge=LEAST_SECONDS)
    """A denoising step: each sample."""

    vae: Duration = Field(0.0, ge=0)
    """Encoding and decoding, each sample."""

    a: Duration = Field(ge=0)
    """A pack of n pairs takes a + n c."""

    c: Duration = Field(ge=LEAST_SECONDS)
    """A pack: each pair."""

    optimizer_step: Duration = Field(0.0, ge=0)
    """The optimizer step itself."""

    reward_seconds: Duration = Field(0.0, ge=0)
    """A sample on a reward server; 0 when the generating device scores."""

    reward_servers: Annotated[int, MANY] = Field(1, ge=1)
    """Samples that are scored at the same time."""

    gradient_sum: Duration = Field(0.0, ge=0)
    """Before it: bringing the sum of gradients of one other trainer to where it is added: to the
    device that steps or, of another site, to the first trainer there."""

    push: Duration = Field(0.0, ge=0)
    """From the optimizer step until a device that generates holds the new version."""

    pulls_at_once: int | None = Field(None, ge=1)
    """Devices that pull a version from one other at the same time, 1 where all weights are trained;
    null: any number."""

    switch_colocated: Duration = Field(0.0, ge=0)
    """Engine switches of a device in an iteration of a colocated layout, both together."""

    helper_in: Duration = Field(0.0, ge=0)
    """Engine switch of a trainer that begins to generate, or rollout device back from training."""

    helper_out: Duration = Field(0.0, ge=0)
    """Engine switch of a trainer back from generating, or rollout device that begins to train."""

    updates: Annotated[int, _STEPS] = Field(1, ge=1)
    """Optimizer steps of an iteration."""

    epochs: Annotated[int, _STEPS] = Field(1, ge=1)
    """Times that each sample is trained in them."""

    dealt_by: DealtBy = "groups"
    """What is dealt to the updates of an epoch: groups, or samples of all groups."""

    group_costs: tuple[Factor, ...] = ()
    """What a sample of a group costs, relative to other groups', for the groups in turn: sizes
    that are mixed. The mean group takes what the constants say."""

    group_steps: tuple[Annotated[int, Field(ge=1), _STEPS], ...] = ()
    """Denoising steps of a group, for the groups in turn; of them as large a share is trained as
    trained_steps is of steps, which is the most. Empty: all groups have `steps`."""

    kinds: dict[str, DeviceKind] = Field(default_factory=dict)
    """The inventory, by name of the kind, where devices are not equal; the search deals it."""

    links: tuple[Link, ...] = ()
    """Between the sites of kinds; where there is none, bytes take no time."""

    sent: Sent = Sent()
    """Bytes that cross them."""

    jitter: float = Field(0.0, ge=0, le=1)
    """Sigma of the lognormal factor, of mean 1, on the time of everything."""

    seconds: dict[str, float] = Field(default_factory=dict)
    """Recorded seconds per iteration, by layout; `floor` is the least on these devices."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (work := self.prompts * self.group_size * self.steps) > MAX_STEPS_PER_ITERATION:
            raise ValueError(
                f"prompts x group_size x steps is {work}; use at most {MAX_STEPS_PER_ITERATION}: "
                "every step of every sample is simulated"
            )
        for part, whole in (("trained_per_group", "group_size"), ("trained_steps", "steps")):
            if getattr(self, part) > getattr(self, whole):
                raise ValueError(
                    f"{part} is {getattr(self, part)}, but {whole} is only {getattr(self, whole)}"
                )
        if self.updates % self.epochs or self.workload.dealt_units % (self.updates // self.epochs):
            raise ValueError(
                f"updates is {self.updates} in {self.epochs} epochs, but each epoch has as many, "
                f"and they share {self.workload.dealt_units} {self.dealt_by} equally"
            )
        for name, kind in self.kinds.items():
            if kind.count % kind.hosts:
                devices = number_of(kind.count, "device")
                raise ValueError(f"kinds.{name} has {devices} on {kind.hosts} hosts")
        in_kinds = sum(kind.count for kind in self.kinds.values())
        if self.kinds and in_kinds != self.devices:
            raise ValueError(
                f"kinds have {number_of(in_kinds, 'device')}, but devices is {self.devices}"
            )
        return self

    @model_validator(mode="after")
    def _check_batches(self) -> Self:
        if self.batch_size > self.fragment_size and self.group_size % self.fragment_size:
            raise ValueError(
                f"batch_size is {self.batch_size}, of whole fragments, but fragment_size "
                f"({self.fragment_size}) does not divide group_size ({self.group_size})"
            )
        return self

    @model_validator(mode="after")
    def _check_group_steps(self) -> Self:
        for steps in self.group_steps:
            if steps > self.steps or not self.trained_of(steps):
                raise ValueError(
                    f"group_steps has {steps}; use at most steps ({self.steps}), and as many that "
                    f"one is trained where of {self.steps} steps {self.trained_steps} are"
                )
        return self

    @model_validator(mode="after")
    def _check_links(self) -> Self:
        sites = {kind.site for kind in self.kinds.values()}
        for link in self.links:
            if not (link.sites <= sites and len(link.sites) == 2):
                raise ValueError(
                    f"links: one is between {list(link.between)}, but kinds have the sites "
                    f"{sorted(sites)}"
                )
        asked = Counter(link.sites for link in self.links)
        if twice := [sorted(pair) for pair, number in asked.items() if number > 1]:
            raise ValueError(f"links: {twice[0]} are linked more than once; leave one link")
        if self.sent != Sent() and not self.links:
            raise ValueError("sent has bytes, but no links have to carry them; give links, or none")
        return self

    @model_validator(mode="after")
    def _check_bytes(self) -> Self:
        speeds = [("bytes_per_second", link.bytes_per_second) for link in self.links]
        for name, number in (*speeds, *((f"sent.{name}", own) for name, own in self.sent if own)):
            if not 1 <= number <= MOST_BYTES:
                raise ValueError(f"{name} is {number:g}; use 1 to {MOST_BYTES:g}")
        return self

    def scaled(self, factor: float) -> "Scenario":
        """Return it with all times so many times as long."""
        times = {name: factor * getattr(self, name) for name in TIMES}
        recorded = {name: factor * seconds for name, seconds in self.seconds.items()}
        links = tuple(link.slower(factor) for link in self.links)
        return self.model_copy(update={**times, "seconds": recorded, "links": links})

    @property
    def workload(self) -> Workload:
        """The shape of its iterations."""
        own = tuple(islice(cycle(self.group_steps), self.prompts))
        return Workload(
            num_groups=self.prompts,
            group_size=self.group_size,
            fragment_size=self.fragment_size,
            batch_size=self.batch_size,
            num_steps=self.steps,
            pack_size=self.pack_size,
            trained_per_group=self.trained_per_group,
            group_costs=relative_costs(islice(cycle(self.group_costs), self.prompts)),
            group_steps=own,
            group_trained=tuple(map(self.trained_of, own)),
            num_updates=self.updates,
            epochs=self.epochs,
            dealt_by=self.dealt_by,
        )

    @property
    def trained_fraction(self) -> float:
        """Share of the steps of a trajectory that is trained, rounded down."""
        return min(1.0, (self.trained_steps + 0.5) / self.steps)

    def trained_of(self, num_steps: int) -> int:
        """Return the trained steps of a trajectory of so many."""
        return int(num_steps * self.trained_fraction)

    @property
    def unforeseen(self) -> dict[str, float]:
        """By kind, times that a denoising step really takes of what is predicted."""
        return {name: kind.unforeseen for name, kind in self.kinds.items()}

    @property
    def splits(self) -> range:
        """How many devices may generate, the others train."""
        return range(ceil(MIN_ROLLOUT_SHARE * self.devices), self.devices)

    @property
    def can_colocate(self) -> bool:
        """Whether every device may do both."""
        return True

    @property
    def reference(self) -> DeviceCosts:
        """What work costs on a device that takes what the scenario's constants say."""
        return DeviceCosts(
            step=Linear(fixed=self.d0, per_item=self.d1),
            decode=Linear(per_item=self.vae),
            pack=Linear(fixed=self.a, per_item=self.c),
        )

    @property
    def num_pairs(self) -> int:
        """Pairs of an iteration that are trained, in all epochs."""
        return self.workload.num_pairs(self.trained_steps)

    @property
    def generation_work(self) -> float:
        """W_g: seconds that the reference device needs to generate an iteration."""
        return self.reference.generation(self.workload)

    def cluster(self, num_rollout: int | None) -> tuple[Device, ...]:
        """Return its devices.

        Args:
            num_rollout: devices that generate; the others train. Those generate that are better at
                it than at training. None: every device does both.
        """
        kinds = [own for own in self.inventory.items() for _ in range(own[1].count)]
        fleet = tuple(
            Device(f"device-{index}", BOTH, name, kind.gang, kind.site)
            for index, (name, kind) in enumerate(kinds)
        )
        if num_rollout is None:
            return fleet
        numbers = {role: count() for role in BOTH}
        return tuple(
            replace(device, name=f"{role}-{next(numbers[role])}")
            for device in deal(fleet, num_rollout, self.workload, self._kinds)
            for role in device.roles
        )

    def costs(self, num_rollout: int | None) -> Costs:
        """Return what everything costs on the devices of that split."""
        into_rollout, into_trainer = self.helper_in, self.helper_out
        if num_rollout is None:
            into_rollout = into_trainer = self.switch_colocated / 2
        return Costs(
            kinds=self._kinds,
            reward=self.reward_seconds,
            reward_servers=self.reward_servers,
            optimizer_step=self.optimizer_step,
            gradient_sum=self.gradient_sum,
            push=self.push,
            switch_to_rollout=into_rollout,
            switch_to_trainer=into_trainer,
            links=self.links,
            sent=self.sent,
        )

    @property
    def inventory(self) -> dict[str, DeviceKind]:
        """Its devices by kind; equal ones are of the kind "default"."""
        return self.kinds or {"default": DeviceKind(count=self.devices)}

    @property
    def hosts(self) -> dict[str, int]:
        """On how many hosts the devices of each kind are."""
        return {name: kind.hosts for name, kind in self.inventory.items()}

    @property
    def _kinds(self) -> dict[str, DeviceCosts]:
        return {name: kind.costs(self.reference) for name, kind in self.inventory.items()}


def load_scenario(path: Path) -> Scenario:
    """Read a scenario from a TOML file.

    Raises:
        UserError: the file is missing or not TOML, or a key or value is wrong.
    """
    try:
        return Scenario.model_validate(read_toml(path, "the scenario"))
    except ValidationError as error:
        raise UserError(f"{path}: {describe_fields(error, Scenario)}") from error
