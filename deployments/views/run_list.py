"""``digen ls`` and ``digen recipes``: tables of runs, and of the configs that digen ships."""

import json
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from deployments.levels import level_of
from deployments.shipped import RECIPES
from deployments.views.terminal import borderless, plain, terminal
from digen_core.algorithms import DEFAULT
from digen_core.checkpoints.run_state import RunState
from digen_core.maths.statistics import error_of

NOTHING = "-"
WIDTH = 1000


def print_runs(runs: Sequence[RunState], console: Console | None = None) -> None:
    """Print a row for each run; rewards and evaluations with their standard errors."""
    from tasks.views.display import mean_text, value_text

    console = console or terminal()
    table = _table("run", "begun", "state", "iterations", "reward", "evaluation")
    for run in runs:
        last, report = run.last, run.evaluation
        has_reward = last is not None and "reward/mean" in last.metrics
        table.add_row(
            plain(run.folder.name),
            f"{run.began:%Y-%m-%d %H:%M}",
            run.state,
            f"{run.num_done} of {run.num_iterations or '?'}",
            value_text("reward/mean", last.metrics) if last and has_reward else NOTHING,
            mean_text(report, "reward") if report and "reward" in report.rewards else NOTHING,
        )
    wide = console.options.update(max_width=WIDTH)
    console.width = max(
        console.width, Measurement.get(console, wide, table).maximum
    )  # no name is cut
    console.print(table)


def as_json(runs: Sequence[RunState]) -> str:
    """Return the same as JSON, an object for each run."""
    return json.dumps([_tree(run) for run in runs], indent=2)


def _tree(run: RunState) -> dict[str, Any]:
    metrics = run.last.metrics if run.last else {}
    report = run.evaluation
    return {
        "run": run.folder.name,
        "folder": str(run.folder),
        "begun": run.began.isoformat(timespec="seconds"),
        "state": run.state,
        "iterations": run.num_done,
        "num_iterations": run.num_iterations,
        "reward": metrics.get("reward/mean"),
        "reward_standard_error": metrics.get(error_of("reward/mean")),
        "evaluation": report.rewards.get("reward") if report else None,
        "evaluation_standard_error": report.standard_error("reward") if report else None,
    }


def print_configs(configs: dict[str, Path], console: Console | None = None) -> None:
    """Print a row for each config that digen ships: model, algorithm, level, what it is for."""
    console = console or terminal()
    table = _table("config", "family", "algorithm", "level", "what it is")
    for name, path in configs.items():
        tree = tomllib.loads(path.read_text())
        algorithm = tree.get("algorithm", {}).get("type", DEFAULT)
        family = tree.get("model", {}).get("family", "flux")
        level = level_of(path) if path.parent == RECIPES else NOTHING
        table.add_row(name, family, algorithm, level, first_sentence(path.read_text()))
    console.print(table)


def first_sentence(toml: str) -> str:
    """Return the first sentence of the comment at the head of a file."""
    head = re.match(r"(?:#.*\n)*", toml)
    lines = head[0].splitlines() if head else []
    text = " ".join(line.removeprefix("#").strip() for line in lines)
    return re.split(r"(?<=\.)\s", text, maxsplit=1)[0].removesuffix(".")


def _table(*columns: str) -> Table:
    table = borderless()
    *others, last = columns
    for column in others:
        table.add_column(column, no_wrap=True)
    table.add_column(last)
    return table
