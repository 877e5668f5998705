"""The config tables ``cluster``, ``schedule`` and ``tracking``: devices, layout, and results.

Importing this module must not import torch.
"""

import os
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from digen_core.config.parallel import MEMBERS
from digen_core.config.rewards.base import PoolName
from digen_core.inputs.addresses import public_address
from digen_core.strict import AtMost, Duration, PathText, Strict

_WORKERS: Final = AtMost(16_384, "each is a process, and planned for by itself")
_THREADS: Final = AtMost(1024, "no machine has so many cores")
_VERSIONS: Final = AtMost(100, "so many versions are held in memory")


PlaceName = Literal["wandb", "tensorboard"]
"""A place that metrics go to beside MLflow; also what its package, and digen's extra, is called."""


def _each_once(names: tuple[PlaceName, ...]) -> tuple[PlaceName, ...]:
    if len(set(names)) < len(names):
        raise PydanticCustomError("twice", "must name each place once")
    return names


def _must_be_a_folder(path: str) -> str:
    if not path.strip():
        raise PydanticCustomError("no_folder", "must name a folder, such as runs")
    if "://" in path:
        raise PydanticCustomError("no_folder", "must be a folder of this machine, not an address")
    if path.startswith("~"):
        raise PydanticCustomError("no_folder", "must be written out, as no shell reads its ~")
    return path


_INSTEAD_OF_PASSWORD: Final = (
    "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN (a "
    "database reads the password file of its own client)"
)


SQLITE: Final = "sqlite:///"
"""How an address of MLflow begins that is a file."""


def database_in(uri: str) -> Path | None:
    """Return the file that an address of MLflow is; None: it is another one."""
    if not uri.startswith(SQLITE):
        return None
    return Path(uri.removeprefix(SQLITE).partition("?")[0])


def mlflow_of_environment() -> str | None:
    """Return the address of MLflow that the environment names.

    Raises:
        ConfigError: a password is in it.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    return public_address("MLFLOW_TRACKING_URI", uri, _INSTEAD_OF_PASSWORD) if uri else None


def _public(uri: str) -> str:
    return public_address("tracking.mlflow_uri", uri, _INSTEAD_OF_PASSWORD)


class ClusterConfig(Strict):
    """Which devices a run uses."""

    rollout_workers: Annotated[int, _WORKERS] = Field(1, ge=1)
    """Worker processes that generate and score."""

    trainer_workers: Annotated[int, _WORKERS] = Field(1, ge=0)
    """Worker processes that train. 0: those that generate train, too, as one does that has the only
    GPU of a machine to itself."""

    rollout_gang: Annotated[int, MEMBERS] = Field(1, ge=1)
    """Workers (GPUs) of each device that generates: more than one are a gang, which holds one model
    together; see [parallel]. `rollout_workers` counts gangs."""

    trainer_gang: Annotated[int, MEMBERS] = Field(1, ge=1)
    """Workers (GPUs) of each device that trains. A device of both roles has the larger of both."""

    reward_workers: dict[PoolName, Annotated[int, Field(ge=1), _WORKERS]] = Field(
        default_factory=dict
    )
    """Worker processes that only score, by the name of their pool. On a machine with several GPUs
    they get, in turns, first those that devices leave over, then the devices'."""

    threads_per_worker: Annotated[int, _THREADS] = Field(1, ge=1)
    """CPU threads of each worker's engine."""

    tls: bool = True
    """Whether the workers that a run starts encrypt what they say and take in nobody else. Without
    it every user of this machine can run code as you; with it a task costs up to 1 ms more, and
    100 MB from worker to worker 0.1 s more."""

    heartbeat_timeout: Duration = Field(20.0, ge=5)
    """Seconds without a heartbeat after which a worker counts as lost: its process is frozen, or
    its machine out of reach. Workers send one every 0.5 to 2 s, whatever they compute."""

    task_timeout: Annotated[Duration, Field(gt=0)] | Literal["auto"] = "auto"
    """Seconds after which a task that does not end counts as hung, and its worker as lost; auto:
    20 times what such a task is expected to take, but at least 10 minutes, and 2 hours to load, to
    push the first version, or to have a server asked for scores."""

    price_per_hour: dict[str, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    """Price of an hour of a GPU, or of a worker without one, in any currency, by what it is: "cpu",
    or the name that its driver gives it, such as "NVIDIA H100 80GB HBM3", not the kind of a cluster
    file. Each member of a gang counts, and each worker where several share a card. One that is not
    named costs as much as the most expensive that is. A run then tells its costs (`cost/...`)."""

    rejoin_timeout: Duration = Field(3600.0, ge=0)
    """Seconds that a run waits for a worker when the last one of a role, or of a pool, is lost;
    then it ends, and can be resumed."""

    scheduler_address: str | None = None
    """A running Dask cluster whose workers declare the resources `rollout` and `trainer`, or the
    name of a pool; null is that of the environment variable DASK_SCHEDULER_ADDRESS, or starts one
    on this machine. On a running cluster the counts of rollout and trainer workers are the
    proportion in which workers of both roles are dealt."""

    @property
    def address(self) -> str | None:
        """Address of the running Dask cluster; None: the run starts its own workers."""
        return self.scheduler_address or os.environ.get("DASK_SCHEDULER_ADDRESS")


Asker = Literal["training", "generation"]
"""Who asks the reference policy."""


class ScheduleConfig(Strict):
    """How an iteration's work is laid out over the devices."""

    layout: Literal[
        "colocated",
        "colocated-strong",
        "disaggregated",
        "gap",
        "tsp",
        "tag",
        "tcss",
        "elastic",
        "auto",
    ] = "disaggregated"
    """colocated: all devices generate, then train; disaggregated: devices for each, a barrier
    between; gap: train groups as they complete; tsp: and pack pairs of any steps; tag: and idle
    trainers generate; tcss: and the next iteration begins on the version before; elastic: as tag,
    and idle rollout devices train; auto: what is predicted to be the fastest."""

    max_stale_share: float | None = Field(None, ge=0, le=1)
    """Largest share of an iteration's groups that may begin on an older version. Null: 0.5 for
    tcss, 0 for the others. Above 0 in tcss and elastic only."""

    max_stale_clipped: float | None = Field(None, ge=0, lt=1)
    """Adaptive staleness: the largest share of stale pairs (trained ones that an older version
    generated) that may be clipped. While it is larger, versions may be one iteration less behind,
    down to one, then each iteration may begin half of its stale groups; else, whenever devices had
    time for all that they may, one more group, up to max_stale_share, then one more iteration, up
    to max_staleness. Null: these two all the time."""

    max_staleness: Annotated[int, _VERSIONS] = Field(1, ge=1)
    """Largest number of iterations, of those that make a version, between the version that
    generates a group and the one that its own iteration begins to train. Layout auto and ``digen
    plan`` take the least up to this that pays: a push that takes long asks for more than one."""

    push: Literal["auto", "dense", "delta"] = "auto"
    """How a new version comes to a device. dense: all of it. delta: where that is fewer bytes, what
    differs from a version that it holds, for which each device keeps what the iteration before
    ended with on its host. auto: delta from one site to another, dense within one."""

    reference: Asker | Literal["auto"] = "auto"
    """Who asks the reference policy what the divergence of trained steps is taken from, with
    algorithm.kl_coefficient above 0. training: who trains a pair, each time. generation: who
    generated the sample, once; the answer goes with its trajectory, also to later epochs. auto:
    training, and generation where layout auto or ``digen plan`` predict that it is faster."""

    helpers: Annotated[int, Field(ge=0), _WORKERS] | Literal["auto"] = "auto"
    """Trainers that may generate while they have no pairs; auto: as many as is predicted to pay."""

    assistants: Annotated[int, Field(ge=0), _WORKERS] | Literal["auto"] = "auto"
    """Rollout devices that may train while they have no fragments; auto: those that pay."""

    profile: PathText | None = None
    """What this recipe costs: the profile.json of an earlier run, to predict and plan with from the
    start; null measures it when the workers are ready, and every run goes on learning it."""

    @property
    def num_helpers(self) -> int | None:
        """The trainers that may generate; None: not fixed."""
        return None if self.helpers == "auto" else self.helpers

    @property
    def num_assistants(self) -> int | None:
        """The rollout devices that may train; None: not fixed."""
        return None if self.assistants == "auto" else self.assistants

    @property
    def stale_share(self) -> float:
        """The effective largest share of stale groups."""
        if self.max_stale_share is None:
            return 0.5 if self.layout == "tcss" else 0.0
        return self.max_stale_share

    @property
    def num_older(self) -> int:
        """The versions that devices hold beside the newest, as older groups may need them."""
        return self.max_staleness if self.stale_share else 0

    @model_validator(mode="before")
    @classmethod
    def _without_plus(cls, values: object) -> object:
        """Take "+tsp" for "tsp": the layouts are often written with a plus."""
        if isinstance(values, dict) and isinstance(values.get("layout"), str):
            return {**values, "layout": values["layout"].removeprefix("+")}
        return values

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.stale_share and self.layout not in ("tcss", "elastic", "auto"):
            raise ValueError(
                f"schedule.max_stale_share is {self.max_stale_share}, but layout {self.layout} is "
                "on-policy; use tcss or elastic, or leave it out."
            )
        if self.max_stale_clipped is not None and not self.stale_share:
            raise ValueError(
                f"schedule.max_stale_clipped is {self.max_stale_clipped}, but no group may be "
                f"stale; set schedule.max_stale_share with layout tcss or elastic (it is "
                f"{self.stale_share:g} in layout {self.layout}), or leave it out."
            )
        return self


IterationNumber = Annotated[int, Field(ge=1)]
"""Of an iteration, counted from 1."""


class TrackingConfig(Strict):
    """Where results go, and what is kept beside the rows of the samples."""

    runs_dir: Annotated[PathText, AfterValidator(_must_be_a_folder)] = "runs"
    """Folder of all runs: one folder per run, and MLflow's database."""

    mlflow_uri: Annotated[str, AfterValidator(_public)] | None = None
    """MLflow tracking server; null is that of the environment variable MLFLOW_TRACKING_URI, or the
    SQLite file mlflow.db in runs_dir. A password goes into MLFLOW_TRACKING_USERNAME and
    MLFLOW_TRACKING_PASSWORD, not in here."""

    @property
    def uri(self) -> str | None:
        """Address of MLflow; None: the SQLite file in ``runs_dir``.

        Raises:
            ConfigError: a password is in that of the environment.
        """
        return self.mlflow_uri or mlflow_of_environment()

    experiment: str = Field("digen", pattern=r"\S")
    """MLflow experiment."""

    registered_model: str | None = Field(None, pattern=r"^[^/:]*[^/:\s.][^/:]*$")
    """Name in MLflow's model registry that each run adds a version to; null is the run's `name`."""

    also: Annotated[tuple[PlaceName, ...], AfterValidator(_each_once)] = ()
    """Places that metrics, image grids and config go to beside MLflow: wandb, tensorboard. Each
    takes its library: pip install 'digen[wandb]'."""

    keep_images: Literal["none", "extremes", "all"] = "none"
    """Decoded samples kept in RUN/images; extremes: the best and the worst of each group. With them
    the source images of edits, in RUN/sources."""

    image_format: Literal["png", "webp"] = "png"
    """Both are lossless; webp is smaller and takes longer. Videos are animations."""

    keep_trajectories: Annotated[int, Field(ge=0)] | Literal["all"] = 0
    """Newest iterations whose latents at trained steps are kept in RUN/trajectories, for
    'digen replay'."""

    profile_iterations: Annotated[tuple[IterationNumber, ...], Field(max_length=100)] = ()
    """Iterations, counted from 1, in which each device keeps a profile of its first task of each
    kind (denoise, decode, train), by torch's profiler, in RUN/profiles and MLflow."""

    keep_in_prefect: Annotated[int, Field(ge=1)] | Literal["all"] = 500
    """Newest iterations whose pages, with those of their tasks, Prefect keeps; older ones go ten
    minutes after they ended. RUN and MLflow keep what they did."""
