"""A comparison of what is learnt: the serial loop against layouts, over several seeds.

Every way trains on the same number of samples and is judged by the same noiseless evaluation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console

from deployments.bench.runs import Records, train_serially
from deployments.local import failures_in_one_line, prefect_ready
from deployments.views.terminal import borderless, terminal
from digen_core.checkpoints.manifest import CHECKPOINTS_OF_RUN, Lineage, Position
from digen_core.checkpoints.tensors import write_checkpoint
from digen_core.config.run import NO_LIMITS, RunConfig
from digen_core.data.prompts import evaluation_prompts, prompts_hash, train_prompts
from digen_core.errors import UserError
from digen_core.records import EvaluationReport
from digen_core.trace.charts import look_of
from digen_core.training.train_state import initial_state
from flows.evaluate_run import evaluate_run
from flows.launch import new_run_dir
from flows.post_train import post_train
from flows.runtime.observers import watching

SERIAL = "serial"
SMOOTHING = 9  # iterations that a point of a curve is the mean of


@dataclass
class Way:
    """A way to train, and what came of it by seed."""

    name: str
    final: dict[int, float] = field(default_factory=dict)  # seed -> after training
    curves: dict[int, list[float]] = field(default_factory=dict)  # seed -> mean reward


def main(
    config: RunConfig, names: Sequence[str], seeds: Sequence[int], metric: str, folder: Path
) -> None:
    """Train once with each seed in each way; print what was reached and draw the curves.

    Args:
        config: of the run; its own layout and seed do not matter.
        names: of layouts, beside the serial loop.
        seeds: of the runs.
        metric: of the evaluation, for example ``shapes/exact``.
        folder: that gets the runs and ``learning.png``.

    Raises:
        UserError: the input cannot be used.
        RunFailedError: a run failed.
    """
    console = terminal()
    ways = [Way(name) for name in (SERIAL, *names)]
    config = config.model_copy(
        update={
            **NO_LIMITS,  # the same number of samples for all
            "tracking": config.tracking.model_copy(update={"runs_dir": str(folder)}),
        }
    )
    with failures_in_one_line(), prefect_ready(folder):
        for seed in seeds:
            for way in ways:
                report, curve = _trained(way.name, config.model_copy(update={"seed": seed}))
                if metric not in report.rewards:
                    raise UserError(f"no {metric} among {', '.join(report.rewards)}")
                way.final[seed], way.curves[seed] = report.rewards[metric], curve
                console.print(f"{way.name}, seed {seed}: {metric} {way.final[seed]:.3f}")
    print_ways(ways, metric, config, console)
    draw(ways, "mean reward of an iteration's samples").savefig(folder / "learning.png")
    console.print(f"curves: {folder / 'learning.png'}")


def _trained(name: str, config: RunConfig) -> tuple[EvaluationReport, list[float]]:
    """Return the evaluation after training and the mean reward of each iteration."""
    if name == SERIAL:
        return _trained_serially(config)
    share = 0.5 if name == "tcss" else None
    schedule = config.schedule.model_copy(update={"layout": name, "max_stale_share": share})
    records = Records()
    with watching(records):
        changed = config.model_copy(update={"schedule": schedule, "name": name})
        report: Any = post_train(changed)  # a RunReport; Prefect types flows otherwise
    rewards = {record.iteration: record.metrics["reward/mean"] for record in records.seen}
    return report.after, [rewards[index] for index in sorted(rewards)]


def _trained_serially(config: RunConfig) -> tuple[EvaluationReport, list[float]]:
    """Train in this process; keep the result as a run's folder and judge it as a run is judged."""
    config = config.model_copy(update={"name": f"{SERIAL}-{config.seed}"})
    run, folder = train_serially(config), new_run_dir(config)  # not that of an earlier bench
    state = replace(initial_state(run.weights), version=config.num_updates, ema=run.ema)
    write_checkpoint(folder / CHECKPOINTS_OF_RUN, state, _position(config))
    return evaluate_run(str(folder)), [row["reward/mean"] for row in run.metrics]


def _position(config: RunConfig) -> Position:
    """Return the end of a serial run, which nobody tracks."""
    lineage = Lineage(
        run_id=SERIAL,
        mlflow_run_id="",
        flow_run_ids=(),
        prompts_hash=prompts_hash(train_prompts(config)),
        evaluation_prompts_hash=prompts_hash(evaluation_prompts(config)),
    )
    return Position(
        num_iterations=config.num_iterations,
        metrics={},
        reward_history={},
        lineage=lineage,
        config=config,
    )


def print_ways(ways: Sequence[Way], metric: str, config: RunConfig, console: Console) -> None:
    """Print what each way reached with each seed."""
    samples = config.num_iterations * config.samples_per_iteration
    table = borderless(f"{metric} after {samples} samples")
    table.add_column("way", no_wrap=True)
    for heading in (*(f"seed {seed}" for seed in ways[0].final), "mean", "std"):
        table.add_column(heading, justify="right")
    for way in ways:
        values = list(way.final.values())
        spread = f"{stdev(values):.3f}" if len(values) > 1 else "-"
        table.add_row(way.name, *(f"{v:.3f}" for v in values), f"{fmean(values):.3f}", spread)
    console.print(table)


def draw(ways: Sequence[Way], title: str) -> Figure:
    """Return one smoothed curve for each way and seed, in the colour and style of the way."""
    figure = Figure(figsize=(9, 3.8), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    for place, way in enumerate(ways):
        colour, style = look_of(place)
        for number, values in enumerate(way.curves.values()):
            label = way.name if number == 0 else None
            axes.plot(smoothed(values), style, color=colour, label=label, linewidth=1.2, alpha=0.8)
    axes.set_xlabel("iteration")
    axes.set_title(f"{title} (means of {SMOOTHING} iterations)", loc="left", fontsize=11)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure


def smoothed(values: Sequence[float]) -> list[float]:
    """Return the mean of each value and those up to half a window away, as far as there are."""
    half = SMOOTHING // 2
    return [fmean(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]
