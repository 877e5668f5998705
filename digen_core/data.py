"""Prompts: read them once, and deal them to iterations without replacement."""

from collections.abc import Sequence
from pathlib import Path

from digen_core.config import ConfigError


def read_prompts(path: str) -> list[str]:
    """Return the non-empty lines of a text file.

    Raises:
        ConfigError: the file cannot be read or holds no prompt.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the prompt file {path}: {error}") from error
    prompts = [line.strip() for line in lines if line.strip()]
    if not prompts:
        raise ConfigError(f"the prompt file {path} holds no prompt; write one a line")
    return prompts


def prompts_of_iteration(prompts: list[str], iteration: int, count: int, *, seed: int) -> list[str]:
    """Return the prompts of an iteration: an endless pass in shuffled epochs, ``count`` at a time.

    Every prompt is drawn once before any is drawn again; an iteration that crosses an epoch's end
    goes on into the next epoch's order.
    """
    # Reading prompts must not cost torch, which seeding imports.
    from digen_core.seeding import PROMPT_ORDER, numpy_generator_for

    picked = []
    for position in range(iteration * count, (iteration + 1) * count):
        epoch, index = divmod(position, len(prompts))
        order = numpy_generator_for(seed, PROMPT_ORDER, epoch).permutation(len(prompts))
        picked.append(prompts[order[index]])
    return picked


def prompts_of_refills(
    prompts: list[str], own: Sequence[str], iteration: int, rounds: int, *, seed: int
) -> list[str]:
    """Return the prompts that may take the place of an iteration's own, round after round.

    Group g of N is replaced by group g + N, that one by g + 2 N, so that it does not matter in
    which order groups are found to need it. They are the other prompts, in an order drawn for the
    iteration, again and again if there are few; the own ones only if there are no others.
    """
    if not rounds:
        return []
    from digen_core.seeding import REFILL, numpy_generator_for

    others = [prompt for prompt in prompts if prompt not in own] or prompts
    order = numpy_generator_for(seed, REFILL, iteration).permutation(len(others))
    return [others[order[place % len(others)]] for place in range(rounds * len(own))]
