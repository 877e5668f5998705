"""The workers of a run: real devices, or emulated ones that only wait.

Which of the two is chosen once, where a run is opened; no flow asks.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, cast

import numpy as np

from digen_core.config.rewards import RewardConfig
from digen_core.config.run import RunConfig
from digen_core.control.costs import Costs
from digen_core.control.schedule import Workload
from digen_core.data.prompts import Prompt
from digen_core.maths.ddpo import RewardHistory
from digen_core.planning import job
from digen_core.preflight.reward_probe import probed_by_workers
from digen_core.sim.emulated_config import EmulatedConfig
from digen_core.sim.report import OCCUPYING
from digen_core.training.advantages import Advantages, Columns, advantages_of
from digen_core.training.screening import chosen_candidates
from tasks.body import Body
from tasks.cluster.emulated import DEVICE, REWARD_SERVERS
from tasks.emulation import EMULATED
from tasks.receipts import FactsT


class Workers(Protocol):
    """What a run's flows have to know of those who do its work."""

    keeps_state: bool
    """Whether checkpoints can be made of what they train."""

    switch_takes_task: bool
    """Whether a device takes time to get ready for the work of its other role."""

    @property
    def fixed_costs(self) -> Costs | None:
        """What work costs, if that need not be measured nor learnt."""
        ...

    @property
    def workload(self) -> Workload:
        """The shape of an iteration."""
        ...

    def group_costs(self, iteration: int, prompts: Sequence[Prompt]) -> tuple[float, ...]:
        """Return what a sample of each group costs, in those of the mean size; none: the same.

        Args:
            iteration: whose groups.
            prompts: of the groups, and of those that may replace them.
        """
        ...

    def group_steps(self, iteration: int, prompts: Sequence[Prompt]) -> tuple[int, ...]:
        """Return how many steps the trajectories of each group have; none: as the config says.

        Args:
            iteration: whose groups.
            prompts: of the groups, and of those that may replace them.
        """
        ...

    def body(self, real: Body[..., object, FactsT]) -> Body[..., object, FactsT]:
        """Return the body to submit for one."""
        ...

    def place(self, kind: str, device: str) -> tuple[str, dict[str, int]]:
        """Return the worker, and the Dask resources, for a device's work of some kind."""
        ...

    def probed_rewards(self, pool: str | None) -> Mapping[str, RewardConfig]:
        """Return the rewards that a worker, of a pool if it is named, has to call once."""
        ...

    def advantages(
        self,
        columns: Columns,
        prompts: Mapping[int, str],
        history: RewardHistory,
        step_values: Mapping[int, np.ndarray] | None = None,
        nonfinite: Collection[int] = (),
    ) -> Advantages:
        """Return advantages; arguments as in digen_core/training/advantages.py."""
        ...

    def candidates(
        self, column: Mapping[str, np.ndarray], nonfinite: Collection[int]
    ) -> tuple[int, ...] | None:
        """Return those that are chosen; arguments as in digen_core/training/screening.py."""
        ...


class RealWorkers:
    """Workers that hold a model."""

    keeps_state = True
    switch_takes_task = False  # a worker keeps what both roles need
    fixed_costs = None

    def __init__(self, config: RunConfig) -> None:
        self._config = config

    @property
    def workload(self) -> Workload:
        """The shape of an iteration."""
        return job.workload_of(self._config)

    def group_costs(self, iteration: int, prompts: Sequence[Prompt]) -> tuple[float, ...]:
        """Return what the sizes of its groups cost, and of those that may replace them."""
        num_images = [len(prompt.images) for prompt in prompts]
        return job.group_costs(self._config, iteration, num_images)

    def group_steps(self, iteration: int, prompts: Sequence[Prompt]) -> tuple[int, ...]:
        """Return what the prompts say, or the algorithm."""
        return job.group_steps(self._config, [iteration] * len(prompts), prompts)

    def body(self, real: Body[..., object, FactsT]) -> Body[..., object, FactsT]:
        """Return the body itself."""
        return real

    def place(self, kind: str, device: str) -> tuple[str, dict[str, int]]:
        """Return the device, which is a worker."""
        return device, {}

    def probed_rewards(self, pool: str | None) -> Mapping[str, RewardConfig]:
        """Return the rewards that could not be called before the workers were there."""
        return probed_by_workers(self._config, pool)

    def advantages(
        self,
        columns: Columns,
        prompts: Mapping[int, str],
        history: RewardHistory,
        step_values: Mapping[int, np.ndarray] | None = None,
        nonfinite: Collection[int] = (),
    ) -> Advantages:
        """Centre and scale rewards as the config's algorithm does."""
        return advantages_of(self._config, columns, prompts, history, step_values, nonfinite)

    def candidates(
        self, column: Mapping[str, np.ndarray], nonfinite: Collection[int]
    ) -> tuple[int, ...] | None:
        """Return the best and the worst of those that lack no number."""
        return chosen_candidates(self._config, column, nonfinite)


class EmulatedWorkers:
    """Workers that wait for as long as a scenario says, see tasks/emulation.py."""

    keeps_state = False
    switch_takes_task = True

    def __init__(self, config: EmulatedConfig) -> None:
        self._config = config

    @property
    def fixed_costs(self) -> Costs:
        """The scenario's."""
        return self._config.costs

    @property
    def workload(self) -> Workload:
        """The scenario's."""
        return self._config.scenario.workload

    def group_costs(self, iteration: int, prompts: Sequence[Prompt]) -> tuple[float, ...]:
        """Return the scenario's, in every iteration."""
        return self.workload.group_costs

    def group_steps(self, iteration: int, prompts: Sequence[Prompt]) -> tuple[int, ...]:
        """Return the scenario's, in every iteration."""
        return self.workload.group_steps

    def body(self, real: Body[..., object, FactsT]) -> Body[..., object, FactsT]:
        """Return the body that waits in a real one's place."""
        return cast("Body[..., object, FactsT]", EMULATED[real.name])

    def place(self, kind: str, device: str) -> tuple[str, dict[str, int]]:
        """Return the worker: one scores for all; and a device does one piece of work at a time."""
        if kind == "score":
            return REWARD_SERVERS, {}
        return device, {DEVICE: 1} if kind in OCCUPYING else {}

    def probed_rewards(self, pool: str | None) -> Mapping[str, RewardConfig]:
        """Return nothing: there are no rewards."""
        return {}

    def advantages(
        self,
        columns: Columns,
        prompts: Mapping[int, str],
        history: RewardHistory,
        step_values: Mapping[int, np.ndarray] | None = None,
        nonfinite: Collection[int] = (),
    ) -> Advantages:
        """Return zeros, but train every group: rewards mean nothing here."""
        return Advantages({g: np.zeros(len(column["reward"])) for g, column in columns.items()})

    def candidates(
        self, column: Mapping[str, np.ndarray], nonfinite: Collection[int]
    ) -> tuple[int, ...] | None:
        """Return the first ones: rewards mean nothing here."""
        return tuple(range(self.workload.group_size))
