"""The command ``digen replay``: what it does, and what it prints."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from deployments.views.terminal import plain, terminal
from digen_core.reference.replay import KeptIteration, kept_iteration, replay_config
from tasks.replay import Replayed, replay


def run_replay(run_dir: Path, iteration: int, overrides: Mapping[str, Any]) -> None:
    """Train an iteration of a run again, perhaps otherwise, and print what came of it.

    Raises:
        UserError: it cannot be replayed.
    """
    kept = kept_iteration(run_dir, replay_config(run_dir, overrides), iteration)
    print_replay(run_dir, kept, replay(run_dir, kept))


def print_replay(run_dir: Path, kept: KeptIteration, replayed: Replayed) -> None:
    """Print the update's metrics beside the run's own, and how far the weights are apart."""
    console = terminal()
    num_pairs = sum(pack.num_pairs for pack in kept.packs)
    number = kept.record.iteration + 1
    title = f"iteration {number}: version {kept.version} trained on {num_pairs} pairs"
    table = Table(title=title, title_justify="left")
    table.add_column("metric")
    for heading in ("run", "replay"):
        table.add_column(heading, justify="right")
    for name, value in replayed.metrics.items():
        own = kept.record.metrics.get(name)
        table.add_row(plain(name), "" if own is None else f"{own:.6g}", f"{value:.6g}")
    console.print(table)
    version = replayed.state.version
    if replayed.difference is None:
        console.print(f"version {version} of the run is not kept, so weights are not compared")
    else:
        console.print(
            f"weights differ from the run's version {version} by {replayed.difference:.2g} of the "
            "largest one"
        )
