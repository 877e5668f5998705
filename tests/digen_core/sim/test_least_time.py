"""The least time of work on devices of several kinds, by hand."""

import pytest

from digen_core.sim.least_time import Group, Work, least_seconds

ONE = Group(1, generation=1.0, pack=0.0, pair=1.0)


@pytest.mark.parametrize(
    ("groups", "work", "seconds"),
    [
        ([ONE], Work(3.0), 3),
        ([Group(3, 2.0, 0.0, 1.0)], Work(3.0), 2),
        # The first is better at generating: it does that, the other one trains.
        ([ONE, Group(1, 2.0, 0.0, 1.0)], Work(4.0, 4, 4), 4),
        # 6 s and 2 pairs: the first generates 4 s, the other one 1 s in 2 s after the pairs' 2 s...
        ([ONE, Group(1, 2.0, 0.0, 1.0)], Work(6.0, 2, 2), 14 / 3),
        # 5 pairs in 2 packs of up to 4, with 1 s for a pack.
        ([Group(1, 1.0, 1.0, 1.0)], Work(0.0, 5, 2, 4), 7),
        # The step takes a second of one device, whatever its kind.
        ([Group(2, 0.5, 0.0, 1.0)], Work(6.0, step=1.0), 2),
        # The second one begins too late to help, or not.
        ([ONE, Group(5, 1.0, 0.0, 1.0, wait=4.0)], Work(3.0), 3),
        ([ONE, Group(5, 1.0, 0.0, 1.0, wait=4.0)], Work(10.0), 5),
    ],
)
def test_by_hand(groups, work, seconds):
    assert least_seconds(groups, work) == pytest.approx(seconds)


def test_device_time_before_the_first_pairs_is_lost_once_all_is_generated():
    both = [Group(2, 1.0, 0.0, 1.0)]
    assert least_seconds(both, Work(4.0, 6, 6), pairs_from=1.0) == pytest.approx(5)
    assert least_seconds(both, Work(4.0, 6, 6), pairs_from=3.0) == pytest.approx(6)
