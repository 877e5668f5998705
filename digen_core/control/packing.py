"""Deal pairs into packs."""

from collections.abc import Iterable, Sequence

from digen_core.control.protocol import Fragment, Pack, PairBlock


def make_packs(
    fragments: Iterable[Fragment], steps: Sequence[int], *, iteration: int, pack_size: int
) -> list[Pack]:
    """Return packs of at most ``pack_size`` pairs that hold every pair exactly once.

    Pairs go fragment by fragment and step by step, so that a pack touches few fragments; a pack may
    span steps and fragments, and only the last one is smaller than ``pack_size``.
    """
    packs: list[Pack] = []
    blocks: list[PairBlock] = []
    room = pack_size
    for fragment in fragments:
        for step in steps:
            first_row = 0
            while first_row < fragment.num_samples:
                num_rows = min(room, fragment.num_samples - first_row)
                blocks.append(PairBlock(fragment, step, first_row, num_rows))
                first_row += num_rows
                room -= num_rows
                if not room:
                    packs.append(Pack(iteration, len(packs), tuple(blocks)))
                    blocks, room = [], pack_size
    if blocks:
        packs.append(Pack(iteration, len(packs), tuple(blocks)))
    return packs
