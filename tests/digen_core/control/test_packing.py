"""Packs: every pair exactly once, none larger than asked."""

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from digen_core.control.costs import Linear
from digen_core.control.packing import (
    PairPool,
    fewest_worth,
    pairs_by_sample,
    pairs_by_step,
)
from digen_core.control.protocol import Fragment, PairBlock
from support.packs import make_packs


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


def test_a_load_is_taken_by_hand():
    """A load of 4: two pairs of cost 0.5 and two of 1.5; 1 of 3 fits then, and alone any does."""
    cheap, dear = (replace(fragment(group, 3), cost=cost) for group, cost in ((0, 0.5), (1, 1.5)))
    pool = PairPool()
    pool.add([PairBlock(cheap, 0, 0, 2), PairBlock(dear, 0, 0, 3), PairBlock(dear, 1, 0, 1)])
    assert (pool.num_pairs, pool.load) == (6, 7.0)
    assert pool.take(9, 4.0) == (PairBlock(cheap, 0, 0, 2), PairBlock(dear, 0, 0, 2))
    assert pool.take(9, 1.0) == (PairBlock(dear, 0, 2, 1),)
    assert (pool.num_pairs, pool.load) == (1, 1.5)
    assert pool.take(1) == (PairBlock(dear, 1, 0, 1),)
    assert pool.take(1) == ()


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


def test_chosen_samples_are_cut_into_runs_of_rows():
    part = Fragment(iteration=0, group=0, index=1, first_sample=4, num_samples=4)
    # Samples 4, 5 and 7 are rows 0, 1 and 3.
    assert pairs_by_step(part, {2: [4, 5, 7]}) == [
        PairBlock(part, 2, 0, 2),
        PairBlock(part, 2, 3, 1),
    ]
    # Two samples together: both steps of samples 4 and 5, then of sample 7.
    assert pairs_by_sample(part, dict.fromkeys([2, 3], (4, 5, 7)), 2) == [
        PairBlock(part, 2, 0, 2),
        PairBlock(part, 3, 0, 2),
        PairBlock(part, 2, 3, 1),
        PairBlock(part, 3, 3, 1),
    ]


def test_samples_with_steps_of_their_own_are_cut_step_by_step():
    part = Fragment(iteration=0, group=0, index=1, first_sample=4, num_samples=4)
    own = {2: [4, 7], 3: [4, 5], 5: [5, 7]}  # samples 4, 5 and 7 are rows 0, 1 and 3
    assert pairs_by_step(part, own) == [
        PairBlock(part, 2, 0, 1),
        PairBlock(part, 2, 3, 1),
        PairBlock(part, 3, 0, 2),
        PairBlock(part, 5, 1, 1),
        PairBlock(part, 5, 3, 1),
    ]
    assert pairs_by_sample(part, own, 2) == [
        PairBlock(part, 2, 0, 1),
        PairBlock(part, 3, 0, 2),
        PairBlock(part, 5, 1, 1),
        PairBlock(part, 2, 3, 1),
        PairBlock(part, 5, 3, 1),
    ]


def test_packs_of_one_step_take_the_same_samples():
    a, b = fragment(0, 3), fragment(1, 3)
    pool = PairPool()
    for part in (a, b):
        pool.add(pairs_by_sample(part, dict.fromkeys([4, 7], (0, 1, 2)), 3))
    # The first 4 samples: all of a and the first of b, at each of the two steps.
    assert pool.take_by_step(4, 2) == [
        (PairBlock(a, 4, 0, 3), PairBlock(b, 4, 0, 1)),
        (PairBlock(a, 7, 0, 3), PairBlock(b, 7, 0, 1)),
    ]
    assert pool.num_pairs == 4
    assert pool.take_by_step(4, 2) == [(PairBlock(b, 4, 1, 2),), (PairBlock(b, 7, 1, 2),)]
    assert pool.take_by_step(4, 2) == []


@pytest.mark.parametrize(("load", "rows"), [(6.0, 3), (5.9, 2), (3.9, 1), (1.0, 1)])
def test_packs_of_one_step_are_not_above_a_load_but_for_their_first_pair(load, rows):
    dear, cheap = (Fragment(0, index, 0, 0, 3, cost) for index, cost in enumerate([2.0, 0.5]))
    pool = PairPool()
    for part in (dear, cheap):
        pool.add(pairs_by_sample(part, dict.fromkeys([4, 7], (0, 1, 2)), 3))
    expected = [(PairBlock(dear, step, 0, rows),) for step in (4, 7)]
    assert pool.take_by_step(3, 2, load) == expected
    assert pool.num_pairs == 12 - 2 * rows
    while pool.num_pairs:
        assert all(len(pack) for pack in pool.take_by_step(3, 2, load))


def test_pairs_of_one_step_that_came_back_do_not_hold_up_the_others():
    a, b = fragment(0, 3), fragment(1, 3)
    pool = PairPool()
    pool.add([PairBlock(a, 4, 0, 3)])
    pool.add(pairs_by_sample(b, dict.fromkeys([4, 7], (0, 1, 2)), 3))
    assert pool.take_by_step(3, 2) == [(PairBlock(a, 4, 0, 3),), (PairBlock(b, 7, 0, 3),)]
    assert pool.take_by_step(3, 2) == [(PairBlock(b, 4, 0, 3),)]
    assert pool.num_pairs == 0


def test_removed_pairs_leave_the_pool():
    a, b = fragment(0, 3), fragment(1, 3)
    pool = PairPool()
    pool.add(pairs_by_step(a, dict.fromkeys([0, 1], (0, 1, 2))) + pairs_by_step(b, {0: [0, 1, 2]}))
    assert pool.remove(lambda found: found == a) == [PairBlock(a, 0, 0, 3), PairBlock(a, 1, 0, 3)]
    assert pool.num_pairs == 3
    assert pool.take(5) == (PairBlock(b, 0, 0, 3),)


def test_the_fewest_worth_by_hand():
    # 0.9 / n <= 1.25 * (0.9 / 8 + 0.75) - 0.75 = 0.328: n = 3.
    assert fewest_worth(Linear(fixed=0.9, per_item=0.75), 8) == 3
    assert fewest_worth(Linear(per_item=0.75), 8) == 1  # nothing is fixed
    assert fewest_worth(Linear(fixed=1.0), 8) == 7  # all is fixed: 1 / n <= 1.25 / 8
