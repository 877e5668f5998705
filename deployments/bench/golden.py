"""The golden curve: rewards of a short, seeded run of the main job, kept in the repository.

The serial loop makes them, whose weights every on-policy layout has. Whatever changes the samples,
the rewards or the updates moves the curve; rounding alone stays within the tolerance.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Final

import torch
from pydantic import Field, ValidationError
from rich.console import Console

from deployments.bench.runs import train_serially
from deployments.errors import RunFailedError
from deployments.shipped import shipped_configs
from deployments.views.terminal import borderless, terminal
from digen_core.config.load import load_config
from digen_core.config.run import RunConfig
from digen_core.errors import UserError
from digen_core.inputs.shipped import data_folder
from digen_core.inputs.text import number_of
from digen_core.strict import Strict
from digen_core.transport.files import replace_text

GOLDEN_FILE: Final = data_folder("golden", "shapes.json")
NUM_ITERATIONS: Final = 12
TOLERANCE: Final = 0.001
"""Measured over these iterations: other vector kernels of the CPU and float64 in place of float32
move no reward at all, as the verifier's answers are discrete; a learning rate of 2% more moves one
by 0.0016. So one sample of the 192 on the border of an answer may fall to the other side."""


class Golden(Strict):
    """A kept curve, and how it was made."""

    config: str
    """Name of a shipped config."""
    torch: str
    """Version that it was made with; others may round differently."""
    tolerance: float = Field(gt=0)
    """Largest difference of an iteration's mean reward that rounding may explain."""
    reward: tuple[float, ...] = Field(min_length=1)
    """Mean reward of each iteration."""


@dataclass(frozen=True, slots=True)
class Row:
    """An iteration of both curves; None where a curve has ended."""

    kept: float | None
    measured: float | None
    tolerance: float

    @property
    def holds(self) -> bool:
        """Whether both are there and no further apart than rounding explains; never with NaN."""
        if self.kept is None or self.measured is None:
            return False
        return abs(self.measured - self.kept) <= self.tolerance


def compare(golden: Golden, rewards: Sequence[float]) -> list[Row]:
    """Return both curves side by side, as long as the longer one."""
    rows = []
    for index in range(max(len(golden.reward), len(rewards))):
        kept = golden.reward[index] if index < len(golden.reward) else None
        measured = rewards[index] if index < len(rewards) else None
        rows.append(Row(kept, measured, golden.tolerance))
    return rows


def read_golden(path: Path) -> Golden:
    """Return a kept curve.

    Raises:
        UserError: there is none, or the file is no such curve.
    """
    try:
        return Golden.model_validate_json(path.read_text())
    except OSError as error:
        raise UserError(
            f"cannot read the golden curve {path}: {error.strerror}; digen bench golden --write "
            "makes it"
        ) from error
    except (ValidationError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path} is no golden curve; digen bench golden --write makes it anew"
        ) from error


def write_golden(path: Path, config: RunConfig, rewards: Sequence[float]) -> Golden:
    """Keep a curve.

    Raises:
        RunFailedError: a reward is NaN or infinite.
        UserError: the file cannot be written.
    """
    if not all(map(isfinite, rewards)):
        raise RunFailedError(f"nothing was written: the rewards are {list(rewards)}")
    golden = Golden(
        config=config.name,
        torch=torch.__version__,
        tolerance=TOLERANCE,
        reward=tuple(round(reward, 6) for reward in rewards),
    )
    try:
        replace_text(path, golden.model_dump_json(indent=2) + "\n")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    return golden


def golden_config() -> RunConfig:
    """Return the config of the run: the main job, shortened, on the CPU."""
    config = load_config(shipped_configs()["shapes"])
    model = config.model.model_copy(update={"device": "cpu"})
    return config.model_copy(update={"num_iterations": NUM_ITERATIONS, "model": model})


def measure(config: RunConfig, console: Console) -> list[float]:
    """Return the mean reward of each iteration of the serial loop."""
    count = number_of(config.num_iterations, "iteration")
    console.print(f"{config.name}: {count} of the serial loop ...")
    return [row["reward/mean"] for row in train_serially(config).metrics]


def print_rows(golden: Golden, rows: Sequence[Row], console: Console) -> None:
    """Print both curves and what came of the comparison."""
    table = borderless(f"mean reward, {golden.config}")
    for heading in ("iteration", "kept", "now", "difference", ""):
        table.add_column(heading, justify="right")
    for number, row in enumerate(rows, start=1):
        cells = ["-" if v is None else f"{v:.4f}" for v in (row.kept, row.measured)]
        both = row.kept is not None and row.measured is not None
        change = f"{(row.measured or 0) - (row.kept or 0):+z.4f}" if both else "-"
        table.add_row(str(number), *cells, change, "" if row.holds else "differs")
    console.print(table)
    num_off = sum(not row.holds for row in rows)
    console.print(
        f"kept with torch {golden.torch}, now {torch.__version__}; tolerance {golden.tolerance}: "
        + (f"{num_off} of {len(rows)} iterations differ" if num_off else "the curves agree"),
        markup=False,
    )


def main(write: bool, path: Path = GOLDEN_FILE) -> int:
    """Run the main job for a while and compare its rewards with those that are kept.

    Args:
        write: keep the new ones instead.
        path: of the kept ones.

    Returns:
        1 if they differ, else 0.

    Raises:
        UserError: the kept curve cannot be read or written.
        RunFailedError: a reward to be kept is NaN or infinite.
    """
    console = terminal()
    golden = None if write else read_golden(path)  # a mistake shows before the run
    config = golden_config()
    rewards = measure(config, console)
    if golden is None:
        golden = write_golden(path, config, rewards)
        console.print(f"written: {path}", markup=False)
    rows = compare(golden, rewards)
    print_rows(golden, rows, console)
    return 0 if all(row.holds for row in rows) else 1
