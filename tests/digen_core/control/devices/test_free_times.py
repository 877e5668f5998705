"""When devices finish pairs together, against water filling device by device."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from digen_core.control.devices.free_times import FreeTimes

DEVICES = st.lists(
    st.tuples(st.sampled_from([0.0, 1.5, 3.0]) | st.floats(0, 5000), st.floats(0.01, 5)),
    min_size=1,
    max_size=20,
)


def tree_of(devices):
    tree = FreeTimes()
    for device in devices:
        tree.add(*device)
    return tree


def trained_by(devices, time):
    return sum(rate * max(0.0, time - free_at) for free_at, rate in devices)


@pytest.mark.parametrize(
    ("pairs", "devices", "time"),
    [
        (6, [(0, 1), (2, 1)], 4),  # 4 by the first, 2 by the second
        (1, [(0, 1), (2, 1)], 1),  # the second comes too late
        (8, [(0, 3), (0, 1)], 2),  # 6 by the fast one, 2 by the slow one
        (0, [(3, 1), (5, 1)], 3),  # when the first is free
        (2, [(1e7, 1)], 1e7 + 2),  # later than the tree has ticks for
    ],
)
def test_devices_finish_together(pairs, devices, time):
    assert tree_of(devices).trained_at(pairs) == pytest.approx(time)


@given(DEVICES, st.floats(0.1, 1000))
def test_the_pairs_of_all_devices_add_up(devices, pairs):
    end = tree_of(devices).trained_at(pairs)
    assert trained_by(devices, end) == pytest.approx(pairs, abs=1e-5)


@settings(max_examples=200)
@given(DEVICES, DEVICES, st.floats(0, 6000))
def test_devices_that_were_taken_out_do_not_count(devices, others, time):
    tree = tree_of([*devices, *others])
    for device in others:
        tree.remove(*device)
    assert len(tree) == len(devices)
    assert tree.trained_by(time) == pytest.approx(trained_by(devices, time), abs=1e-5)
