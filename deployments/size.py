"""``digen size``: parameters, arithmetic and bytes of recipes, counted without weights."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from digen_core.config import ConfigError, RunConfig
from digen_core.planning.sizes import Sizes, sizes_of

MODEL_CONFIGS = Path(__file__).parent / "model_configs"
RECIPES = Path(__file__).parent / "configs" / "recipes"


def recipe_files() -> list[Path]:
    """Return the shipped recipes, by name."""
    return sorted(RECIPES.glob("*.toml"))


def settings_folder(path: str) -> Path:
    """Return where the settings of a model are: its own folder, or the shipped ones of a hub id.

    Raises:
        ConfigError: the model is neither here nor one whose settings are shipped.
    """
    folder = Path(path)
    if folder.is_dir():
        return folder
    shipped = {model.name: model for model in sorted(MODEL_CONFIGS.iterdir())}
    if folder.name not in shipped:
        raise ConfigError(
            f"model.path {path} is no folder here, and the settings that digen ships are of "
            f"{', '.join(shipped)} only; use one of these, or the folder of the model"
        )
    return shipped[folder.name]


def size(config: RunConfig) -> Sizes:
    """Count what a config's model needs.

    Raises:
        ConfigError: the model's settings are not there, or do not fit the config.
    """
    folder = settings_folder(config.model.path)
    try:
        return sizes_of(config, folder)
    except (OSError, ValueError) as error:  # a ConfigError is a ValueError, and says it all
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"model.path {config.model.path}: {error}") from error


def as_json(rows: Mapping[str, Sizes]) -> str:
    """Return a list of objects, numbers in full."""
    return json.dumps([{"name": name, **asdict(found)} for name, found in rows.items()], indent=2)


HEADINGS = (
    "config",
    "parameters, 10^9",
    "trained, 10^6",
    "weights, GB",
    "push, MB",
    "step, TFLOP",
    "pair, TFLOP",
    "decode, TFLOP",
    "trajectory, MB",
    "embedding, MB",
)


def print_sizes(
    rows: Mapping[str, Sizes], *, markdown: bool = False, console: Console | None = None
) -> None:
    """Print a row for each config, for a terminal or as a table of Markdown."""
    console = console or Console(highlight=False, soft_wrap=True)
    if markdown:
        table = [HEADINGS, ("---", *["--:"] * (len(HEADINGS) - 1))]
        for line in [*table, *(_cells(*row) for row in rows.items())]:
            sys.stdout.write(f"| {' | '.join(line)} |\n")
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for number, heading in enumerate(HEADINGS):
        table.add_column(heading.replace(", ", "\n"), justify="right" if number else "left")
    for row in rows.items():
        table.add_row(*_cells(*row))
    console.print(table)
    console.print("of one sample: a denoising step, a pair, its latents; of one prompt: embedding")


def _cells(name: str, found: Sizes) -> Sequence[str]:
    return (
        name,
        f"{found.parameters / 1e9:.3f}",
        f"{found.trained_parameters / 1e6:.1f}",
        f"{found.weight_bytes / 1e9:.2f}",
        f"{found.push_bytes / 1e6:.0f}",
        f"{found.step_flops / 1e12:.2f}",
        f"{found.pair_flops / 1e12:.2f}",
        f"{found.decode_flops / 1e12:.2f}",
        f"{found.trajectory_bytes / 1e6:.1f}",
        f"{found.embedding_bytes / 1e6:.1f}",
    )
