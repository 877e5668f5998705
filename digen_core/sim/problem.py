"""The problem of a simulation or a search: an iteration's work, and devices to split."""

from collections.abc import Mapping
from typing import Protocol

from digen_core.control.costs import Costs
from digen_core.control.protocol import Device
from digen_core.control.schedule import Workload

# Of the devices. With fewer, nearly all would be devices that train at first: they are modelled to
# have a new version at once, so such a split looks better than it is.
MIN_ROLLOUT_SHARE = 0.25


class Problem(Protocol):
    """A recipe on a cluster. A scenario is one, and so is a config on the devices of a cluster."""

    @property
    def workload(self) -> Workload:
        """The shape of its iterations."""
        ...

    @property
    def trained_steps(self) -> int:
        """Trained steps of a trajectory (K)."""
        ...

    @property
    def devices(self) -> int:
        """Devices in all (P)."""
        ...

    @property
    def jitter(self) -> float:
        """Sigma of the lognormal factor, of mean 1, on the time of everything."""
        ...

    @property
    def pulls_at_once(self) -> int | None:
        """Devices that pull a version from one other at the same time; None: any number."""
        ...

    @property
    def unforeseen(self) -> Mapping[str, float]:
        """By kind, times that a denoising step really takes of what is predicted; others 1."""
        ...

    @property
    def splits(self) -> range:
        """How many devices may generate, the others train."""
        ...

    @property
    def can_colocate(self) -> bool:
        """Whether every device may do both."""
        ...

    def cluster(self, num_rollout: int | None) -> tuple[Device, ...]:
        """Return the devices of a split; None: every device does both."""
        ...

    def costs(self, num_rollout: int | None) -> Costs:
        """Return what everything costs on the devices of that split, in seconds."""
        ...
