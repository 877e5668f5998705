"""The command ``digen replay``: what it does, and what it prints."""

from collections.abc import Iterable
from pathlib import Path

from rich.table import Table

from deployments.views.terminal import plain, terminal
from digen_core.config.run import RunConfig
from digen_core.inputs.text import number_of
from digen_core.reference.replay import KeptIteration, kept_iteration
from digen_core.transport.kept_inputs import read_inputs
from tasks.replay import Replayed, replay
from tasks.reproduction import Reproduced, reproduce


def run_nonfinite(run_dir: Path, iteration: int, config: RunConfig) -> None:
    """Do again what was NaN or infinite in an iteration of a run, and print what came of it.

    Raises:
        UserError: nothing of it is kept, or the version that did it.
    """
    inputs = read_inputs(run_dir, iteration)
    print_reproduced(reproduce(run_dir, config, inputs))


def print_reproduced(found: Iterable[Reproduced]) -> None:
    """Print what was found in the run, and beneath what is found now."""
    console = terminal()
    for one in found:
        console.print(plain(f"{one.kept.kind}: {one.kept.found}"))
        console.print(plain(f"  again: {one.found or 'all numbers are finite'}"))
        if one.module:
            console.print(plain(f"  the first output that is NaN or infinite: {one.module}"))


def run_replay(run_dir: Path, iteration: int, config: RunConfig) -> None:
    """Train an iteration of a run again, perhaps otherwise, and print what came of it.

    Raises:
        UserError: it cannot be replayed.
    """
    kept = kept_iteration(run_dir, config, iteration)
    print_replay(kept, replay(run_dir, kept))


def print_replay(kept: KeptIteration, replayed: Replayed) -> None:
    """Print the update's metrics beside the run's own, and how far the weights are apart."""
    console = terminal()
    num_pairs = sum(pack.num_pairs for pack in kept.packs)
    number = kept.record.iteration + 1
    title = f"iteration {number}: version {kept.version} trained on {number_of(num_pairs, 'pair')}"
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
