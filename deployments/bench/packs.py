"""The gain of packing pairs on a trainer alone: packs of b pairs against packs of one."""

from collections.abc import Mapping
from statistics import median

from deployments.views.terminal import borderless, terminal
from digen_core.config.run import RunConfig
from digen_core.control.costs import Linear
from digen_core.data.prompts import train_prompts
from digen_core.errors import UserError
from digen_core.planning.profile import LineFit
from tasks.measure import pack_seconds
from tasks.worker.fitting import no_memory


def main(config: RunConfig, rounds: int) -> None:
    """Time packs of 1, 2, 4, ... pairs up to the config's pack size, and fit a + b c.

    Raises:
        UserError: the model cannot be loaded, or not even one pair fits into memory.
    """
    largest = config.train.pack_size
    sizes = sorted({*(2**power for power in range(largest.bit_length())), largest})
    found = pack_seconds(config, train_prompts(config)[0], sizes, rounds)
    if not found:
        raise UserError(no_memory("this device", "train", config.model.size))
    seconds = {size: median(each) for size, each in found.items()}
    print_packs(seconds, fitted(seconds), rounds)


def fitted(seconds: Mapping[int, float]) -> Linear:
    """Return the line a + b c by least squares of relative errors, so that each size counts."""
    fit = LineFit()
    for size, each in seconds.items():
        fit.add(size, each, weight=1 / each**2)
    return fit.line(Linear())


def print_packs(seconds: Mapping[int, float], line: Linear, rounds: int) -> None:
    """Print each size beside the line."""
    table = borderless(f"forward and backward of a pack, medians of {rounds} interleaved rounds")
    for heading in ("pairs", "ms", "ms a pair", "x one pair", "a + b c, ms"):
        table.add_column(heading, justify="right")
    one = seconds[min(seconds)]
    for size, each in seconds.items():
        table.add_row(
            str(size),
            f"{1e3 * each:.1f}",
            f"{1e3 * each / size:.2f}",
            f"{one * size / each:.2f}",
            f"{1e3 * line(size):.1f}",
        )
    console = terminal()
    console.print(table)
    console.print(f"a = {1e3 * line.fixed:.2f} ms a pack, c = {1e3 * line.per_item:.3f} ms a pair")
