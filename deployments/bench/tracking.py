"""The cost of MLflow and Prefect's pages: emulated runs with and without, interleaved.

Devices only wait, a denoising step as long as one of a large image model; all else is real: the
flow, Dask, Prefect's server and MLflow's database on the same machine. An iteration is measured
from the moment that all devices hold a version to that for the next, so that what it logs is in the
time of the next one. Both sides keep samples, spans and metrics on disk, and draw timelines.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from rich.console import Console

from deployments.bench.layouts import iteration_ends
from deployments.bench.runs import Records
from deployments.local import failures_in_one_line, prefect_ready
from deployments.views.terminal import borderless, terminal
from digen_core.planning.search import Choice
from digen_core.sim.scenario import Scenario

if TYPE_CHECKING:
    from digen_core.sim.emulated_config import EmulatedConfig

LIMIT: Final = 1.03
"""How much of an iteration without tracking one with it may take."""

SIDES: Final = ("without", "with")


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of iterations, by round and side."""

    rounds: list[dict[str, list[float]]] = field(default_factory=list)

    def seconds(self, side: str) -> float:
        """Median of all iterations of a side."""
        return median(value for found in self.rounds for value in found[side])

    @property
    def ratio(self) -> float:
        """An iteration with tracking over one without."""
        return self.seconds("with") / self.seconds("without")

    @property
    def ratios(self) -> list[float]:
        """The same of each round, the smallest first."""
        return sorted(median(found["with"]) / median(found["without"]) for found in self.rounds)

    @property
    def holds(self) -> bool:
        """Whether tracking costs no more than it may."""
        return self.ratio <= LIMIT


def scenario_of(step_seconds: float) -> Scenario:
    """Return four devices that make and train 32 samples, each fragment 20 steps of that length."""
    return Scenario(
        devices=4,
        prompts=8,
        group_size=4,
        trained_per_group=4,
        steps=20,
        trained_steps=4,
        fragment_size=4,
        pack_size=4,
        d0=0.2 * step_seconds,
        d1=0.2 * step_seconds,
        a=0.5 * step_seconds,
        c=0.5 * step_seconds,
        push=step_seconds,
    )


def bench_tracking(rounds: int, iterations: int, step_seconds: float) -> Measured:
    """Run both sides in turn.

    Args:
        rounds: in which each side runs once, in alternating order.
        iterations: to measure in each run, after one that warms up.
        step_seconds: of a denoising step.

    Raises:
        RunFailedError: a run failed.
    """
    from flows.emulate import emulated_config

    measured, console = Measured(), Console(highlight=False)
    with TemporaryDirectory() as folder:
        config = emulated_config(
            scenario_of(step_seconds),
            Choice("colocated-strong", None),
            Path(folder),
            num_iterations=iterations + 1,
        )
        with failures_in_one_line(), prefect_ready(Path(folder)):
            for number in range(rounds):
                found = {}
                for side in SIDES if number % 2 == 0 else reversed(SIDES):
                    console.print(f"round {number + 1} of {rounds}: {side} tracking ...")
                    found[side] = seconds_of_iterations(config, tracked=side == "with")
                measured.rounds.append(found)
    return measured


def seconds_of_iterations(config: "EmulatedConfig", *, tracked: bool) -> list[float]:
    """Run once, and return the seconds of each iteration after the first."""
    from flows.emulate import emulate
    from flows.runtime.observers import watching

    records = Records()
    with watching(records):
        emulate(config, tracked)
    ends = iteration_ends(span for record in records.seen for span in record.spans)
    return [last - first for first, last in pairwise(ends)]


def print_bench(measured: Measured) -> None:
    """Print the medians of both sides."""
    count = sum(len(found["with"]) for found in measured.rounds)
    title = f"one iteration, medians of {count} in {len(measured.rounds)} interleaved rounds"
    table = borderless(title)
    table.add_column("MLflow and Prefect's pages")
    table.add_column("seconds", justify="right")
    for side in SIDES:
        table.add_row(side, f"{measured.seconds(side):.3f}")
    console = terminal()
    console.print(table)
    console.print(_verdict(measured.ratio, measured.ratios))


def _verdict(ratio: float, ratios: Sequence[float]) -> str:
    word = "at most" if ratio <= LIMIT else "NOT at most"
    return (
        f"tracking takes {ratio - 1:+.1%} ({ratios[0] - 1:+.1%} to {ratios[-1] - 1:+.1%} in the "
        f"rounds); {word} {LIMIT - 1:.0%}"
    )
