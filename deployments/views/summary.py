"""Summaries that ``digen`` prints when it is done."""

from shlex import quote

from rich.console import Console
from rich.table import Table

from deployments.views.terminal import borderless, plain, terminal
from digen_core.checkpoints.suites import Suite
from digen_core.inputs.addresses import redacted
from digen_core.inputs.text import number_of
from digen_core.maths.statistics import NOISE
from digen_core.records import EvaluationReport, RunReport
from tasks.views.display import (
    NO_MEANS,
    change_text,
    mean_text,
    samples_text,
    verdict_in_short,
    wins_cells,
)

LEGEND = f"±: standard error over the prompts; noise: a change of less than {NOISE:g} of its own"
LEGEND_OF_WINS = (
    "wins: pairs of samples from the same noise in which the trained version scores higher than "
    "the base model, ties half"
)


def print_run(report: RunReport, seconds: float, console: Console | None = None) -> None:
    """Print what a run achieved and where to look at it.

    Args:
        report: of the run.
        seconds: that the command took; the run's own begin when its workers are there.
        console: to print on.
    """
    console = console or terminal()
    title = "held-out prompts, mean over samples"
    table = borderless(title, gap=1)  # 80 columns
    table.add_column("reward", overflow="fold")
    for name in ("before", "after", "change", *(["wins"] if report.after.wins else []), ""):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for name in _ordered(report.after):
        first = report.before  # None: it was lost
        change = report.after.change_since(first, name) if first else None
        before = mean_text(first, name) if first and change else ""
        after = mean_text(report.after, name)
        wins = wins_cells(report.after, name)
        cells = before, after, change_text(change), *wins, verdict_in_short(change)
        table.add_row(plain(name), *cells)
    if report.after.rewards:
        console.print(table)
        console.print("\n".join([LEGEND, *([LEGEND_OF_WINS] if report.after.wins else [])]))
    else:
        console.print(f"{title}: {NO_MEANS}")
    if report.version == 0:
        console.print(
            "no iteration made an update: each group's rewards were equal, or a number was missing"
        )
    console.print(
        f"{number_of(report.num_iterations, 'iteration')}, {samples_text(report.after)} per "
        f"evaluation, {_duration(seconds)} in all, "
        f"{_duration(report.seconds)} of them with the workers started"
    )
    # markup=False: names of runs and folders may hold square brackets.
    for label, text in (
        ("run folder", report.run_dir),
        ("evaluate", f"digen evaluate {quote(report.run_dir)}"),
        ("MLflow", report.view),
        ("Prefect", _prefect_pages()),
    ):
        console.print(f"{label:<11} {text}", markup=False)


def _prefect_pages() -> str:
    """Say where Prefect shows a run that has ended, and with it a server of its command."""
    from prefect.settings import get_current_settings

    configured = get_current_settings().api.url
    if configured is None:
        return "digen up --no-workers"
    return redacted(configured.removesuffix("/api"))


def print_evaluation(report: EvaluationReport, console: Console | None = None) -> None:
    """Print the mean of every reward component, and the share of wins over the base model."""
    console = console or terminal()
    table = Table(
        title=f"version {report.version}: {samples_text(report)}",
        title_justify="left",
    )
    table.add_column("reward")
    table.add_column("mean ± standard error", justify="right")
    if report.wins:
        table.add_column("wins over the base model", justify="right")
    for name in _ordered(report):
        table.add_row(plain(name), mean_text(report, name), *wins_cells(report, name))
    console.print(table if report.rewards else f"{table.title}: {NO_MEANS}")


def print_suite(report: EvaluationReport, suite: Suite, console: Console | None = None) -> None:
    """Print what a suite found in a row, as its paper does; behind it what else judged."""
    console = console or terminal()
    published = suite.num_prompts
    is_whole = published in (None, report.num_prompts)
    note = "" if is_whole else f"; the published suite has {published}"
    table = borderless(None, gap=1)  # 80 columns
    cells = []
    others = {
        name: str(plain(name))
        for name in _ordered(report)
        if "/" in name and name.partition("/")[0] not in suite.rewards
    }
    for name, title in {**suite.shown, **others}.items():
        value = report.rewards.get(name)
        if value is None and name.partition("/")[0] in suite.if_named:
            continue
        factor = suite.factors.get(name, suite.factor) if name in suite.shown else 1
        table.add_column(title, justify="right")
        cells.append("" if value is None else f"{factor * value:.{suite.num_decimals}f}")
    table.add_row(*cells)
    console.print(f"version {report.version}: {samples_text(report)}{note}")
    console.print(table)
    _print_kinds(report, suite, console)


def _print_kinds(report: EvaluationReport, suite: Suite, console: Console) -> None:
    """Print which kinds of prompts were judged otherwise than published, and which not at all."""
    judged = [
        kind
        for kind, own in suite.judges.items()
        if own in suite.if_named and f"{own}/{kind}" in report.rewards
    ]
    if judged:
        by = ", ".join(f"{kind} ({suite.without[kind]})" for kind in judged)
        console.print(f"judged by a model's answers, and what published numbers are by: {by}")
    if suite.without:
        left_out = ", ".join(
            f"{what} ({suite.needs_for(what)})" for what in suite.without if what not in judged
        )
        console.print(f"left out, and the models that it needs: {left_out}")


def _ordered(report: EvaluationReport) -> list[str]:
    """Return the components, the weighted sum first."""
    return sorted(report.rewards, key=lambda name: (name != "reward", name))


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
