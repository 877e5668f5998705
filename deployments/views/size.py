"""``digen size``: parameters, arithmetic and bytes of recipes, counted without weights."""

import json
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from rich.console import Console

from deployments.views.terminal import borderless, terminal
from digen_core.config.run import RunConfig
from digen_core.errors import UserError
from digen_core.inputs.text import short
from digen_core.planning.model_settings import settings_folder
from digen_core.planning.sizes import Sizes, of_samples, sizes_of

Quantities = dict[tuple[str, str], str]
"""Quantity and unit -> number."""

T = TypeVar("T")

_counted: Final[dict[object, Any]] = {}
"""What was counted, and of what -> the result."""


def size(config: RunConfig) -> Sizes:
    """Count what a config's model needs.

    Raises:
        UserError: the model's settings are not there, or do not fit the config.
    """
    return counted(sizes_of, config)


def size_of_samples(config: RunConfig) -> Sizes:
    """Count the same with samples of the mean of ``model.sizes``, if they have several sizes."""
    return of_samples(size(config), config)


def counted(count: Callable[..., T], config: RunConfig, *others: Hashable) -> T:
    """Return what is counted of a model: once in a process, as it takes seconds.

    A plan asks for the same again and again.

    Args:
        count: called with the config, the folder of its model's settings, and the others.
        config: of the run.
        others: that it depends on.

    Raises:
        UserError: the model's settings are not there, or do not fit the config.
    """
    with reading_settings(config):
        folder = settings_folder(config.model.path)
        key = count, config.model_dump_json(), folder.resolve(), *others
        if key not in _counted:
            _counted[key] = count(config, folder, *others)
    found: T = _counted[key]
    return found


@contextmanager
def reading_settings(config: RunConfig) -> Iterator[None]:
    """Let what is wrong with the settings of a config's model say whose they are.

    Raises:
        UserError: in place of an OSError or a ValueError of the body.
    """
    try:
        yield
    except UserError:  # which is a ValueError, and says it all
        raise
    except (OSError, ValueError) as error:
        raise UserError(f"model.path {config.model.path}: {error}") from error


def as_json(rows: Mapping[str, Mapping[str, object]]) -> str:
    """Return a list of objects, numbers in full."""
    return json.dumps([{"name": name, **found} for name, found in rows.items()], indent=2)


def print_rows(rows: Mapping[str, Quantities], console: Console | None = None) -> None:
    """Print a table for each config."""
    console = console or terminal()
    for name, found in rows.items():
        table = borderless(name)
        for justify in ("left", "right", "left"):
            table.add_column(justify=justify)
        for (quantity, unit), value in found.items():
            table.add_row(quantity, value, unit)
        table.show_header = False
        console.print(table)


def as_markdown(rows: Mapping[str, Quantities], named: str = "config") -> str:
    """Return a table of Markdown with a row for each name.

    Args:
        rows: by name.
        named: what the names are of.
    """
    titles = [", ".join(filter(None, key)) for key in next(iter(rows.values()))]
    lines = [[named, *titles], ["---", *("--:" for _ in titles)]]
    lines += [[name, *found.values()] for name, found in rows.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def quantities(found: Sizes) -> Quantities:
    """Return quantity and unit -> number."""
    values = {
        ("parameters", "10^9"): found.parameters / 1e9,
        ("trained", "10^6"): found.trained_parameters / 1e6,
        ("weights", "GB"): found.weight_bytes / 1e9,
        ("push of a version", "MB"): found.push_bytes / 1e6,
        ("step of a sample", "TFLOP"): found.step_flops / 1e12,
        ("training pair", "TFLOP"): found.pair_flops / 1e12,
        ("VAE decoding of a sample", "TFLOP"): found.decode_flops / 1e12,
        ("trajectory of a sample", "MB"): found.trajectory_bytes / 1e6,
        ("embeddings of a prompt", "MB"): found.embedding_bytes / 1e6,
    }
    return {key: short(value) for key, value in values.items()}
