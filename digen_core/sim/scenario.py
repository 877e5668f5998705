"""A scenario: a recipe and a cluster as numbers, from which schedules are simulated and planned."""

from math import ceil
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import Field, ValidationError, model_validator

from digen_core.config import MAX_STEPS_PER_ITERATION, ConfigError
from digen_core.config_file import describe_fields
from digen_core.control.costs import Costs, DeviceCosts, Linear
from digen_core.control.protocol import Device, Role
from digen_core.control.schedule import Workload
from digen_core.reading import read_toml
from digen_core.sim.problem import MIN_ROLLOUT_SHARE
from digen_core.strict import AtMost, Strict

TIMES = (
    "d0",
    "d1",
    "vae",
    "a",
    "c",
    "optimizer_step",
    "reward_seconds",
    "push",
    "switch_colocated",
    "helper_in",
    "helper_out",
)
BOTH: frozenset[Role] = frozenset({"rollout", "trainer"})


_MANY: Final = AtMost(65_536, "each is simulated by itself")
_STEPS: Final = AtMost(1000, "models are trained with 1000 noise levels")


class Scenario(Strict):
    """One iteration's work and what it costs, in seconds, on a number of devices."""

    description: str = ""
    """What it stands for."""

    devices: Annotated[int, _MANY] = Field(ge=2)
    """Devices in all (P)."""

    prompts: Annotated[int, _MANY] = Field(ge=1)
    """Groups of an iteration (N)."""

    group_size: Annotated[int, _MANY] = Field(ge=1)
    """Samples of a group (G)."""

    trained_per_group: Annotated[int, _MANY] = Field(ge=1)
    """Samples of a group that are trained; fewer than group_size with best-of-n."""

    steps: Annotated[int, _STEPS] = Field(ge=1)
    """Denoising steps (T)."""

    trained_steps: Annotated[int, _STEPS] = Field(ge=1)
    """Trained steps of a trajectory (K)."""

    fragment_size: Annotated[int, _MANY] = Field(ge=1)
    """Samples of a group that are denoised together."""

    pack_size: Annotated[int, _MANY] = Field(ge=1)
    """Most pairs in one forward and backward (b), in layouts that pack."""

    d0: float = Field(ge=0)
    """A denoising step of n samples takes d0 + n d1."""

    d1: float = Field(gt=0)
    """A denoising step: each sample."""

    vae: float = Field(0.0, ge=0)
    """Encoding and decoding, each sample."""

    a: float = Field(ge=0)
    """A pack of n pairs takes a + n c."""

    c: float = Field(gt=0)
    """A pack: each pair."""

    optimizer_step: float = Field(0.0, ge=0)
    """The optimizer step itself."""

    reward_seconds: float = Field(0.0, ge=0)
    """A sample on a reward server; 0 when the generating device scores."""

    reward_servers: Annotated[int, _MANY] = Field(1, ge=1)
    """Samples that are scored at the same time."""

    push: float = Field(0.0, ge=0)
    """From the optimizer step until a device that generates holds the new version."""

    switch_colocated: float = Field(0.0, ge=0)
    """Engine switches of a device in an iteration of a colocated layout, both together."""

    helper_in: float = Field(0.0, ge=0)
    """Engine switch of a trainer that begins to generate, or rollout device back from training."""

    helper_out: float = Field(0.0, ge=0)
    """Engine switch of a trainer back from generating, or rollout device that begins to train."""

    rollout_slowdown: float = Field(1.0, gt=0)
    """Time of a rollout device relative to the reference device."""

    trainer_slowdown: float = Field(1.0, gt=0)
    """Time of a trainer relative to the reference device."""

    jitter: float = Field(0.0, ge=0, le=1)
    """Sigma of the lognormal factor, of mean 1, on the time of everything."""

    seconds: dict[str, float] = Field(default_factory=dict)
    """Recorded seconds per iteration, by layout; `floor` is the least on equal devices."""

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
        return self

    def scaled(self, factor: float) -> "Scenario":
        """Return it with all times so many times as long."""
        times = {name: factor * getattr(self, name) for name in TIMES}
        recorded = {name: factor * seconds for name, seconds in self.seconds.items()}
        return self.model_copy(update={**times, "seconds": recorded})

    @property
    def workload(self) -> Workload:
        """The shape of its iterations."""
        return Workload(
            num_groups=self.prompts,
            group_size=self.group_size,
            fragment_size=self.fragment_size,
            num_steps=self.steps,
            pack_size=self.pack_size,
            trained_per_group=self.trained_per_group,
        )

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
        """What work costs on the reference device."""
        return self._device_costs(1.0)

    @property
    def pairs_per_group(self) -> int:
        """Pairs of a group that are trained."""
        return self.trained_per_group * self.trained_steps

    @property
    def generation_work(self) -> float:
        """W_g: seconds that the reference device needs to generate an iteration."""
        return self.reference.generation(self.workload)

    def training_work(self, pack_size: int | None = None) -> float:
        """W_t(b): seconds that the reference device needs to train an iteration in packs of b."""
        size = pack_size or self.pack_size
        return self.reference.training(self.workload, self.trained_steps, size)

    def cluster(self, num_rollout: int | None) -> tuple[Device, ...]:
        """Return its devices.

        Args:
            num_rollout: devices that generate; the others train. None: every device does both.
        """
        if num_rollout is None:
            return tuple(Device(f"device-{index}", BOTH) for index in range(self.devices))
        sizes: dict[Role, int] = {"rollout": num_rollout, "trainer": self.devices - num_rollout}
        return tuple(
            Device(f"{role}-{index}", frozenset([role]), kind=role)
            for role, size in sizes.items()
            for index in range(size)
        )

    def costs(self, num_rollout: int | None) -> Costs:
        """Return what everything costs on the devices of that split."""
        if num_rollout is None:
            kinds = {"default": self.reference}
            into_rollout = into_trainer = self.switch_colocated / 2
        else:
            kinds = {
                "rollout": self._device_costs(self.rollout_slowdown),
                "trainer": self._device_costs(self.trainer_slowdown),
            }
            into_rollout, into_trainer = self.helper_in, self.helper_out
        return Costs(
            kinds=kinds,
            reward=self.reward_seconds,
            reward_servers=self.reward_servers,
            optimizer_step=self.optimizer_step,
            push=self.push,
            switch_to_rollout=into_rollout,
            switch_to_trainer=into_trainer,
        )

    def speeds(self, num_rollout: int | None) -> tuple[float, float]:
        """Return the reference devices that the rollout devices and the trainers are worth.

        Without a split, all devices count as rollout devices: they wait for the push.
        """
        if num_rollout is None:
            return float(self.devices), 0.0
        trainers = self.devices - num_rollout
        return num_rollout / self.rollout_slowdown, trainers / self.trainer_slowdown

    def floor(self, num_rollout: int | None) -> float:
        """Return (W_g + W_t(b)) / sum of speeds: an iteration in which no device ever waits."""
        return (self.generation_work + self.training_work()) / sum(self.speeds(num_rollout))

    def _device_costs(self, slowdown: float) -> DeviceCosts:
        return DeviceCosts(
            step=Linear(fixed=self.d0 * slowdown, per_item=self.d1 * slowdown),
            decode=Linear(per_item=self.vae * slowdown),
            pack=Linear(fixed=self.a * slowdown, per_item=self.c * slowdown),
        )


def load_scenario(path: Path) -> Scenario:
    """Read a scenario from a TOML file.

    Raises:
        ConfigError: the file is missing or not TOML, or a key or value is wrong.
    """
    try:
        return Scenario.model_validate(read_toml(path, "the scenario"))
    except ValidationError as error:
        raise ConfigError(f"{path}: {describe_fields(error, Scenario)}") from error
