"""The config of a run on emulated devices: what their work costs, a scenario says."""

from functools import cached_property
from zlib import crc32

import numpy as np

from digen_core.config.run import RunConfig
from digen_core.control.costs import Costs, DeviceCosts
from digen_core.control.protocol import Device
from digen_core.sim.scenario import Scenario


class EmulatedConfig(RunConfig):
    """A run on emulated devices."""

    scenario: Scenario
    """What work costs, in seconds of wall clock."""

    num_rollout: int | None = None
    """Devices that generate, the others train; null: every device does both."""

    @cached_property
    def devices(self) -> dict[str, Device]:
        """Those of the run, by name."""
        return {device.name: device for device in self.scenario.cluster(self.num_rollout)}

    @cached_property
    def costs(self) -> Costs:
        """What work costs."""
        return self.scenario.costs(self.num_rollout)

    @property
    def pulls_at_once(self) -> int | None:
        """As the scenario says."""
        return self.scenario.pulls_at_once

    def costs_of(self, device: str) -> DeviceCosts:
        """Return what work costs on a device."""
        return self.costs.kinds[self.devices[device].kind]

    def pace_of(self, device: str) -> float:
        """Return how many times as long as those say a denoising step really takes there."""
        return self.scenario.unforeseen.get(self.devices[device].kind, 1.0)

    @property
    def copies_state(self) -> bool:
        """No: there is no state."""
        return False

    def factor(self, kind: str, *place: int) -> float:
        """Return the jitter of a piece of work, which does not depend on who does it when."""
        random = np.random.default_rng([self.seed, crc32(kind.encode()), *place])
        sigma = self.scenario.jitter
        return float(random.lognormal(-0.5 * sigma**2, sigma))
