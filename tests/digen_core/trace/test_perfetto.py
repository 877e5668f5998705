import json
from collections import defaultdict
from itertools import pairwise

import pytest

from digen_core.trace.gaps import idle_gaps
from digen_core.trace.perfetto import chrome_trace
from digen_core.trace.windows import extent
from support.trace_schedules import denoise, devices_of, pipeline, span


def slices(trace):
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def names(trace, event):
    return {
        (found["pid"], found["tid"]): found["args"]["name"]
        for found in trace["traceEvents"]
        if found["name"] == event
    }


def test_a_span_is_a_slice_in_microseconds_from_the_first_start():
    spans = [
        span("encode", "rollout-0", 1766000000.0, 1766000001.0),
        denoise("rollout-0", 1766000001.5, 1766000003.0, 3, 1, 5, 6, 2, queued=1766000001.25),
    ]
    trace = chrome_trace(spans, devices_of(1, 1))
    slice_ = slices(trace)[1]
    assert (slice_["ts"], slice_["dur"], slice_["cat"]) == (1.5e6, 1.5e6, "denoise")
    assert slice_["args"] == {
        **{"iteration": 0, "group": 3, "fragment": 1, "first_step": 5, "end_step": 6},
        **{"version": 2, "queued_seconds": 0.25},
    }
    assert names(trace, "process_name") == {(1, 0): "rollout-0", (2, 0): "trainer-0"}
    assert names(trace, "thread_name")[slice_["pid"], slice_["tid"]] == "denoise"


def test_spans_of_one_kind_that_overlap_get_threads_of_their_own():
    spans = [
        span("score", "reward-0", 0, 2),
        span("score", "reward-0", 1, 3),
        span("score", "reward-0", 2, 4),
    ]
    trace = chrome_trace(spans, devices_of(1, 0))
    tids = [event["tid"] for event in slices(trace)]
    assert tids[0] == tids[2] != tids[1]
    assert sorted(names(trace, "thread_name").values()) == ["score", "score 2"]
    assert names(trace, "process_name")[2, 0] == "reward-0"  # after the run's own devices


@pytest.fixture(scope="module")
def trace():
    spans, devices = pipeline(3, 2, num_iterations=2), devices_of(3, 2)
    return chrome_trace(spans, devices, idle_gaps(spans, devices, extent(spans)))


def test_a_trace_keeps_the_rules_of_the_format(trace):
    """Of the Trace Event Format: what every event has, and that slices of a thread do not cross."""
    assert json.loads(json.dumps(trace, allow_nan=False)) == trace
    threads = defaultdict(list)
    for event in slices(trace):
        assert {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"} == set(event)
        assert event["ts"] >= 0
        assert event["dur"] >= 0
        threads[event["pid"], event["tid"]].append(event)
    assert set(threads) == set(names(trace, "thread_name"))
    assert {pid for pid, _ in threads} <= {pid for pid, _ in names(trace, "process_name")}
    for events in threads.values():
        for before, after in pairwise(sorted(events, key=lambda event: event["ts"])):
            assert round(1000 * (before["ts"] + before["dur"])) <= round(1000 * after["ts"])


def test_gaps_are_slices_named_by_their_cause(trace):
    idle = [event for event in slices(trace) if event["cat"] == "idle"]
    assert {"fill", "tail", "push", "orchestration"} <= {event["name"] for event in idle}
