"""Which sums of gradients a device pulls, and who adds up those of another site before."""

import pytest

from digen_core.control.protocol import Reduce

SITES = {"a0": "a", "a1": "a", "b0": "b", "b1": "b", "c0": "c", "x0": "", "x1": ""}


@pytest.mark.parametrize(
    ("devices", "pulled"),
    [
        (("a0",), []),
        (("a0", "a1"), [("a1",)]),
        (("a0", "b0", "b1"), [("b0", "b1")]),
        (("a1", "b1", "c0"), [("a1",), ("b1",), ("c0",)]),
        (("a0", "a1", "b0", "b1", "c0"), [("a1",), ("b0", "b1"), ("c0",)]),
        (("x0", "x1"), [("x0",), ("x1",)]),  # nobody knows where they are
    ],
)
def test_sums_of_another_site_are_added_up_there(devices, pulled):
    assert Reduce(0, devices, "a0").pulled(SITES) == pulled


def test_where_no_site_is_known_each_sum_is_pulled_from_its_device():
    assert Reduce(0, ("x0", "x1"), "x0").pulled(SITES) == [("x1",)]
    assert Reduce(0, ("x0", "a0", "a1"), "x0").pulled(SITES) == [("a0",), ("a1",)]
