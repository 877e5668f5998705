"""The serial loop against the distributed run on 1 + 1 workers, one thread each, interleaved.

A round is two iterations of the loop, then the same two on the workers. The second ones are
compared: from the moment that every worker holds one version to that for the next. So what a run
does beside the devices' work, such as publishing the last iteration and opening the next flow run,
is in it. With a barrier nothing overlaps, so 1.0x is the limit; what is missing is shown by cause.
Then the config's own layout on the same workers, and whose the cores' time was.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from tempfile import TemporaryDirectory
from time import time

from distributed import Client, Worker
from prefect import flow
from rich.console import Console
from rich.table import Table

from deployments.bench.core_seconds import WARM_UP, bench_core_seconds, print_core_seconds
from deployments.bench.runs import Records, measured_apart, train_serially
from deployments.local import orchestrated
from digen_core.config.run import RunConfig
from digen_core.config.schedule import ScheduleConfig
from digen_core.records import IterationRecord
from flows.launch import open_run
from flows.prepare import prepare
from flows.runtime.observers import watching
from flows.runtime.subflows import on_cluster


@dataclass(frozen=True, slots=True)
class Shares:
    """Where the seconds of one distributed iteration went, beside those of the serial loop."""

    serial: float
    distributed: float
    tasks: float  # task bodies but the push: the serial loop's work, and taking weights out for it
    push: float
    transfer: float  # data between workers, while no task ran
    hand_over: float  # from the last push of the iteration before to the first task
    orchestration: float  # the rest: nobody works, because the next task is on its way

    @property
    def ratio(self) -> float:
        """Throughput of the distributed run relative to the serial loop."""
        return self.serial / self.distributed


@flow(name="bench-overhead", validate_parameters=False)
def bench_overhead(config: RunConfig) -> list[Shares]:
    """Run each iteration twice in turn: in this process, then on the workers."""
    records, rows = Records(), list[Shares]()
    with open_run(config) as run, watching(records), on_cluster(run, prepare) as conductor:
        started = time()

        def after_serial_iteration(index: int, row: dict[str, float]) -> None:
            nonlocal started
            serial = time() - started
            if index % 2:
                records.seen.clear()
                for number in (index - 1, index):
                    conductor.complete(number, last=index)
                transfers = transfers_of(run.client, records.seen[0].spans[0].started)
                rows.append(shares_of(records.seen, transfers, serial))
            started = time()

        train_serially(config, after_serial_iteration)
    return rows


def transfers_of(client: Client, since: float) -> list[tuple[float, float]]:
    """Return when workers received data from others, as (start, stop)."""

    def logged(dask_worker: Worker) -> list[tuple[float, float]]:
        return [(entry["start"], entry["stop"]) for entry in dask_worker.transfer_incoming_log]

    logs = client.run(logged)
    return [entry for log in logs.values() for entry in log if entry[0] >= since]


def shares_of(
    records: Sequence[IterationRecord], transfers: Sequence[tuple[float, float]], serial: float
) -> Shares:
    """Split the second of two iterations by what somebody was doing at each moment."""
    started = max(span.ended for span in records[0].spans)
    spans = [span for span in records[1].spans if span.started > started]  # prompts came earlier
    first, last = min(span.started for span in spans), max(span.ended for span in spans)
    bodies = [(s.started, s.ended) for s in spans if s.kind != "push"]
    pushes = [(s.started, s.ended) for s in spans if s.kind == "push"]
    working = covered(bodies)
    with_push = covered(bodies + pushes)
    between = [(max(start, first), min(stop, last)) for start, stop in transfers if stop > first]
    with_transfer = covered(bodies + pushes + between)
    return Shares(
        serial=serial,
        distributed=last - started,
        tasks=working,
        push=with_push - working,
        transfer=with_transfer - with_push,
        hand_over=first - started,
        orchestration=last - first - with_transfer,
    )


def covered(intervals: Sequence[tuple[float, float]]) -> float:
    """Return the length of the union of intervals."""
    total, reach = 0.0, float("-inf")
    for start, stop in sorted(intervals):
        total += max(0.0, stop - max(start, reach))
        reach = max(reach, stop)
    return total


def main(config: RunConfig, iterations: int) -> None:
    """Measure ``iterations`` rounds after one that warms up, then the config's own layout.

    Of that as many iterations are measured as all rounds have, after WARM_UP others.
    """
    one_each = {"rollout_workers": 1, "trainer_workers": 1, "threads_per_worker": 1}
    cluster = config.cluster.model_copy(update=one_each)
    num_iterations = 2 * (iterations + 1)
    barrier = {"schedule": ScheduleConfig(layout="disaggregated"), "num_iterations": num_iterations}
    with TemporaryDirectory() as folder:
        own = measured_apart(config, "bench-overhead", folder)
        own = own.model_copy(
            update={"cluster": cluster, "num_iterations": WARM_UP + num_iterations}
        )
        with orchestrated(own):
            rows = bench_overhead(own.model_copy(update=barrier))[1:]
            measured = bench_core_seconds(own)
    print_shares(rows)
    serial = median(row.serial for row in rows)
    print_core_seconds(measured, config.schedule.layout, serial)


def print_shares(rows: Sequence[Shares]) -> None:
    """Print medians over the rounds."""
    table = Table(title=f"one iteration, medians of {len(rows)} interleaved rounds")
    table.add_column("where the time goes")
    table.add_column("seconds", justify="right")
    table.add_column("share of the distributed run", justify="right")
    whole = median(row.distributed for row in rows)
    names = {
        "serial loop, one process": "serial",
        "distributed, 1 + 1 workers": "distributed",
        "  task bodies": "tasks",
        "  push": "push",
        "  transfer": "transfer",
        "  hand-over to the iteration": "hand_over",
        "  orchestration": "orchestration",
    }
    for label, name in names.items():
        seconds = median(getattr(row, name) for row in rows)
        table.add_row(label, f"{seconds:.3f}", f"{seconds / whole:.1%}")
    console = Console()
    console.print(table)
    ratios = sorted(row.ratio for row in rows)
    console.print(
        f"throughput against the serial loop: {median(ratios):.3f}x "
        f"({ratios[0]:.3f} to {ratios[-1]:.3f}; 1.0 is the limit with a barrier)"
    )
