"""A comparison of layouts with real compute, beside the serial loop, interleaved.

In each round every layout runs some iterations on workers of its own, after some that warm up; so
all of them see the same machine. Seconds are from the moment that an iteration is over, as all
devices hold its version, to that for the next; one that makes no update is over with its last task.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import time

from prefect import flow

from deployments.bench.core_seconds import WARM_UP
from deployments.bench.runs import Records, measured_apart, train_serially
from deployments.local import failures_in_one_line, prefect_ready
from deployments.views.terminal import borderless, terminal
from digen_core.config.run import RunConfig
from digen_core.records import IterationRecord
from digen_core.trace.windows import iteration_windows
from flows.launch import open_run
from flows.prepare import prepare
from flows.runtime.observers import watching
from flows.runtime.subflows import on_cluster
from flows.runtime.workload import layout_of

SERIAL = "serial"
BASELINES = {
    SERIAL: "serial",
    "colocated": "col",
    "colocated-strong": "strong",
    "disaggregated": "disagg",
}
"""Name -> its heading."""


@dataclass
class Row:
    """What one way to run took in all rounds."""

    name: str  # as it was asked for
    layout: str = ""  # that ran
    split: str = "1"  # R:M
    seconds: list[float] = field(default_factory=list)  # of each measured iteration
    errors: list[float] = field(default_factory=list)  # predicted over measured seconds, less 1
    busy: list[float] = field(default_factory=list)  # share of all device seconds

    @property
    def median(self) -> float:
        """Seconds of an iteration."""
        return median(self.seconds)


def main(config: RunConfig, names: Sequence[str], *, rounds: int, iterations: int) -> None:
    """Run the serial loop and each layout in turn, and print the medians.

    Args:
        config: of the run; its own layout does not matter.
        names: of layouts, ``auto`` for the planner's choice.
        rounds: in which each of them runs once.
        iterations: to measure in each round.

    Raises:
        UserError: the input cannot be used.
        RunFailedError: a run failed.
    """
    console = terminal()
    with TemporaryDirectory() as folder, failures_in_one_line(), prefect_ready(Path(folder)):
        rows = measure(config, names, rounds, iterations, folder, console.print)
    print_rows(rows, config, rounds)


def measure(
    config: RunConfig,
    names: Sequence[str],
    rounds: int,
    iterations: int,
    runs_dir: str,
    say: Callable[[str], None],
) -> list[Row]:
    """Return what the serial loop and each layout took; ``say`` hears of each that begins."""
    rows = [Row(name) for name in (SERIAL, *names)]
    config = measured_apart(config, "bench", runs_dir)
    for number in range(rounds):
        for row in rows:
            say(f"round {number + 1} of {rounds}: {row.name} ...")
            _measure(row, config, iterations)
    return rows


def _measure(row: Row, config: RunConfig, iterations: int) -> None:
    """Add one round to a row."""
    if row.name == SERIAL:
        row.seconds += serial_seconds(config, iterations)
        return
    schedule = config.schedule.model_copy(update={"layout": row.name})
    update = {"schedule": schedule, "num_iterations": WARM_UP + iterations}
    row.layout, row.split, records = run_layout(config.model_copy(update=update))
    spans = [span for record in records for span in record.spans]
    ends = [window.ended for window in iteration_windows(spans).values()][WARM_UP - 1 :]
    row.seconds += [last - first for first, last in pairwise(ends)]
    for record in records[WARM_UP:]:
        row.errors.append(record.metrics["makespan/predicted_error"])
        row.busy.append(1 - sum(v for k, v in record.metrics.items() if k.startswith("idle/")))


def serial_seconds(config: RunConfig, iterations: int) -> list[float]:
    """Return the seconds of each iteration of the serial loop, after those that warm up."""
    config = config.model_copy(update={"num_iterations": WARM_UP + iterations})
    ends: list[float] = []
    train_serially(config, lambda index, row: ends.append(time()))
    return [last - first for first, last in pairwise(ends[WARM_UP - 1 :])]


@flow(
    name="bench-layout", flow_run_name="bench {config.schedule.layout}", validate_parameters=False
)
def run_layout(config: RunConfig) -> tuple[str, str, list[IterationRecord]]:
    """Run all iterations without evaluations; return the layout, the split and the records."""
    records, last = Records(), config.num_iterations - 1
    with open_run(config) as run, watching(records):
        layout = layout_of(run.config)
        with on_cluster(run, prepare) as conductor:
            for index in range(config.num_iterations):
                conductor.complete(index, last=last)
        split = f"{len(run.fleet.rollout_devices())}:{len(run.fleet.trainer_devices())}"
    return layout.name, "both" if layout.colocated else split, records.seen


def print_rows(rows: Sequence[Row], config: RunConfig, rounds: int) -> None:
    """Print the medians, and how many times as fast each is as the baselines that ran."""
    samples = config.samples_per_iteration
    title = f"medians of {rounds} interleaved rounds, {samples} samples an iteration"
    table = borderless(title, gap=1)
    baselines = [row for row in rows if row.name in BASELINES]
    table.add_column("\nlayout", no_wrap=True)
    headings = ["\nsplit", "\ns", "samples\n/s", *(f"x\n{BASELINES[b.name]}" for b in baselines)]
    for heading in (*headings, "pred.\nerror", "\nbusy"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        layout = row.name if row.layout in ("", row.name) else f"{row.name}: {row.layout}"
        table.add_row(
            layout,
            row.split,
            f"{row.median:.2f}",
            f"{samples / row.median:.1f}",
            *(f"{baseline.median / row.median:.2f}" for baseline in baselines),
            f"{median(row.errors):+.1%}" if row.errors else "-",
            f"{median(row.busy):.0%}" if row.busy else "-",
        )
    terminal().print(table)
