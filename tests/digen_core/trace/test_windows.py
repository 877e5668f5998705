import pytest

from digen_core.trace.windows import Union, Window, extent, iteration_windows
from support.trace_schedules import span


def test_an_iteration_begins_when_its_first_task_is_asked_for():
    spans = [
        span("push", "a", 0, 1, iteration=-1),
        span("encode", "a", 2, 3, iteration=0, queued=1),
        span("push", "a", 6, 7, iteration=0),
        span("denoise", "a", 10, 11, iteration=1, queued=9),
    ]
    assert iteration_windows(spans) == {0: Window(1, 7), 1: Window(9, 11)}


def test_an_iteration_that_began_in_the_tail_of_another_has_the_time_after_it():
    spans = [
        span("denoise", "a", 0, 4, iteration=0),
        span("denoise", "a", 4, 9, iteration=1),
        span("train", "b", 4, 6, iteration=0),
        span("train", "b", 9, 12, iteration=1),
    ]
    assert iteration_windows(spans) == {0: Window(0, 6), 1: Window(6, 12)}


def test_pushes_and_switches_that_name_no_iteration_serve_one():
    spans = [
        span("push", "a", 0, 1, iteration=-1),
        span("denoise", "a", 2, 3, iteration=0),
        span("switch", "a", 3, 4, iteration=-1),
        span("train", "a", 4, 5, iteration=0),
        span("step", "a", 5, 6, iteration=0),
        span("push", "b", 7, 8, iteration=-1),
        span("switch", "a", 9, 10, iteration=-1),
        span("denoise", "a", 10, 12, iteration=1),
    ]
    assert iteration_windows(spans) == {0: Window(2, 8), 1: Window(9, 12)}


def test_a_union_merges_windows_that_touch_and_ignores_empty_ones():
    union = Union([Window(4, 6), Window(0, 2), Window(2, 3), Window(5, 5.5), Window(8, 8)])
    inside = [moment for moment in range(10) if moment in union]
    assert inside == [0, 1, 2, 4, 5]
    assert union.edges(Window(0, 10)) == [0, 3, 4, 6]
    assert union.edges(Window(1, 6)) == [3, 4]


def test_the_extent_of_spans_is_from_the_first_start_to_the_last_end():
    assert extent([span("train", "a", 1, 5), span("train", "b", 2, 3)]) == Window(1, 5)
    with pytest.raises(ValueError, match="no spans"):
        extent([])
