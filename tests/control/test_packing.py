"""Packs: every pair exactly once, none larger than asked."""

import hypothesis.strategies as st
from hypothesis import given

from digen_core.control.packing import make_packs
from digen_core.control.protocol import Fragment, PairBlock


def fragment(group: int, num_samples: int) -> Fragment:
    return Fragment(iteration=0, group=group, index=0, first_sample=0, num_samples=num_samples)


def test_packs_by_hand():
    # 2 fragments of 3 samples at steps 4 and 7 make 12 pairs; packs of 5 cut across both.
    a, b = fragment(0, 3), fragment(1, 3)
    packs = make_packs([a, b], [4, 7], iteration=0, pack_size=5)
    assert [pack.blocks for pack in packs] == [
        (PairBlock(a, 4, 0, 3), PairBlock(a, 7, 0, 2)),
        (PairBlock(a, 7, 2, 1), PairBlock(b, 4, 0, 3), PairBlock(b, 7, 0, 1)),
        (PairBlock(b, 7, 1, 2),),
    ]
    assert [pack.index for pack in packs] == [0, 1, 2]


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=5),
    st.lists(st.integers(0, 20), min_size=1, max_size=5, unique=True),
    st.integers(1, 40),
)
def test_every_pair_is_in_exactly_one_pack(sizes, steps, pack_size):
    fragments = [fragment(group, size) for group, size in enumerate(sizes)]
    packs = make_packs(fragments, steps, iteration=0, pack_size=pack_size)
    pairs = [
        (block.fragment.group, block.step, row)
        for pack in packs
        for block in pack.blocks
        for row in range(block.first_row, block.first_row + block.num_rows)
    ]
    expected = {
        (group, step, row) for group, n in enumerate(sizes) for step in steps for row in range(n)
    }
    assert len(pairs) == len(expected)
    assert set(pairs) == expected
    assert all(pack.num_pairs == pack_size for pack in packs[:-1])
    assert packs[-1].num_pairs <= pack_size
