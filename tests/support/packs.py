"""Packs for tests, cut from a pool as the controller does."""

from collections.abc import Iterable, Mapping, Sequence

from digen_core.control.packing import PairPool, pairs_by_step
from digen_core.control.protocol import Fragment, Pack


def make_packs(
    fragments: Iterable[Fragment], steps: Iterable[int], *, iteration: int, pack_size: int
) -> list[Pack]:
    """Return packs of at most ``pack_size`` pairs that hold every pair exactly once."""
    pairs = {fragment: dict.fromkeys(steps, fragment.samples) for fragment in fragments}
    return packs_of(pairs, iteration=iteration, pack_size=pack_size)


def packs_of(
    pairs: Mapping[Fragment, Mapping[int, Sequence[int]]], *, iteration: int, pack_size: int
) -> list[Pack]:
    """Return packs of pairs, given as fragment -> step -> samples that train it."""
    pool = PairPool()
    for fragment, samples in pairs.items():
        pool.add(pairs_by_step(fragment, samples))
    packs: list[Pack] = []
    while pool.num_pairs:
        packs.append(Pack(iteration, len(packs), pool.take(pack_size)))
    return packs
