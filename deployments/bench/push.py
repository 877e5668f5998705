"""A push of all weights from worker to worker: pulled, and beside it as it was before pulls.

Both move a new version between processes on this machine, from the moment that a trainer is asked
to publish it to that at which another device holds it, checked:

- before: masters of float32 as a value of Dask, and BLAKE2b over a copy of them on both sides;
- pull: as runs do it, with the bodies of their tasks: rounded to the dtype of the model and
  fingerprinted, pulled in buckets, and fingerprinted again as they arrive.

Each way has two workers of its own, so that none works in memory that the other one has used.
"""

import hashlib
import pickle
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import sqrt
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, Final, Literal

import dask
import numpy as np
from distributed import Client, Future, wait
from rich.console import Console
from transformers.utils.logging import disable_progress_bar

from deployments.views.terminal import borderless, terminal
from digen_core.config.run import RunConfig
from digen_core.config.schedule import ClusterConfig
from digen_core.control.protocol import Device, Role
from digen_core.models.tiny.flux import PROMPT_TOKENS, build_tiny_flux
from digen_core.training.optimizer import PolicyVersion, TrainState
from digen_core.transport.arrays import Weights
from tasks.cluster.cluster import run_cluster
from tasks.cluster.listening import own_tls_settings
from tasks.cluster.presence import present_workers
from tasks.gang.received import take_received
from tasks.setup import load_engine
from tasks.versions import publish, push_weights, start_state
from tasks.worker.engine import engine_of
from tasks.worker.pulling import BUCKET_BYTES, pull

Way = Literal["before", "pull"]
WAYS: Final[tuple[Way, ...]] = ("before", "pull")
LEAST_RATIO: Final = 5.0
"""How many times as long as a pull a push took before."""
MOST_BYTES: Final = 1.05
"""What may be moved over what the version has in the dtype of the model."""
MOST_BUCKETS: Final = 3.0
"""What a receiver may need beside the version, in buckets."""

_RUN: Final = "bench-push"
_WARM_UP: Final = 2  # rounds, in which memory is touched for the first time
_WIDTH: Final = 32  # of which the model's is a multiple
_PER_SQUARE: Final = 55  # parameters of two blocks over the square of the width


@dataclass(frozen=True, slots=True)
class Measured:
    """What pushes of a version took."""

    version_bytes: int  # in the dtype of the model
    moved_bytes: int  # by a pull
    extra_bytes: int  # that the receiver of a pull needs beside the version, at most
    seconds: dict[Way, list[float]] = field(default_factory=lambda: {way: [] for way in WAYS})

    @property
    def ratios(self) -> list[float]:
        """How many times as long as a pull it took before, in each round; the smallest first."""
        return sorted(b / p for b, p in zip(*self.seconds.values(), strict=True))

    @property
    def moved(self) -> float:
        """What a pull moves over what the version has."""
        return self.moved_bytes / self.version_bytes

    @property
    def buckets(self) -> float:
        """What the receiver needs beside the version, in buckets."""
        return self.extra_bytes / BUCKET_BYTES

    @property
    def holds(self) -> bool:
        """Whether a pull is as fast and as small as it has to be."""
        is_small = self.moved <= MOST_BYTES and self.buckets <= MOST_BUCKETS
        return is_small and median(self.ratios) >= LEAST_RATIO


@dataclass(eq=False)
class Before:
    """A version as it was pushed before pulls."""

    version: int
    weights: Weights
    hash: str


class Pair:
    """A trainer that holds a state, and a device that generates."""

    def __init__(self, client: Client, config: RunConfig, way: Way) -> None:
        self._client = client
        names = {worker.name: worker.address for worker in present_workers(client).values()}
        self.trainer, self.rollout = (names[f"{way}-{role}"] for role in ("trainer", "rollout"))
        roles: dict[str, Role] = {self.trainer: "trainer", self.rollout: "rollout"}
        wait([self.submit(address, _load, config, role) for address, role in roles.items()])
        self._state = self.submit(self.trainer, _first_state)

    def submit(self, address: str, function: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        """Have a worker call a function."""
        return self._client.submit(function, *arguments, workers=[address], pure=False)

    def next_state(self) -> "Future[Any]":
        """Make the state of a new version, before anything is timed."""
        self._state = self.submit(self.trainer, _next_state, self._state)
        wait(self._state)
        return self._state

    def push(self, way: Way) -> float:
        """Push a new version, and return the seconds that took."""
        state, started = self.next_state(), perf_counter()
        if way == "before":
            made = self.submit(self.trainer, _publish_before, state)
            self.submit(self.rollout, _load_before, made).result()
            return perf_counter() - started
        made = self.submit(self.trainer, _publish, state)
        self.submit(self.rollout, _push, made, (self.trainer,)).result()
        seconds = perf_counter() - started
        self.submit(self.trainer, _push, made, ()).result()  # lets go of the version before
        return seconds

    def sizes(self) -> tuple[int, int, int]:
        """Pull a new version, and return its bytes, those moved and those needed beside it."""
        made = self.submit(self.trainer, _publish, self.next_state())
        found: tuple[int, int, int] = self.submit(
            self.rollout, _pulled_sizes, made, (self.trainer,)
        ).result()
        return found


def bench_push(megabytes: int, rounds: int, *, tls: bool = False) -> Measured:
    """Push versions in both ways, in turn.

    Args:
        megabytes: of a version in bfloat16, roughly.
        rounds: in which each way pushes once, after two that warm up.
        tls: whether the workers encrypt what they say.
    """
    with _pairs(megabytes, tls) as pairs:
        taken = [{way: pairs[way].push(way) for way in WAYS} for _ in range(rounds + _WARM_UP)]
        measured = Measured(*pairs["pull"].sizes())
    for way, seconds in measured.seconds.items():
        seconds.extend(each[way] for each in taken[_WARM_UP:])
    return measured


@contextmanager
def _pairs(megabytes: int, tls: bool) -> Iterator[dict[Way, Pair]]:
    roles: tuple[Role, ...] = ("trainer", "rollout")
    devices = [Device(f"{way}-{role}", frozenset({role})) for way in WAYS for role in roles]
    with (
        TemporaryDirectory() as folder,
        dask.config.set(own_tls_settings(tls)),
        run_cluster(ClusterConfig(tls=tls), devices) as address,
        Client(address) as client,
    ):
        config = _model_in(Path(folder), megabytes)
        yield {way: Pair(client, config, way) for way in WAYS}


def _model_in(folder: Path, megabytes: int) -> RunConfig:
    """Write a FLUX of two blocks and random weights; return the config that trains all of it."""
    width = _WIDTH * max(1, round(sqrt(megabytes * 1e6 / 2 / _PER_SQUARE) / _WIDTH))
    disable_progress_bar()
    build_tiny_flux(width=width, num_layers=1, num_single_layers=1).save_pretrained(folder)
    sizes = {"height": 32, "width": 32, "max_sequence_length": PROMPT_TOKENS}
    model = {"path": str(folder), "device": "cpu", "dtype": "bfloat16", **sizes}
    return RunConfig.model_validate({"model": model, "train": {"lora": None}})


def print_bench(measured: Measured, console: Console | None = None) -> None:
    """Print the medians of both ways, and whether a pull is as it has to be."""
    rounds = len(measured.ratios)
    megabytes = f"{measured.version_bytes / 1e6:.0f} MB in the model's dtype"
    table = borderless(f"push of {megabytes}, medians of {rounds} interleaved rounds")
    table.add_column("way")
    for heading in ("seconds", "x pull"):
        table.add_column(heading, justify="right")
    ratios = {"before": median(measured.ratios), "pull": 1.0}
    for way, seconds in measured.seconds.items():
        table.add_row(way, f"{median(seconds):.3f}", f"{ratios[way]:.1f}")
    console = console or terminal()
    console.print(table)
    console.print(
        f"a pull moves {measured.moved:.4f} x the bytes (limit {MOST_BYTES}), needs "
        f"{measured.buckets:.2f} buckets of memory beside them (limit {MOST_BUCKETS:.0f}) and is "
        f"{ratios['before']:.1f} times as fast ({measured.ratios[0]:.1f} to "
        f"{measured.ratios[-1]:.1f} in the rounds, limit {LEAST_RATIO:.0f}): "
        + ("all hold" if measured.holds else "NOT met")
    )


# --- what workers do --------------------------------------------------------------------------


def _load(config: RunConfig, role: Role) -> None:
    load_engine(_RUN, config, role, [role])


def _first_state() -> TrainState:
    return start_state(_RUN, "start")[0]


def _next_state(state: TrainState) -> TrainState:
    """Return a state of the next version, one of whose parameters is another one."""
    name = next(iter(state.weights))
    weights = {**state.weights, name: state.weights[name] + np.float32(1)}
    return replace(state, version=state.version + 1, weights=weights, ema=weights)


def _publish(state: TrainState) -> PolicyVersion:
    return publish(_RUN, "publish", state)[0]


def _push(pushed: PolicyVersion, source: tuple[str, ...]) -> None:
    _, loaded = push_weights(_RUN, "push", pushed, source)
    if loaded.failure:
        raise RuntimeError(loaded.failure)


def _pulled_sizes(pushed: PolicyVersion, source: tuple[str, ...]) -> tuple[int, int, int]:
    """Return the bytes of a version, those that pulling it moves, and those needed beside it."""
    take_received()
    tracemalloc.start()
    try:
        rows = pull(_RUN, pushed, source, engine_of(_RUN).gang).rows
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    version_bytes = sum(value.nbytes for value in rows.values())
    moved = sum(own.num_bytes for own in take_received()) + len(pickle.dumps(pushed))
    return version_bytes, moved, most - version_bytes


def _publish_before(state: TrainState) -> Before:
    return Before(state.version, state.weights, _hash_before(state.weights))


def _load_before(pushed: Before) -> None:
    if _hash_before(pushed.weights) != pushed.hash:
        raise RuntimeError("it arrived damaged")
    versions = engine_of(_RUN).versions
    for version in versions.held:
        versions.drop(version)
    versions.hold(pushed.version, pushed.weights)


def _hash_before(weights: Weights) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for name in sorted(weights):
        array = weights[name]
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
