"""``digen simulate --beds``: what unequal devices, some far from others, can do together."""

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from rich.console import Console

from deployments.views.terminal import borderless, terminal
from digen_core.planning.stages.alternatives import Row
from digen_core.planning.stages.beds import BEDS, DRAWS, WORK, Bed, rows_of

HEADINGS = ("\nseconds", "times\nequal", "\ndevices", "GB\nacross")


def compare(seed: int) -> Iterable[tuple[Bed, list[Row]]]:
    """Yield the beds, one after the other, with what can be done on them.

    Args:
        seed: of the beds; same seed, same rows.
    """
    return ((bed, rows_of(bed, seed)) for bed in BEDS)


def print_beds(found: Iterable[tuple[Bed, Sequence[Row]]], console: Console | None = None) -> None:
    """Print a table for each bed, when it is there."""
    console = console or terminal()
    console.print(
        f"FLUX.1 with adapters, 512 x 512: seconds of {WORK.num_samples} samples in "
        f"{WORK.num_steps} steps and {WORK.num_pairs} pairs, mean of {DRAWS} draws"
    )
    for bed, rows in found:
        table = borderless(f"\n{_title(bed)}", gap=1)
        table.add_column("", no_wrap=True)
        for heading in HEADINGS:
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("\nwhat crosses", no_wrap=True)
        for row in rows:
            table.add_row(
                row.name,
                f"{row.seconds:.1f}",
                f"{rows[0].seconds / row.seconds:.1f}",
                f"{row.num_devices:.0f}",
                f"{row.crossing_bytes / 1e9:.1f}",
                row.crossing,
            )
        console.print(table)


def write_json(found: Iterable[tuple[Bed, Sequence[Row]]]) -> None:
    """Print a list of objects, one for each bed."""
    beds = [{**asdict(bed), "rows": [asdict(row) for row in rows]} for bed, rows in found]
    sys.stdout.write(json.dumps(beds, indent=2) + "\n")


def _title(bed: Bed) -> str:
    inside, between = (_speed(*speeds) for speeds in (bed.inside, bed.between))
    memory = f"{bed.memory / 1e9:g} GB each"
    return f"{bed.title}, {memory}: Mb/s {inside} inside, {between} between"


def _speed(least: float, most: float) -> str:
    return f"{least:g}" if least == most else f"{least:g}-{most:g}"
