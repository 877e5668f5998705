"""The spans of a run while it goes on."""

from math import nan

from digen_core.records import Span
from digen_core.trace.live import LiveTrace
from digen_core.trace.windows import Window, iteration_windows
from support.trace_schedules import denoise, span


def asked(task, device, queued, iteration=1, kind="denoise"):
    return Span(iteration, task, kind, device, queued, nan, nan)


def times(spans):
    return {(s.task, s.device): (s.started, s.ended) for s in spans}


def test_a_window_has_its_neighbours_and_no_more():
    trace = LiveTrace()
    for iteration in range(8):
        done = denoise("rollout-0", iteration, iteration + 1, iteration=iteration)
        trace.end(done, done)
    assert [s.iteration for s in trace.around(6, 8.0)] == [5, 6, 7]
    # what was published late still finds its own
    assert [s.iteration for s in trace.around(4, 8.0)] == [3, 4, 5, 6, 7]
    assert [s.iteration for s in trace.around(1, 8.0)] == [2, 3, 4, 5, 6, 7]  # 0, 1 are dropped


def test_a_task_that_has_not_ended_runs_since_the_one_before_it():
    trace = LiveTrace()
    load = span("push", "rollout-0", 3, 4)  # is no work: tasks run beside it
    for done in (span("score", "rollout-0", 1, 3), load):
        trace.end(done, done)
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
    trace.end(running, Span(1, "next", "denoise", "rollout-0", 2.0, 2.5, 4.0))
    assert times(trace.around(1, 5.0)) == {("next", "rollout-0"): (2.5, 4.0)}


def test_a_lost_device_runs_nothing():
    trace = LiveTrace()
    lost = asked("next", "rollout-0", 2.0)
    trace.begin(lost)
    trace.begin(asked("next", "rollout-1", 2.0))
    trace.forget(lost)
    assert times(trace.around(1, 5.0)) == {("next", "rollout-1"): (2.0, 5.0)}


def test_a_task_of_a_pool_ended_on_one_of_its_workers():
    trace, waiting = LiveTrace(), asked("score", "judges", 1.0, kind="score")
    trace.begin(waiting)
    done = Span(1, "score", "score", "judges-1", 1.0, 2.0, 3.0)
    trace.end(waiting, done)
    assert trace.around(1, 9.0) == [done]


def test_an_iteration_that_is_done_again_has_its_time_from_when_it_is():
    """As where the run went back to its last checkpoint by itself."""
    trace = LiveTrace()
    for iteration, started in ((4, 10.0), (5, 20.0), (6, 30.0)):
        done = denoise("rollout-0", started, started + 10, iteration=iteration)
        trace.end(done, done)
    trace.begin(asked("lost", "rollout-0", 35.0, iteration=6))
    trace.forget_from(5)
    again = denoise("rollout-0", 500.0, 510.0, iteration=5)
    trace.end(again, again)
    assert iteration_windows(trace.around(5, 510.0))[5] == Window(500.0, 510.0)
