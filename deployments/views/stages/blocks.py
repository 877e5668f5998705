"""``digen size --blocks``: what each block of a recipe's transformer takes."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from deployments.views.size import Quantities, reading_settings
from deployments.views.terminal import borderless, terminal
from digen_core.config.run import RunConfig
from digen_core.gang.degrees import check_stages
from digen_core.inputs.text import short
from digen_core.models.image_size import read_settings
from digen_core.planning.model_settings import settings_folder
from digen_core.planning.stages.blocks import chain_of
from digen_core.planning.stages.chain import Block, Chain

COLUMNS = {
    ("forward", "GFLOP"): ("forward_flops", 1e9),
    ("backward", "GFLOP"): ("backward_flops", 1e9),
    ("weights", "MB"): ("weight_bytes", 1e6),
    ("trained", "MB"): ("trained_bytes", 1e6),
    ("kept", "MB"): ("graph_bytes", 1e6),
    ("cut", "MB"): ("cut_bytes", 1e6),
}
"""Quantity and unit -> the number of a block, and what it is divided by. Kept is what autograd
holds until the gradient is there; a cut is before the block."""


def blocks(config: RunConfig) -> Chain:
    """Count what the parts of a config's transformer take.

    Raises:
        UserError: the model's settings are not there, or do not fit the config.
        ConfigError: it has not as many blocks as the config has stages.
    """
    with reading_settings(config):
        folder = settings_folder(config.model.path)
        check_stages(config, transformer=read_settings(folder)[1])
        return chain_of(config, folder)


def draw_dag(config: RunConfig, chain: Chain, path: Path) -> None:
    """Draw the operators of a config's blocks, and its stages.

    Args:
        config: of the run.
        chain: its transformer.
        path: of the picture.
    """
    from deployments.views.stages.dag import draw
    from digen_core.planning.stages.operators import operators_of

    draw(config, chain, operators_of(config, settings_folder(config.model.path)), path)


def rows_of(chain: Chain) -> dict[str, Quantities]:
    """Return what parts take by their names, those together that follow each other and are alike.

    The last row is the sum of all, each part by itself.
    """
    rows = {_name(run): _quantities(asdict(run[0])) for run in chain.runs()}
    sums = {field: chain.total(field) for field, _ in COLUMNS.values() if field != "cut_bytes"}
    return rows | {"all": _quantities(sums)}


def as_dict(chain: Chain) -> dict[str, object]:
    """Return the parts, and what else crosses."""
    return {
        "num_rows": chain.num_rows,
        "velocity_bytes": chain.velocity_bytes,
        "parts": [asdict(part) for part in chain.parts],
    }


def print_rows(rows: Mapping[str, Quantities], title: str, console: Console | None = None) -> None:
    """Print a table with a row for each run of parts."""
    console = console or terminal()
    table = borderless(title, gap=1)
    table.add_column("\nof a sample", no_wrap=True)
    for quantity, unit in next(iter(rows.values())):
        table.add_column(f"{quantity}\n{unit}", justify="right", no_wrap=True)
    for name, found in rows.items():
        table.add_row(name, *found.values())
    console.print(table)


def _name(run: tuple[Block, ...]) -> str:
    first, last = run[0].name, run[-1].name
    return first if len(run) == 1 else f"{first}-{last.rpartition('.')[2]}"


def _quantities(numbers: Mapping[str, float | str]) -> Quantities:
    values = {key: float(numbers.get(field, 0)) / unit for key, (field, unit) in COLUMNS.items()}
    return {key: short(value) if value else "" for key, value in values.items()}
