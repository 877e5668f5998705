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
from dataclasses import dataclass, field, replace
from statistics import median
from time import perf_counter
from typing import Final, Literal

import numpy as np
from rich.console import Console

from deployments.bench.push.pair import RUN, WARM_UP, Pair, pairs
from deployments.views.terminal import borderless, terminal
from digen_core.training.train_state import PolicyVersion, TrainState
from digen_core.transport.arrays import Weights
from tasks.gang.received import take_received
from tasks.versions import start_state
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


def bench_push(megabytes: int, rounds: int, *, tls: bool = False) -> Measured:
    """Push versions in both ways, in turn.

    Args:
        megabytes: of a version in bfloat16, roughly.
        rounds: in which each way pushes once, after two that warm up.
        tls: whether the workers encrypt what they say.
    """
    with pairs(WAYS, megabytes, _first_state, tls=tls) as found:
        taken = [{way: _push(found[way], way) for way in WAYS} for _ in range(rounds + WARM_UP)]
        measured = Measured(*_sizes(found["pull"]))
    for way, seconds in measured.seconds.items():
        seconds.extend(each[way] for each in taken[WARM_UP:])
    return measured


def _push(pair: Pair, way: Way) -> float:
    """Push a new version, and return the seconds that took."""
    state, started = pair.next_state(_next_state), perf_counter()
    if way == "before":
        before = pair.submit(pair.trainer, _publish_before, state)
        pair.submit(pair.rollout, _load_before, before).result()
        return perf_counter() - started
    made = pair.publish(state)
    pair.pull(made)
    seconds = perf_counter() - started
    pair.hold(made)  # lets go of the version before
    return seconds


def _sizes(pair: Pair) -> tuple[int, int, int]:
    """Pull a new version, and return its bytes, those moved and those needed beside it."""
    made = pair.publish(pair.next_state(_next_state))
    found: tuple[int, int, int] = pair.submit(
        pair.rollout, _pulled_sizes, made, (pair.trainer,)
    ).result()
    return found


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


def _first_state() -> TrainState:
    return start_state(RUN, "start")[0]


def _next_state(state: TrainState) -> TrainState:
    """Return a state of the next version, one of whose parameters is another one."""
    name = next(iter(state.weights))
    weights = {**state.weights, name: state.weights[name] + np.float32(1)}
    return replace(state, version=state.version + 1, weights=weights, ema=weights)


def _pulled_sizes(pushed: PolicyVersion, source: tuple[str, ...]) -> tuple[int, int, int]:
    """Return the bytes of a version, those that pulling it moves, and those needed beside it."""
    take_received()
    tracemalloc.start()
    try:
        rows = pull(RUN, pushed, source, engine_of(RUN).gang).rows
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
    versions = engine_of(RUN).versions
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
