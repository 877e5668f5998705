"""The share of a device's peak that a model of real size reaches, with random weights."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch
from rich.console import Console

from deployments.views.size import reading_settings
from deployments.views.terminal import borderless, terminal
from digen_core.config.families import FAMILIES
from digen_core.config.run import RunConfig
from digen_core.errors import UserError
from digen_core.models.expert_names import parts_in
from digen_core.models.loading import build_trainable
from digen_core.models.out_of_memory import is_out_of_memory
from digen_core.models.pipeline.policy import PipelinePolicy
from digen_core.models.policy import Condition
from digen_core.planning.model_settings import settings_folder
from digen_core.planning.sizes import Sizes, sizes_of
from tasks.measure import Work, work_seconds

WORDS: Final[dict[Work, str]] = {
    "step": "denoising step, samples",
    "pack": "forward and backward, pairs",
}
CLUSTER_KEYS: Final[dict[Work, str]] = {"step": "mfu_denoise", "pack": "mfu_train"}

_COUNTS: Final = sorted({key for family in FAMILIES.values() for key in family.blocks.values()})
"""What the settings of transformers call the numbers of their blocks."""


@dataclass(frozen=True, slots=True)
class Row:
    """Work on some items: samples at a denoising step, or the pairs of a pack."""

    work: Work
    items: int
    seconds: float
    flops: float  # of all items; a multiplication and an addition are two

    @property
    def tflops(self) -> float:
        """10^12 FLOP a second."""
        return self.flops / self.seconds / 1e12


@dataclass(frozen=True, slots=True)
class Utilization:
    """What a model of real size reached on this machine's device."""

    headline: str
    rows: list[Row]
    left_out: list[tuple[Work, int]]  # what does not fit into memory
    not_begun: list[tuple[Work, int]] = field(default_factory=list)  # there was no time


def main(config: RunConfig, share: float, rounds: int, peak_tflops: float | None) -> None:
    """Time a denoising step of a fragment, and packs of one pair and of the config's pack size.

    Args:
        config: of the run.
        share: of the transformer's blocks that are built, in (0, 1].
        rounds: in which each is timed once, after one that warms up.
        peak_tflops: of the device in the model's dtype, 10^12 FLOP a second; None: not known.

    Raises:
        UserError: the model's settings are not there or do not fit the config, or the model does
            not fit into the device's memory.
    """
    works: list[tuple[Work, int]] = [("step", config.batch_size)]
    works += [("pack", size) for size in sorted({1, config.train.pack_size})]
    measured = measure(config, works, share, rounds)
    console = terminal()
    console.print(measured.headline)
    if measured.rows:
        print_rows(measured.rows, rounds, peak_tflops, console)
    for work, items in measured.left_out:
        console.print(f"left out, as it does not fit into memory: {WORDS[work]}: {items}")


def measure(
    config: RunConfig,
    works: Sequence[tuple[Work, int]],
    share: float,
    rounds: int,
    until: float = inf,
) -> Utilization:
    """Build a model with random weights and time its work, interleaved; the rest as in ``main``.

    Args:
        config: of the run.
        works: each with its number of samples or pairs.
        share: of the transformer's blocks that are built, in (0, 1].
        rounds: in which each is timed once, after one that warms up.
        until: on the monotonic clock, from when nothing more is begun but what ran already.
    """
    with TemporaryDirectory() as temporary, reading_settings(config):
        folder = Path(temporary)
        cut_settings(settings_folder(config.model.path), folder, share)
        sizes = sizes_of(config, folder)
        policy = _built(config, folder)
    found = work_seconds(policy, config, noise_condition(policy), works, rounds, until=until)
    timed = {each: found[each] for each in works if found.get(each)}
    return Utilization(
        _headline(config, policy, sizes, share),
        rows_of(timed, sizes),
        left_out=[each for each in works if each not in found],
        not_begun=[each for each in found if each not in timed],
    )


def cut_settings(folder: Path, out: Path, share: float) -> None:
    """Write the settings of a model with a share of its blocks, at least one of each kind.

    Args:
        folder: with ``transformer/config.json`` and ``vae/config.json`` of diffusers; of two
            experts with the other one's and ``model_index.json``, too.
        out: an empty folder, which gets the same files.
        share: in (0, 1].

    Raises:
        OSError: a file is not there.
        ValueError: the transformer's is not JSON, or does not say how many blocks there are.
    """
    transformers = parts_in(folder)
    for part in (*transformers, "vae"):
        (out / part).mkdir()
        shutil.copy(folder / part / "config.json", out / part)
    if (folder / "model_index.json").is_file():
        shutil.copy(folder / "model_index.json", out)
    for part in transformers:
        file = out / part / "config.json"
        settings = json.loads(file.read_text(encoding="utf-8"))
        if share < 1:
            file.write_text(json.dumps({**settings, **_fewer_blocks(settings, share)}))


def _fewer_blocks(settings: dict[str, Any], share: float) -> dict[str, Any]:
    """Return the settings that say how many blocks there are; SD3's with two attentions come first.

    Raises:
        ValueError: there are none.
    """
    counts = [key for key in _COUNTS if key in settings]
    if not counts:
        raise ValueError("transformer/config.json has no num_layers, of which --blocks is a share")

    def kept(count: int) -> int:
        return min(count, max(1, round(share * count)))

    fewer: dict[str, Any] = {key: kept(settings[key]) for key in counts}
    if dual := settings.get("dual_attention_layers"):
        others = kept(settings["num_layers"] - len(dual))
        fewer["num_layers"] = kept(len(dual)) + others
        fewer["dual_attention_layers"] = list(range(kept(len(dual))))
    return fewer


def _built(config: RunConfig, folder: Path) -> PipelinePolicy:
    try:
        return build_trainable(config, folder)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(
            f"the model does not fit into the memory of model.device {config.model.device!r}; "
            "build a smaller share of its blocks with --blocks"
        ) from error


def noise_condition(policy: PipelinePolicy) -> Condition:
    """Return embeddings [1, ...] as of a prompt that fills its length, normally distributed."""
    return {
        name: torch.randn_like(value) if value.is_floating_point() else torch.ones_like(value)
        for name, value in policy.blank_condition(1).items()
    }


def rows_of(found: dict[tuple[Work, int], list[float]], sizes: Sizes) -> list[Row]:
    """Return each work with its median seconds, and the FLOPs that were counted for it."""
    flops: dict[Work, int] = {"step": sizes.step_flops, "pack": sizes.pair_flops}
    return [
        Row(work, items, median(seconds), items * flops[work])
        for (work, items), seconds in found.items()
    ]


def _headline(config: RunConfig, policy: PipelinePolicy, sizes: Sizes, share: float) -> str:
    device = policy.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    model, blocks = config.model, "all blocks" if share == 1 else f"{share:.3g} of the blocks"
    return (
        f"{model.path} with {blocks}, {sizes.parameters / 1e9:.3g} x 10^9 random parameters, "
        f"{model.width} x {model.height} pixels, {model.dtype} on {name}"
    )


def print_rows(
    rows: Sequence[Row], rounds: int, peak_tflops: float | None, console: Console
) -> None:
    """Print a table, and how its shares of the peak are put into a cluster file.

    Args:
        rows: the larger ones of the same work last.
        rounds: whose medians they are.
        peak_tflops: of the device, 10^12 FLOP a second; None: not known.
        console: to print to.
    """
    table = borderless(f"medians of {rounds} interleaved rounds")
    table.add_column("work")
    for heading in ("items", "ms", "TFLOP", "TFLOP/s", *(["of the peak"] if peak_tflops else [])):
        table.add_column(heading, justify="right")
    for row in rows:
        cells = [str(row.items), f"{1e3 * row.seconds:.1f}", f"{row.flops / 1e12:.3g}"]
        cells.append(f"{row.tflops:.3g}")
        if peak_tflops:
            cells.append(f"{row.tflops / peak_tflops:.1%}")
        table.add_row(WORDS[row.work], *cells)
    console.print(table)
    console.print(_cluster_line(rows, peak_tflops))


def _cluster_line(rows: Sequence[Row], peak_tflops: float | None) -> str:
    """Say what a cluster file says of the largest fragment and pack."""
    if peak_tflops is None:
        return (
            "with --peak-tflops, from the device's data sheet, this prints shares of the peak: "
            "mfu_denoise and mfu_train of a cluster file (docs/sizes.md)"
        )
    shares = {CLUSTER_KEYS[row.work]: row.tflops / peak_tflops for row in rows}
    lines = ", ".join(f"{key} = {share:.3g}" for key, share in shares.items())
    return f"at the top of a cluster file whose devices have tflops = {peak_tflops:g}: {lines}"
