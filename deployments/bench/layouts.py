"""A comparison of layouts on emulated devices, through Prefect and Dask.

Each layout runs at its best split (`digen_core/planning/search.py`). Beside its seconds stand those
that the simulator predicts for the same split, seed and number of iterations, and why devices were
idle. What orchestration costs on this machine is in the measured seconds; it does not shrink with
``time_scale``, so a small one shows too much of it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.table import Table

from deployments.bench.runs import Records
from deployments.local import failures_in_one_line, prefect_ready
from deployments.views.terminal import borderless, terminal
from digen_core.control.layout import LayoutName
from digen_core.control.schedule import Schedule
from digen_core.planning.predict import fastest_mixing
from digen_core.planning.search import Choice, search
from digen_core.records import IterationRecord, Span
from digen_core.sim.bounds import floor_of
from digen_core.sim.report import SimulationReport, steady_iterations
from digen_core.sim.scenario import Scenario
from digen_core.sim.simulator import simulate
from digen_core.sim.transfers import crossed
from digen_core.trace.gaps import CAUSES, Cause, idle_gaps
from digen_core.trace.metrics import idle_seconds
from digen_core.trace.windows import Window

if TYPE_CHECKING:
    from digen_core.sim.emulated_config import EmulatedConfig

StepsPerTask = int | Literal["auto"]


@dataclass(frozen=True, slots=True)
class Row:
    """A layout at its best split. Seconds are those of an iteration, in the scenario's time."""

    choice: Choice
    split: str  # R:M
    seconds: float
    predicted: float
    floor: float
    idle: dict[Cause, float]  # share of all device seconds
    tasks_per_second: float  # of wall clock
    crossed: dict[str, tuple[float, float]]  # link -> bytes of an iteration, and as predicted

    @property
    def error(self) -> float:
        """By how much of the measured seconds the prediction is too long."""
        return self.predicted / self.seconds - 1


def main(
    scenario: Scenario,
    layouts: Sequence[LayoutName],
    *,
    time_scale: float,
    num_iterations: int,
    steps_per_task: StepsPerTask,
    seed: int,
) -> None:
    """Run each layout on emulated devices, and print what they took.

    Args:
        scenario: the recipe, the cluster and what things cost.
        layouts: to compare.
        time_scale: seconds of wall clock for a second of the scenario.
        num_iterations: of each run, of which the first warms up; stale layouts run two more.
        steps_per_task: denoising steps in one task.
        seed: of the jitter.

    Raises:
        UserError: the scenario asks for what a run cannot do.
        RunFailedError: a run failed.
    """
    from flows.emulate import emulated_config

    console = terminal()
    rows = []
    with TemporaryDirectory() as folder:
        choices = [search(scenario, layout, seed=seed).choice for layout in layouts]
        configs = [
            emulated_config(
                scenario.scaled(time_scale),
                choice,
                Path(folder),
                num_iterations=num_iterations + 2 * (choice.stale_share > 0),
                steps_per_task=steps_per_task,
                seed=seed,
            )
            for choice in choices
        ]
        with failures_in_one_line(), prefect_ready(Path(folder)):
            for choice, config in zip(choices, configs, strict=True):
                console.print(f"{choice.layout} ...")
                records, schedule = run_emulated(config)
                rows.append(row_of(scenario, choice, schedule, records, time_scale, seed))
    title = f"{scenario.description}, time scale {time_scale:g}, steps per task {steps_per_task}"
    print_rows(rows, title, console)


def run_emulated(config: "EmulatedConfig") -> tuple[list[IterationRecord], Schedule]:
    """Run on emulated devices; return the records, in seconds of wall clock, and the schedule."""
    from flows.emulate import emulate
    from flows.runtime.observers import watching
    from flows.runtime.workload import schedule_of

    records = Records()
    with watching(records):
        emulate(config)
    return records.seen, schedule_of(config)


def row_of(
    scenario: Scenario,
    choice: Choice,
    schedule: Schedule,
    records: Sequence[IterationRecord],
    time_scale: float,
    seed: int,
) -> Row:
    """Summarise a run by its steady state, as the simulator does, in the scenario's time.

    Args:
        scenario: in its own time.
        choice: that was run.
        schedule: of its controller.
        records: in seconds of wall clock.
        time_scale: of the run.
        seed: of the run.
    """
    devices = scenario.cluster(choice.num_rollout)
    spans = [span for record in records for span in record.spans]
    crossings = [own for record in records for own in record.crossings]
    ends = iteration_ends(spans, scenario.updates)
    first, last = steady_iterations(len(ends), schedule)
    window = Window(ends[first], ends[last])
    device_seconds = window.seconds * len(devices)
    idle = idle_seconds(idle_gaps(spans, devices, window))
    num_tasks = sum(window.overlaps(span) for span in spans)
    simulated = _simulated(scenario, choice, schedule, len(ends), seed)
    found = crossed(crossings, window.started, window.ended, last - first)
    predicted = [report.crossed for report in simulated]
    return Row(
        choice=choice,
        split=_split(choice, len(devices)),
        seconds=window.seconds / (last - first) / time_scale,
        predicted=mean(report.seconds for report in simulated),
        floor=floor_of(scenario),
        idle={cause: seconds / device_seconds for cause, seconds in idle.items()},
        tasks_per_second=num_tasks / window.seconds,
        crossed={
            "-".join(sorted(link.sites)): (
                found.get(link.sites, 0.0),
                mean(own.get(link.sites, 0.0) for own in predicted),
            )
            for link in scenario.links
        },
    )


def iteration_ends(spans: Iterable[Span], num_updates: int = 1) -> list[float]:
    """Return when all devices held the version with which each iteration ended.

    Args:
        spans: of a run that skipped no update.
        num_updates: of an iteration.
    """
    ends: dict[int, float] = {}
    for span in spans:
        if span.kind == "push" and span.version > 0 and span.version % num_updates == 0:
            ends[span.version] = max(span.ended, ends.get(span.version, span.ended))
    return [ends[version] for version in sorted(ends)]


def _simulated(
    scenario: Scenario, choice: Choice, schedule: Schedule, num_iterations: int, seed: int
) -> list[SimulationReport]:
    """Simulate the same schedule on a virtual clock, with three seeds."""
    devices, costs = scenario.cluster(choice.num_rollout), scenario.costs(choice.num_rollout)
    job = devices, scenario.workload, schedule, costs
    mixing = fastest_mixing(*job, scenario.trained_steps)
    return [
        simulate(
            *job,
            trained_steps=range(scenario.trained_steps),
            num_iterations=num_iterations,
            seed=number,
            jitter=scenario.jitter,
            mixing=mixing,
            unforeseen=scenario.unforeseen,
        )
        for number in range(seed, seed + 3)
    ]


def print_rows(rows: Sequence[Row], title: str, console: Console) -> None:
    """Print what each layout took, and why its devices were idle."""
    baselines = {row.choice.layout: row.seconds for row in rows}
    table = _table(title, HEADINGS)
    idle = _table("idle, share of all device seconds", ("busy", *CAUSES))
    for row in rows:
        choice = row.choice
        table.add_row(
            choice.layout,
            row.split,
            f"{choice.helpers}/{choice.assistants}",
            f"{choice.stale_share:.2g}",
            f"{row.seconds:.1f}",
            f"{row.predicted:.1f}",
            f"{row.error:+.1%}",
            f"{row.floor / row.seconds:.0%}",
            _times(row, baselines.get("colocated")),
            _times(row, baselines.get("colocated-strong")),
            f"{row.tasks_per_second:.0f}",
        )
        shares = (1 - sum(row.idle.values()), *row.idle.values())
        idle.add_row(choice.layout, *(f"{share:.1%}" for share in shares))
    console.print(table)
    console.print(idle)
    if any(row.crossed for row in rows):
        console.print(_crossings(rows))


def _crossings(rows: Sequence[Row]) -> Table:
    table = _table("GB across links, of an iteration", ("link", "crossed", "predicted"))
    for row in rows:
        for link, num_bytes in row.crossed.items():
            table.add_row(row.choice.layout, link, *(f"{own / 1e9:.3g}" for own in num_bytes))
    return table


HEADINGS = (
    "split\nR:M",
    "helpers\n/assist",
    "stale\nshare",
    "\nseconds",
    "\npredicted",
    "\nerror",
    "of\nfloor",
    "\nx col",
    "\nx strong",
    "tasks\n/s",
)


def _table(title: str, headings: Iterable[str]) -> Table:
    table = borderless(title, gap=1)
    table.add_column("\nlayout", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _split(choice: Choice, num_devices: int) -> str:
    if choice.num_rollout is None:
        return "both"
    return f"{choice.num_rollout}:{num_devices - choice.num_rollout}"


def _times(row: Row, baseline: float | None) -> str:
    """Say how many times as fast as a baseline, if that ran too."""
    return "-" if baseline is None else f"{baseline / row.seconds:.2f}"
