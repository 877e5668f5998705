"""How samples are dealt over the members of a gang."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from digen_core.config.parallel import ParallelConfig
from digen_core.gang.members import ALONE, Gang

SIZES = st.sampled_from([1, 2, 3, 4, 6, 8])


def members(size: int, degree: int) -> list[Gang]:
    degree = ParallelConfig(context_parallel=degree).degree_of(size)
    return [Gang(rank, size, degree) for rank in range(size)]


@given(SIZES, SIZES, st.integers(0, 20))
def test_each_sample_is_dealt_to_one_share(size, degree, num_rows):
    rows = list(range(num_rows))
    gang = members(size, degree)
    dealt = [
        row for member in gang if member.counts(num_rows) for row in rows[member.own(num_rows)]
    ]
    assert dealt == rows
    for member in gang:
        peer = next(
            other
            for other in gang
            if other.rank % other.context_parallel == 0 and other.share == member.share
        )
        assert member.own(num_rows) == peer.own(num_rows)


@given(SIZES, SIZES, st.integers(1, 20))
def test_each_member_computes_its_samples_or_else_the_first(size, degree, num_rows):
    rows = list(range(num_rows))
    for member in members(size, degree):
        assert rows[member.computed(num_rows)] == (rows[member.own(num_rows)] or [0])


@pytest.mark.parametrize("num_rows", [0, 3])
def test_one_worker_does_all(num_rows):
    assert ALONE.own(num_rows) == slice(0, num_rows)
    assert (ALONE.is_leader, ALONE.counts(1), ALONE.computes_together) == (True, True, False)
