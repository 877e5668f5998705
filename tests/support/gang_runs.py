"""A layout's case on gangs: which devices of a test's cluster take part, and what members share."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from digen_core.control.layout import LAYOUTS
from digen_core.control.protocol import Device, Role
from support.layout_runs import BOTH, Case

TOKENS = {"parallel.context_parallel": 2}
SHARDS = {"parallel.shard_weights": True}
SHARED: tuple[dict[str, Any], ...] = ({}, TOKENS, SHARDS, TOKENS | SHARDS)
"""What members of a gang share, beside stages: with nothing set, rows."""

SIZES = {"gang-0": 2, "gang-1": 2, "two": 2, "three": 3, "room": 2, "single": 1}
"""Members of the devices that cases name."""


def device_of(name: str, roles: frozenset[Role] = BOTH) -> Device:
    """Return a device of the cluster."""
    return Device(name, roles, f"cpu x{SIZES[name]}", SIZES[name])


@contextmanager
def cluster_of(*names: str) -> Iterator[str]:
    """Yield the address of a cluster of devices, while the body runs."""
    from digen_core.config.schedule import ClusterConfig
    from tasks.cluster.cluster import run_cluster

    with run_cluster(ClusterConfig(), [device_of(name) for name in names]) as address:
        yield address


@dataclass(frozen=True)
class GangCase(Case):
    """A layout on gangs and single workers of the test's cluster."""

    workers: tuple[int, ...] = ()
    rollout: str = "gang-0"
    trainers: tuple[str, ...] = ("gang-1",)
    settings: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        what = "+".join(key.split(".")[1] for key in self.settings) or "rows"
        return f"{self.layout}-{self.rollout}-{'+'.join(self.trainers)}-{what}"

    @property
    def changes(self) -> dict[str, Any]:
        """What it changes in the config."""
        return super().changes | self.settings

    @property
    def devices(self) -> list[Device]:
        """One that generates and some that train; colocated, all do both."""
        if LAYOUTS[self.layout].colocated:
            return [device_of(name) for name in (self.rollout, *self.trainers)]
        made = [device_of(name, frozenset({"trainer"})) for name in self.trainers]
        return [device_of(self.rollout, frozenset({"rollout"})), *made]


@dataclass(frozen=True)
class GangsOfTwo(Case):
    """A layout on gangs of two, which the run starts."""

    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def changes(self) -> dict[str, Any]:
        """What it changes in the config."""
        gangs = {"cluster.rollout_gang": 2, "cluster.trainer_gang": 2}
        return super().changes | gangs | self.settings

    @property
    def devices(self) -> list[Device]:
        """Those of single workers, of two members each."""
        return [replace(device, size=2) for device in super().devices]
