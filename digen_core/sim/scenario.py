"""A scenario: a recipe and a cluster as numbers, from which schedules are simulated and planned."""

import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Self

from pydantic import Field, ValidationError, model_validator

from digen_core.config import ConfigError, Strict
from digen_core.control.costs import Costs, DeviceCosts, Linear
from digen_core.control.protocol import Device, Role
from digen_core.control.schedule import Workload

BOTH: frozenset[Role] = frozenset({"rollout", "trainer"})


class Scenario(Strict):
    """One iteration's work and what it costs, in seconds, on a number of devices."""

    description: str = ""
    """What it stands for."""

    devices: int = Field(ge=2)
    """Devices in all (P)."""

    prompts: int = Field(ge=1)
    """Groups of an iteration (N)."""

    group_size: int = Field(ge=1)
    """Samples of a group (G)."""

    trained_per_group: int = Field(ge=1)
    """Samples of a group that are trained; fewer than group_size with best-of-n."""

    steps: int = Field(ge=1)
    """Denoising steps (T)."""

    trained_steps: int = Field(ge=1)
    """Trained steps of a trajectory (K)."""

    fragment_size: int = Field(ge=1)
    """Samples of a group that are denoised together."""

    pack_size: int = Field(ge=1)
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

    reward_servers: int = Field(1, ge=1)
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
        for part, whole in (("trained_per_group", "group_size"), ("trained_steps", "steps")):
            if getattr(self, part) > getattr(self, whole):
                raise ValueError(
                    f"{part} is {getattr(self, part)}, but {whole} is only {getattr(self, whole)}"
                )
        return self

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
        full, rest = divmod(self.group_size, self.fragment_size)
        group = full * self.reference.fragment(self.fragment_size, self.steps)
        if rest:
            group += self.reference.fragment(rest, self.steps)
        return self.prompts * group

    def training_work(self, pack_size: int | None = None) -> float:
        """W_t(b): seconds that the reference device needs to train an iteration in packs of b."""
        pack_size = pack_size or self.pack_size
        full, rest = divmod(self.prompts * self.pairs_per_group, pack_size)
        return full * self.reference.pack(pack_size) + (self.reference.pack(rest) if rest else 0.0)

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
        return Scenario.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"cannot read the scenario {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    except ValidationError as error:
        raise ConfigError(f"{path}: {_describe(error)}") from error


def _describe(error: ValidationError) -> str:
    """Say all of a validation error in one line: each key, what is wrong, and its value."""
    problems = []
    for item in error.errors():
        key = ".".join(str(part) for part in item["loc"])
        message = item["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
        if item["type"] == "extra_forbidden":
            near = get_close_matches(key, Scenario.model_fields, 1)
            problems.append(f"unknown key {key}" + (f"; did you mean {near[0]}?" if near else ""))
        elif item["type"] == "missing":
            problems.append(f"{key} is missing")
        else:
            problems.append(f"{key}: {message} (got {item['input']!r})" if key else message)
    return "; ".join(problems)
