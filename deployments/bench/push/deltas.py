"""Deltas of versions: what a step of AdamW changes, pulled dense and as a delta, in turn.

The weights are random, normal of 0.02 as those of large models, and so are the gradients of each
step. A trainer publishes each version in bfloat16, as in a run; the receiver, which holds the one
before, pulls it in both ways, and finds the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter, process_time
from typing import Final

import numpy as np
import torch
from distributed import Future
from rich.console import Console

from deployments.bench.push.pair import RUN, WARM_UP, Pair, pairs
from deployments.views.terminal import borderless, terminal
from digen_core.training.contents import differing
from digen_core.training.optimizer import optimizer_step
from digen_core.training.train_state import PolicyVersion, TrainState, initial_state
from tasks.gang.received import take_received
from tasks.versions import start_state
from tasks.worker.engine import engine_of
from tasks.worker.pulling import pull

_DEVIATION: Final = 0.02  # of the weights


@dataclass(frozen=True, slots=True)
class Crossed:
    """What it took to pull a version."""

    num_bytes: int
    seconds: float
    source_cpu: float  # seconds, of all threads
    receiver_cpu: float


@dataclass(frozen=True, slots=True)
class Both:
    """A version, pulled in both ways."""

    dense: Crossed
    delta: Crossed

    @property
    def share(self) -> float:
        """The bytes of the delta over those of the version."""
        return self.delta.num_bytes / self.dense.num_bytes

    @property
    def packing(self) -> float:
        """CPU seconds of the source for each GB of the version, over those of sending it dense."""
        return 1e9 * (self.delta.source_cpu - self.dense.source_cpu) / self.dense.num_bytes

    @property
    def unpacking(self) -> float:
        """CPU seconds of the receiver likewise."""
        return 1e9 * (self.delta.receiver_cpu - self.dense.receiver_cpu) / self.dense.num_bytes


@dataclass(frozen=True, slots=True)
class Deltas:
    """What versions took that are a step of a learning rate apart."""

    learning_rate: float
    first_share: float  # of the first step, which moves each weight by the learning rate
    rounds: Sequence[Both]  # of later ones


def bench_deltas(
    megabytes: int, rounds: int, learning_rates: Sequence[float], *, tls: bool = False
) -> list[Deltas]:
    """Pull versions in both ways, between two workers for each learning rate.

    Args:
        megabytes: of a version in bfloat16, roughly.
        rounds: in which a version is pulled in each way, after two that warm up.
        learning_rates: of AdamW, one after the other.
        tls: whether the workers encrypt what they say.
    """
    return [_measured(megabytes, rounds, rate, tls) for rate in learning_rates]


def _measured(megabytes: int, rounds: int, learning_rate: float, tls: bool) -> Deltas:
    with pairs(["delta"], megabytes, _first_state, tls=tls) as found:
        pair = found["delta"]
        _hold(pair, pair.publish(pair.state))
        taken = [_round(pair, learning_rate) for _ in range(rounds + WARM_UP)]
    return Deltas(learning_rate, taken[0].share, taken[WARM_UP:])


def _round(pair: Pair, learning_rate: float) -> Both:
    """Make a version, pull it in both ways, and have both workers hold it."""
    made = pair.publish(pair.next_state(_stepped, learning_rate))
    both = Both(_crossed(pair, made, by_delta=False), _crossed(pair, made, by_delta=True))
    _hold(pair, made)
    return both


def _hold(pair: Pair, made: "Future[PolicyVersion]") -> None:
    pair.pull(made)
    pair.hold(made)


def _crossed(pair: Pair, made: "Future[PolicyVersion]", *, by_delta: bool) -> Crossed:
    """Pull a version, and do not hold it."""
    before = pair.submit(pair.trainer, process_time).result()
    num_bytes, seconds, receiver_cpu = pair.submit(
        pair.rollout, _pulled, made, (pair.trainer,), by_delta
    ).result()
    source_cpu = pair.submit(pair.trainer, process_time).result() - before
    return Crossed(num_bytes, seconds, source_cpu, receiver_cpu)


def print_deltas(found: Sequence[Deltas], console: Console | None = None) -> None:
    """Print the medians of each learning rate."""
    rounds = found[0].rounds
    megabytes = f"{rounds[0].dense.num_bytes / 1e6:.0f} MB"
    table = borderless(f"deltas of {megabytes}, a step of AdamW apart, medians of {len(rounds)}")
    headings = ("MB", "share", "first", "seconds", "dense", "pack", "unpack")
    for heading in ("learning rate", *headings):
        table.add_column(heading, justify="right")
    for own in found:
        table.add_row(
            f"{own.learning_rate:g}",
            f"{median(both.delta.num_bytes for both in own.rounds) / 1e6:.2f}",
            f"{median(both.share for both in own.rounds):.3f}",
            f"{own.first_share:.3f}",
            f"{median(both.delta.seconds for both in own.rounds):.3f}",
            f"{median(both.dense.seconds for both in own.rounds):.3f}",
            f"{median(both.packing for both in own.rounds):.1f}",
            f"{median(both.unpacking for both in own.rounds):.1f}",
        )
    console = console or terminal()
    console.print(table)
    console.print(
        "share: of the bytes of the version; first: that of the first step; seconds: of the pull, "
        "as a delta and dense; pack and unpack: seconds of CPU per GB of the version, over dense"
    )


# --- what workers do --------------------------------------------------------------------------


def _first_state() -> TrainState:
    """Return version 0, of the model's shapes."""
    rng = np.random.default_rng(0)
    shapes = {name: own.shape for name, own in start_state(RUN, "start")[0].weights.items()}
    return initial_state(
        {
            name: np.float32(_DEVIATION) * rng.standard_normal(shape, np.float32)
            for name, shape in shapes.items()
        }
    )


def _stepped(state: TrainState, learning_rate: float) -> TrainState:
    """Return the next version."""
    torch.manual_seed(state.version)
    gradient = {name: torch.randn(value.shape) for name, value in state.weights.items()}
    train = engine_of(RUN).config.train
    return optimizer_step(state, gradient, train, learning_rate=learning_rate)


def _pulled(
    made: PolicyVersion, source: tuple[str, ...], by_delta: bool
) -> tuple[int, float, float]:
    """Return the bytes, the seconds and the CPU seconds of pulling a version."""
    engine = engine_of(RUN)
    take_received()
    started, cpu = perf_counter(), process_time()
    arrived = pull(RUN, made, source, engine.gang, engine.shelf.bases if by_delta else None)
    seconds, cpu = perf_counter() - started, process_time() - cpu
    if differing(made.contents, arrived.fingerprints, engine.gang):
        raise RuntimeError("it arrived damaged")
    return sum(own.num_bytes for own in take_received()), seconds, cpu
