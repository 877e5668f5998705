"""Packs for tests, cut from a pool as the controller does."""

from digen_core.control.packing import PairPool, pairs_by_step
from digen_core.control.protocol import Pack


def make_packs(fragments, steps, *, iteration, pack_size):
    """Return packs of at most ``pack_size`` pairs that hold every pair exactly once."""
    pool = PairPool()
    for fragment in fragments:
        pool.add(pairs_by_step(fragment, dict.fromkeys(steps, fragment.samples)))
    packs = []
    while pool.num_pairs:
        packs.append(Pack(iteration, len(packs), pool.take(pack_size)))
    return packs
