"""What ``digen`` prints when it is done."""

from rich.console import Console
from rich.table import Table

from digen_core.records import EvaluationReport, RunReport


def print_run(report: RunReport, seconds: float, console: Console | None = None) -> None:
    """Print what a run achieved and where to look at it.

    Args:
        report: of the run.
        seconds: that the command took; the run's own begin when its workers are there.
        console: to print on.
    """
    console = console or Console(highlight=False, soft_wrap=True)
    table = Table(title="held-out prompts, mean over samples", title_justify="left")
    table.add_column("reward")
    for name in ("before", "after", "change"):
        table.add_column(name, justify="right")
    for name in _ordered(report.after):
        before = report.before.rewards.get(name) if report.before else None
        after = report.after.rewards[name]
        change = "" if before is None else f"{round(after - before, 3) + 0.0:+.3f}"  # never -0.000
        table.add_row(name, "" if before is None else f"{before:.3f}", f"{after:.3f}", change)
    console.print(table)
    if report.version == 0:
        console.print("no iteration made an update: in none did a group's rewards differ")
    console.print(
        f"{report.num_iterations} iterations, {report.after.num_samples} samples of "
        f"{report.after.num_prompts} prompts per evaluation, {_duration(seconds)} in all, "
        f"{_duration(report.seconds)} of them with the workers started"
    )
    # markup=False: names of runs and folders may hold square brackets.
    for label, text in (
        ("run folder", report.run_dir),
        ("evaluate", f"digen evaluate {report.run_dir}"),
        ("MLflow", report.view),
        ("Prefect", "prefect server start, then http://127.0.0.1:4200 (or your PREFECT_API_URL)"),
    ):
        console.print(f"{label:<11} {text}", markup=False)


def print_evaluation(report: EvaluationReport, console: Console | None = None) -> None:
    """Print the mean of every reward component."""
    console = console or Console(highlight=False, soft_wrap=True)
    table = Table(
        title=f"version {report.version}: {report.num_samples} samples of "
        f"{report.num_prompts} prompts",
        title_justify="left",
    )
    table.add_column("reward")
    table.add_column("mean", justify="right")
    for name in _ordered(report):
        table.add_row(name, f"{report.rewards[name]:.3f}")
    console.print(table)


def _ordered(report: EvaluationReport) -> list[str]:
    """Return the components, the weighted sum first."""
    return sorted(report.rewards, key=lambda name: (name != "reward", name))


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
