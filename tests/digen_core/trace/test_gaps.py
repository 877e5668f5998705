"""Idle gaps: each cause by a schedule that shows it, and tiling for any spans at all."""

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from digen_core.control.protocol import Device
from digen_core.trace.gaps import Gap, clip, idle_gaps
from digen_core.trace.kinds import READYING, SPAN_KINDS
from digen_core.trace.windows import Window, iteration_windows
from support.trace_schedules import denoise, devices_of, pipeline, span

ROLLOUT, TRAINER = "rollout-0", "trainer-0"


def gaps_of(device, spans, window=None):
    """Return the (start, end, cause) of a device's gaps, in the first iteration's window."""
    window = Window(*window) if window else iteration_windows(spans)[0]
    gaps = idle_gaps(spans, [Device(device, frozenset({"rollout"}))], window)
    assert all(gap.device == device for gap in gaps)
    return [(gap.started, gap.ended, gap.cause) for gap in gaps]


def test_a_trainer_waits_for_the_first_pairs():
    spans = [
        denoise(ROLLOUT, 0, 4),
        denoise(ROLLOUT, 4, 9, group=1),
        span("score", "reward-0", 4, 5, group=0),
        span("train", TRAINER, 5, 9),
    ]
    assert gaps_of(TRAINER, spans) == [(0, 5, "fill")]


def test_a_trainer_between_packs_starves_while_generation_goes_on():
    spans = [
        denoise(ROLLOUT, 0, 2),
        denoise(ROLLOUT, 2, 8, group=1),
        span("score", ROLLOUT, 2, 2.5, group=0),
        span("train", TRAINER, 2.5, 4),
        span("score", ROLLOUT, 5, 6, group=1),
        span("train", TRAINER, 6, 8),
    ]
    assert gaps_of(TRAINER, spans) == [(0, 2.5, "fill"), (4, 6, "starvation")]


def test_everybody_waits_for_the_score_of_the_last_group():
    spans = [
        denoise(ROLLOUT, 0, 4),
        span("score", "reward-0", 4, 7, group=0, fragment=0),
        span("train", TRAINER, 7, 9),
    ]
    assert gaps_of(TRAINER, spans) == [(0, 4, "fill"), (4, 7, "reward")]
    assert gaps_of(ROLLOUT, spans) == [(4, 7, "reward"), (7, 9, "tail")]


def test_a_rollout_device_has_nothing_left_while_others_generate_and_train():
    spans = [
        denoise(ROLLOUT, 0, 4),
        denoise("rollout-1", 0, 5, fragment=1),
        span("train", TRAINER, 5, 9),
        denoise(ROLLOUT, 9, 12, iteration=1),
    ]
    assert gaps_of(ROLLOUT, spans) == [(4, 9, "tail")]


def test_a_trainer_has_nothing_left_while_another_trains():
    spans = [
        denoise(ROLLOUT, 0, 2),
        span("score", TRAINER, 2, 3),
        span("train", TRAINER, 3, 8),
        span("train", "trainer-1", 3, 6),
        span("reduce", TRAINER, 8, 9),
    ]
    assert gaps_of("trainer-1", spans) == [(0, 2, "fill"), (2, 3, "reward"), (6, 9, "tail")]


def test_a_version_is_waited_for_from_its_step_until_its_load_is_done():
    spans = [
        denoise(ROLLOUT, 0, 4),
        span("train", TRAINER, 4, 6),
        span("step", TRAINER, 6, 8),
        span("push", ROLLOUT, 9, 10, version=1),
        denoise(ROLLOUT, 10, 12, iteration=1, version=1),
    ]
    assert gaps_of(ROLLOUT, spans) == [(4, 6, "tail"), (6, 10, "push")]
    assert gaps_of(TRAINER, spans) == [
        (0, 4, "fill"),
        (8, 9, "orchestration"),
        (9, 10, "push"),
    ]


def test_the_barrier_of_an_iteration_waits_for_the_pushes_to_others():
    spans = [
        span("step", TRAINER, 0, 2),
        span("push", ROLLOUT, 2, 3, version=1),
        span("push", "rollout-1", 2, 5, version=1),
        denoise(ROLLOUT, 6, 8, iteration=1, version=1),
    ]
    assert gaps_of(ROLLOUT, spans, (0, 8)) == [(0, 5, "push"), (5, 6, "orchestration")]


def test_a_stale_trajectory_does_not_wait_for_the_version_that_is_made():
    spans = [
        span("train", TRAINER, 0, 4),
        span("step", TRAINER, 4, 6),
        denoise("rollout-1", 0, 8, iteration=1),
        denoise(ROLLOUT, 5, 7, iteration=1, fragment=1, queued=1),
        span("push", ROLLOUT, 7, 8, version=1),
    ]
    assert gaps_of(ROLLOUT, spans, (0, 8)) == [
        (0, 1, "tail"),
        (1, 5, "orchestration"),
        (7, 8, "push"),
    ]


def test_a_switch_is_idle_time_of_its_own():
    spans = [
        denoise("both-0", 0, 3),
        span("score", "both-0", 3, 3.5),
        span("switch", "both-0", 3.5, 5),
        span("train", "both-0", 5, 8),
    ]
    assert gaps_of("both-0", spans) == [(3.5, 5, "switch")]


@pytest.mark.parametrize(
    ("task", "inputs", "ready"),
    [
        (denoise(ROLLOUT, 9, 10), [span("encode", "rollout-1", 2, 5)], 5),
        (denoise(ROLLOUT, 9, 10, first=3, end=4), [denoise("rollout-1", 2, 6, end=3)], 6),
        (denoise(ROLLOUT, 9, 10, version=4), [span("push", ROLLOUT, 2, 3, version=4)], 3),
        (span("score", ROLLOUT, 9, 10, group=2, fragment=1), [denoise("x", 2, 4, 2, 1)], 4),
        (span("train", TRAINER, 9, 10, queued=8), [span("score", "x", 2, 7, group=2)], 7),
        (span("reduce", TRAINER, 9, 10), [span("train", "x", 2, 4), span("train", "y", 2, 6)], 6),
        (span("step", TRAINER, 9, 10), [span("reduce", "x", 2, 5)], 5),
        (span("publish", TRAINER, 9, 10), [span("step", "x", 2, 5)], 5),
    ],
    ids=lambda value: value.kind if hasattr(value, "kind") else None,
)
def test_a_task_that_has_its_inputs_waits_for_orchestration(task, inputs, ready):
    others = denoise("rollout-9", 0, 10, group=9, fragment=9)  # so that something runs
    last = gaps_of(task.device, [*inputs, others, task], (8, 10))[-1]
    assert last == (8, 9, "orchestration")
    *_, last = gaps_of(task.device, [*inputs, others, task], (0, 10))
    assert last == (ready, 9, "orchestration")


def test_a_pack_that_the_layout_held_back_was_not_ready():
    """At a barrier the pack is asked for after the last score, not after its own group's."""
    spans = [
        denoise(ROLLOUT, 0, 3),
        denoise(ROLLOUT, 3, 6, group=1),
        span("score", ROLLOUT, 3, 3.5, group=0),
        span("score", ROLLOUT, 6, 6.5, group=1),
        span("train", TRAINER, 7, 9, queued=6.75),
    ]
    assert gaps_of(TRAINER, spans) == [
        (0, 6, "fill"),
        (6, 6.5, "reward"),
        (6.5, 7, "orchestration"),
    ]


def test_moments_when_nothing_runs_at_all_are_orchestration():
    spans = [denoise(ROLLOUT, 1, 2, queued=0), span("score", ROLLOUT, 4, 5, group=0, fragment=0)]
    assert gaps_of(TRAINER, spans, (0, 6)) == [
        (0, 1, "orchestration"),
        (1, 2, "tail"),
        (2, 4, "orchestration"),
        (4, 5, "reward"),
        (5, 6, "orchestration"),
    ]


def test_a_push_during_a_denoising_step_costs_nothing():
    spans = [denoise(ROLLOUT, 0, 4), span("push", ROLLOUT, 2, 6), denoise(ROLLOUT, 6, 8)]
    assert gaps_of(ROLLOUT, spans) == [(4, 6, "push")]


def test_a_window_sees_what_lies_outside_it():
    spans = [
        denoise(ROLLOUT, 0, 10),
        span("score", ROLLOUT, 10, 11),
        span("train", "t", 11, 12),
    ]
    assert gaps_of("t", spans, (4, 6)) == [(4, 6, "fill")]
    assert gaps_of(ROLLOUT, spans, (4, 6)) == []


def test_clipped_gaps_are_the_parts_in_the_window():
    gaps = [Gap("a", 0, 2, "fill"), Gap("a", 2, 5, "tail"), Gap("a", 6, 7, "push")]
    found = clip(gaps, {0: Window(1, 6)})
    assert found == {0: [Gap("a", 1, 2, "fill"), Gap("a", 2, 5, "tail")]}


@given(
    st.lists(st.integers(1, 4), max_size=8),
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), max_size=20),
)
def test_gaps_are_looked_at_once_for_all_windows(lengths, stretches):
    edges = [0, *accumulate(lengths)]
    windows = {i: Window(a, b) for i, (a, b) in enumerate(pairwise(edges)) if i % 3}  # some apart
    gaps = [Gap("a", started, started + seconds, "tail") for started, seconds in stretches]
    found = clip(iter(gaps), windows)
    assert found == {i: clip(gaps, {i: window})[i] for i, window in windows.items()}
    for i, window in windows.items():
        seconds = [(max(gap.started, window.started), min(gap.ended, window.ended)) for gap in gaps]
        own = [(gap.started, gap.ended) for gap in found[i]]
        assert own == [(started, ended) for started, ended in seconds if started < ended]


@st.composite
def any_spans(draw):
    moments = st.integers(0, 20)
    spans = []
    for _ in range(draw(st.integers(0, 25))):
        queued, started, ended = sorted(draw(st.tuples(moments, moments, moments)))
        number = st.integers(-1, 2)
        names = ("group", "fragment", "first_step", "end_step", "version")
        fields = {name: draw(number) for name in names}
        kind, device = draw(st.sampled_from(sorted(SPAN_KINDS))), draw(st.sampled_from("abc"))
        spans.append(span(kind, device, started, ended, draw(number), queued, **fields))
    return spans


@given(any_spans(), st.integers(0, 15), st.integers(1, 10))
def test_gaps_and_work_tile_every_window(spans, started, seconds):
    window = Window(started, started + seconds)
    devices = [Device(name, frozenset({"rollout"})) for name in "abd"]
    gaps = idle_gaps(spans, devices, window)
    for device in devices:
        own = [gap for gap in gaps if gap.device == device.name]
        assert all(gap.started < gap.ended for gap in own)
        assert all(a.ended <= b.started for a, b in pairwise(own))
        assert all(a.ended < b.started or a.cause != b.cause for a, b in pairwise(own))
        work = [s for s in spans if s.device == device.name and s.kind not in READYING]
        for second in range(window.started, window.ended):  # all times are whole seconds
            busy = any(s.started <= second < s.ended for s in work)
            idle = [gap for gap in own if gap.started <= second and gap.ended >= second + 1]
            assert len(idle) == (0 if busy else 1)


def test_windows_of_a_run_have_the_same_gaps_as_the_whole_run():
    spans, devices = pipeline(3, 2, num_iterations=3), devices_of(3, 2)
    windows = iteration_windows(spans)
    whole = idle_gaps(spans, devices, Window(windows[0].started, windows[2].ended))
    clipped = clip(whole, windows)
    for iteration, window in windows.items():
        by_device = sorted(idle_gaps(spans, devices, window), key=lambda gap: gap.device)
        assert sorted(clipped[iteration], key=lambda gap: gap.device) == by_device
