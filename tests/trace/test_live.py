"""The spans of a run while it goes on."""

from math import nan

from trace_schedules import denoise, span

from digen_core.records import Span
from digen_core.trace.live import LiveTrace


def asked(task, device, queued, iteration=1, kind="denoise"):
    return Span(iteration, task, kind, device, queued, nan, nan)


def times(spans):
    return {(s.task, s.device): (s.started, s.ended) for s in spans}


def test_a_window_has_its_neighbours_and_no_more():
    trace = LiveTrace()
    for iteration in range(8):
        trace.end(denoise("rollout-0", iteration, iteration + 1, iteration=iteration))
    assert [s.iteration for s in trace.around(6, 8.0)] == [5, 6, 7]
    # what was published late still finds its own
    assert [s.iteration for s in trace.around(4, 8.0)] == [3, 4, 5, 6, 7]
    assert [s.iteration for s in trace.around(1, 8.0)] == [2, 3, 4, 5, 6, 7]  # 0, 1 are dropped


def test_a_task_that_has_not_ended_runs_since_the_one_before_it():
    trace = LiveTrace()
    trace.end(span("score", "rollout-0", 1, 3))
    trace.end(span("push", "rollout-0", 3, 4))  # a load is no work: tasks run beside it
    trace.begin(asked("next", "rollout-0", 2.0))
    trace.begin(asked("after that", "rollout-0", 2.5))
    trace.begin(asked("first", "trainer-0", 4.5))
    trace.begin(asked("push v1", "trainer-1", 1.0, kind="push"))
    found = times(trace.around(0, 5.0))
    assert found["next", "rollout-0"] == (3, 5)
    assert found["first", "trainer-0"] == (4.5, 5)
    assert len(found) == 4


def test_what_ended_is_counted_once():
    trace = LiveTrace()
    running = asked("next", "rollout-0", 2.0)
    trace.begin(running)
    trace.end(Span(1, "next", "denoise", "rollout-0", 2.0, 2.5, 4.0))
    assert times(trace.around(1, 5.0)) == {("next", "rollout-0"): (2.5, 4.0)}


def test_a_lost_device_runs_nothing():
    trace = LiveTrace()
    trace.begin(asked("next", "rollout-0", 2.0))
    trace.begin(asked("next", "rollout-1", 2.0))
    trace.forget("rollout-0")
    assert times(trace.around(1, 5.0)) == {("next", "rollout-1"): (2.0, 5.0)}
