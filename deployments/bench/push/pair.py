"""Pairs of workers of this machine: a trainer, and a device that generates, with the same model."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import sqrt
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeVar

import dask
from distributed import Client, Future, wait
from transformers.utils.logging import disable_progress_bar

from digen_core.config.run import RunConfig
from digen_core.config.schedule import ClusterConfig
from digen_core.control.protocol import Device, Role
from digen_core.models.tiny.flux import PROMPT_TOKENS, build_tiny_flux
from digen_core.training.train_state import PolicyVersion, TrainState
from tasks.cluster.cluster import run_cluster
from tasks.cluster.listening import own_tls_settings
from tasks.cluster.presence import present_workers
from tasks.setup import load_engine
from tasks.versions import publish, push_weights

Name = TypeVar("Name", bound=str)

RUN: Final = "bench-push"
WARM_UP: Final = 2  # rounds, in which memory is touched for the first time

_ROLES: Final[tuple[Role, ...]] = ("trainer", "rollout")
_WIDTH: Final = 32  # of which the model's is a multiple
_PER_SQUARE: Final = 55  # parameters of two blocks over the square of the width


class Pair:
    """A trainer that holds a state, and a device that generates."""

    def __init__(
        self, client: Client, config: RunConfig, name: str, first: Callable[[], TrainState]
    ) -> None:
        """Load the model on both.

        Args:
            client: of their cluster.
            config: of the model.
            name: with which theirs begin.
            first: makes the state, on the trainer.
        """
        self._client = client
        names = {worker.name: worker.address for worker in present_workers(client).values()}
        self.trainer, self.rollout = (names[f"{name}-{role}"] for role in _ROLES)
        roles: dict[str, Role] = {self.trainer: "trainer", self.rollout: "rollout"}
        wait([self.submit(address, _load, config, role) for address, role in roles.items()])
        self.state = self.submit(self.trainer, first)

    def submit(self, address: str, function: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        """Have a worker call a function."""
        return self._client.submit(function, *arguments, workers=[address], pure=False)

    def next_state(
        self, function: Callable[..., TrainState], *arguments: Any
    ) -> "Future[TrainState]":
        """Make the state of a new version of the one before, and wait until it is there."""
        self.state = self.submit(self.trainer, function, self.state, *arguments)
        wait(self.state)
        return self.state

    def publish(self, state: "Future[TrainState]") -> "Future[PolicyVersion]":
        """Have the trainer publish a state's version."""
        return self.submit(self.trainer, _publish, state)

    def pull(self, made: "Future[PolicyVersion]") -> None:
        """Have the device that generates hold a version that the trainer has published."""
        self.submit(self.rollout, _hold, made, (self.trainer,)).result()

    def hold(self, made: "Future[PolicyVersion]") -> None:
        """Have the trainer hold a version that it has published, in place of the one before."""
        self.submit(self.trainer, _hold, made, ()).result()


@contextmanager
def pairs(
    names: Sequence[Name], megabytes: int, first: Callable[[], TrainState], *, tls: bool
) -> Iterator[dict[Name, Pair]]:
    """Yield pairs by name.

    Args:
        names: of the pairs.
        megabytes: of a version in bfloat16, roughly.
        first: makes the state of each, on its trainer.
        tls: whether the workers encrypt what they say.
    """
    devices = [Device(f"{name}-{role}", frozenset({role})) for name in names for role in _ROLES]
    with (
        TemporaryDirectory() as folder,
        dask.config.set(own_tls_settings(tls)),
        run_cluster(ClusterConfig(tls=tls), devices) as address,
        Client(address) as client,
    ):
        config = _model_in(Path(folder), megabytes)
        yield {name: Pair(client, config, name, first) for name in names}


def _model_in(folder: Path, megabytes: int) -> RunConfig:
    """Write a FLUX of two blocks and random weights; return the config that trains all of it."""
    width = _WIDTH * max(1, round(sqrt(megabytes * 1e6 / 2 / _PER_SQUARE) / _WIDTH))
    disable_progress_bar()
    build_tiny_flux(width=width, num_layers=1, num_single_layers=1).save_pretrained(folder)
    sizes = {"height": 32, "width": 32, "max_sequence_length": PROMPT_TOKENS}
    model = {"path": str(folder), "device": "cpu", "dtype": "bfloat16", **sizes}
    return RunConfig.model_validate({"model": model, "train": {"lora": None}})


# --- what workers do --------------------------------------------------------------------------


def _load(config: RunConfig, role: Role) -> None:
    load_engine(RUN, config, role, [role])


def _publish(state: TrainState) -> PolicyVersion:
    """Publish a state's version from this worker."""
    return publish(RUN, "publish", state)[0]


def _hold(made: PolicyVersion, source: tuple[str, ...]) -> None:
    """Hold a version on this worker, of another one or of its own."""
    _, loaded = push_weights(RUN, "push", made, source)
    if loaded.failure:
        raise RuntimeError(loaded.failure)
