"""What a parameter holds, from its rows: that of the whole one, and what differs from it."""

import numpy as np
import pytest

from digen_core.gang.members import ALONE
from digen_core.training.contents import added, contents_of, differing
from digen_core.transport.fingerprint import content_of

WHOLE = np.arange(12, dtype=np.float32).reshape(6, 2)


@pytest.mark.parametrize("cuts", [(), (2,), (1, 4)])
def test_rows_add_up_to_the_whole_however_it_is_cut(cuts):
    starts = [0, *cuts]
    parts = zip(starts, np.split(WHOLE, cuts), strict=True)
    assert added([content_of(rows, start) for start, rows in parts]) == content_of(WHOLE)


def test_rows_in_other_places_do_not():
    upper, lower = np.split(WHOLE, 2)
    assert added([content_of(lower), content_of(upper, 3)]) != content_of(WHOLE)


def test_what_differs_is_named():
    held = {"a": WHOLE, "b": WHOLE + 1}
    contents = contents_of(held, ALONE)
    fingerprints = {name: content.fingerprint for name, content in contents.items()}
    assert differing(contents, fingerprints, ALONE) == []
    assert differing(contents, fingerprints | {"b": fingerprints["a"]}, ALONE) == ["b"]
