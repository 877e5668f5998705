"""Draws of prompts: which an iteration has, without replacement, and which may take their place."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from digen_core.config.run import RunConfig
from digen_core.data.prompts import Prompt


def prompts_with_refills(
    config: RunConfig, prompts: Sequence[Prompt], iteration: int
) -> list[Prompt]:
    """Return the prompts of an iteration's groups, and of those that may take their place.

    With candidates those of a group of them come first, which the group itself takes the place of.
    """
    count, refill, seed = config.rollout.prompts_per_iteration, config.rollout.refill, config.seed
    own = prompts_of_iteration(prompts, iteration, count, seed=seed)
    every = [*own, *prompts_of_refills(prompts, own, iteration, refill, seed=seed)]
    every = emptied(every, iteration, config.prompts.empty_fraction, seed=seed)
    if config.rollout.screening is None:
        return every
    rounds = (every[start : start + count] for start in range(0, len(every), count))
    return [prompt for round_ in rounds for prompt in (*round_, *round_)]


def emptied(
    prompts: Sequence[Prompt], iteration: int, fraction: float, *, seed: int
) -> list[Prompt]:
    """Return the prompts of an iteration's groups, some of which a model is not given.

    Source: the program of Diffusion-DPO (arXiv:2311.12908), which gives an empty text in place of a
    prompt with a probability of 0.2.

    Args:
        prompts: of the groups, in their order.
        iteration: from 0.
        fraction: the probability.
        seed: of the run.
    """
    if not fraction:
        return [*prompts]
    from digen_core.seeding import EMPTIED_PROMPTS, numpy_generator_for

    drawn = numpy_generator_for(seed, EMPTIED_PROMPTS, iteration).random(len(prompts)) < fraction
    return [
        replace(prompt, is_emptied=bool(is_emptied))
        for prompt, is_emptied in zip(prompts, drawn, strict=True)
    ]


def prompts_of_iteration(
    prompts: Sequence[Prompt], iteration: int, count: int, *, seed: int
) -> list[Prompt]:
    """Return the prompts of an iteration: an endless pass in shuffled epochs, ``count`` at a time.

    An epoch has as many draws as there are prompts, in an order made from (seed, epoch) alone.
    Every prompt is drawn once in it; with weights, as often as its share of them says, rounded up
    or down so that the mean over epochs is that share. An iteration that crosses an epoch's end
    continues into the next epoch's order.
    """
    orders: dict[int, NDArray[np.intp]] = {}
    picked = []
    for position in range(iteration * count, (iteration + 1) * count):
        epoch, index = divmod(position, len(prompts))
        if epoch not in orders:
            orders[epoch] = _order(np.array([p.weight for p in prompts]), seed, epoch)
        picked.append(prompts[orders[epoch][index]])
    return picked


def _order(weights: NDArray[np.float64], seed: int, epoch: int) -> NDArray[np.intp]:
    """Return the prompts' indices in the order of an epoch, as many as there are prompts.

    The copies of a prompt are spread evenly: copy j of c lies at (j + u) / c of the epoch, u being
    the prompt's place in the shuffle. Equal weights leave the shuffle as it is.
    """
    # Reading prompts must not cost torch, which seeding imports.
    from digen_core.seeding import PROMPT_ORDER, numpy_generator_for

    generator = numpy_generator_for(seed, PROMPT_ORDER, epoch)
    shuffled: NDArray[np.intp] = generator.permutation(len(weights))
    if (weights == weights[0]).all():
        return shuffled
    counts = _systematic_counts(weights[shuffled], generator.random())
    owner = np.repeat(np.arange(len(weights)), counts)
    copy = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    place = (copy + (owner + 0.5) / len(weights)) / counts[owner]
    return shuffled[owner[np.argsort(place, kind="stable")]]


def _systematic_counts(weights: NDArray[np.float64], offset: float) -> NDArray[np.intp]:
    """Return how often each of n items is drawn in n draws, by systematic sampling.

    Laid end to end the weights are a line that is cut n times, evenly, from a random offset on: an
    item gets n w / sum(w) draws, rounded up or down, and exactly that in the mean.

    Args:
        weights: [n], some above 0.
        offset: in [0, 1).
    """
    ends = np.cumsum(weights)
    cuts = (offset + np.arange(len(weights))) * (ends[-1] / len(weights))
    last = int(np.flatnonzero(weights)[-1])  # rounding may put the last cut past the line's end
    drawn = np.minimum(np.searchsorted(ends, cuts, side="right"), last)
    return np.bincount(drawn, minlength=len(weights))


def prompts_of_refills(
    prompts: Sequence[Prompt], own: Sequence[Prompt], iteration: int, rounds: int, *, seed: int
) -> list[Prompt]:
    """Return the prompts that may take the place of an iteration's own, round after round.

    Group g of N is replaced by group g + N, that one by g + 2 N, so that it does not matter in
    which order groups are found to need it. They are the other prompts, in an order drawn for the
    iteration, again and again if there are few; the own ones only if there are no others.
    """
    if not rounds:
        return []
    from digen_core.seeding import REFILL, numpy_generator_for

    drawable = [prompt for prompt in prompts if prompt.weight]
    texts = {prompt.text for prompt in own}  # of a million others few are compared in full
    others = [p for p in drawable if p.text not in texts or p not in own] or drawable
    order = numpy_generator_for(seed, REFILL, iteration).permutation(len(others))
    return [others[order[place % len(others)]] for place in range(rounds * len(own))]
