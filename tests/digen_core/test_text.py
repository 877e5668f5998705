"""Texts and numbers, fit to be shown."""

from digen_core.inputs.text import number_of


def test_one_of_what_is_not_several():
    assert [number_of(n, "iteration") for n in (0, 1, 2)] == [
        "0 iterations",
        "1 iteration",
        "2 iterations",
    ]
    assert [number_of(n, "entry", "entries") for n in (1, 2)] == ["1 entry", "2 entries"]
