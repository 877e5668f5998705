"""Means of a cluster beside its devices: SLURM, Kubernetes, and the links between sites."""

from typing import Annotated, Final

from pydantic import Field, field_validator

from digen_core.control.costs import Link
from digen_core.planning.clusters.groups import Name, Positive, Spent
from digen_core.strict import Strict

LEAST_MEMORY: Final = 10**6
"""Bytes of a job: SLURM knows none that are smaller than 1 KiB."""

SlurmName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.,@/-]*$", max_length=255)]
"""Stands in a line of a job script."""

SlurmFeature = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:-]*$", max_length=255)]
Label = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9_./-]*[A-Za-z0-9])?$", max_length=317)
]
"""Of nodes of Kubernetes: its name or its value."""


class SlurmConfig(Strict):
    """How SLURM is asked for devices."""

    partition: SlurmName | None = None
    """Partition; null is SLURM's default."""

    account: SlurmName | None = None
    """Account that pays."""

    walltime: str = Field("12:00:00", pattern=r"^(\d+-)?\d{1,3}:\d\d:\d\d$")
    """Time after which SLURM ends a worker."""

    memory: str = Field("64GB", pattern=r"^\d+(\.\d+)?[KMGT]i?B$")
    """Memory of the job of a worker; of a gang on several hosts, on each of them."""

    constraints: dict[Name, SlurmFeature] = Field(default={})
    """Features of the nodes that have devices of a kind, by kind: ``sbatch --constraint``."""

    @field_validator("memory")
    @classmethod
    def _check_memory(cls, memory: str) -> str:
        number, unit = memory.rstrip("KMGTiB"), memory.lstrip("0123456789.")
        if float(number) * 1000 ** (1 + "KMGT".index(unit[0])) < LEAST_MEMORY:
            raise ValueError("a worker takes 1MB and more")
        return memory


class KubernetesConfig(Strict):
    """Where the pods of a cluster run."""

    image: str = Field("digen:latest", pattern=r"^[A-Za-z0-9][A-Za-z0-9_./:@-]*$")
    """Container image in which digen is installed."""

    name: str = Field("digen", pattern=r"^[a-z]([a-z0-9-]*[a-z0-9])?$", max_length=40)
    """Of the DaskCluster."""

    namespace: str = Field("default", pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", max_length=63)
    """Of all that is made."""

    memory: str = Field("64Gi", pattern=r"^\d+(\.\d+)?([MGT]|[KMGT]i)?$")
    """Memory of a worker's pod; of a gang on several hosts, of each of its pods."""

    claim: str | None = Field(None, pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", max_length=253)
    """PersistentVolumeClaim with the folder that digen is called in: the workers' pods have that
    under the same path, and begin there. Null: they have none, and trainers need one."""

    node_labels: dict[Name, dict[Label, Label]] = Field(default={})
    """Labels of the nodes that have devices of a kind, by kind: the ``nodeSelector`` of pods."""


class SiteLink(Strict):
    """What two sites have between them, each way."""

    between: tuple[str, str]
    """The sites, as groups of devices name them."""

    gbit_per_second: Positive
    """Gb/s each way, of all devices together."""

    latency: float = Field(0.0, ge=0, le=60)
    """Seconds that a byte is under way: half of what ping says."""

    price_per_gb: Spent = 0.0
    """Of 10^9 bytes that cross it, either way, in your currency."""

    @property
    def link(self) -> Link:
        """As costs have it."""
        return Link(
            between=self.between,
            bytes_per_second=self.gbit_per_second * 1e9 / 8,
            latency=self.latency,
        )
