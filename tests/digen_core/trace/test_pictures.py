"""Pictures: what is drawn where. How they look is judged by eye."""

from itertools import pairwise
from typing import get_args

import pytest
from matplotlib.colors import to_hex

from digen_core.records import SpanKind
from digen_core.trace.charts import draw_curves, draw_idle
from digen_core.trace.gaps import CAUSES, Gap, idle_gaps
from digen_core.trace.kinds import SPAN_KINDS
from digen_core.trace.style import IDLE_STYLES, KIND_COLOURS
from digen_core.trace.timeline import draw_timeline
from digen_core.trace.windows import Window, iteration_windows
from support.trace_schedules import denoise, devices_of, pipeline, span

WINDOW = Window(100, 110)
SPANS = [
    denoise("rollout-0", 98, 104, group=7, version=2),
    denoise("rollout-0", 104, 106, group=8, version=2),
    span("push", "rollout-0", 107, 109, version=3),
    span("score", "reward-0", 104, 105, group=7),
]
GAPS = [Gap("rollout-0", 106, 110, "push"), Gap("trainer-0", 100, 110, "fill")]


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def bars(figure, colour):
    """Return the (start, end, lane) of all bars of a colour."""
    boxes = [
        path.get_extents()
        for collection in figure.axes[0].collections
        for path in collection.get_paths()
        if to_hex(collection.get_facecolor()[0] if len(collection.get_facecolor()) else "w")
        == colour.lower()
    ]
    return [(box.x0, box.x1, round((box.y0 + box.y1) / 2)) for box in boxes]


def test_every_kind_and_cause_has_a_look_of_its_own():
    assert set(SPAN_KINDS) == set(get_args(SpanKind))
    assert set(KIND_COLOURS) == set(SPAN_KINDS) - {"switch"}  # never drawn as work
    assert set(IDLE_STYLES) == set(CAUSES)
    assert len({style.hatch for style in IDLE_STYLES.values()}) == len(CAUSES)
    colours = [*KIND_COLOURS.values(), *(style.colour for style in IDLE_STYLES.values())]
    assert len(set(colours)) == len(colours)


def test_a_timeline_shows_the_window_of_each_device():
    figure = draw_timeline(SPANS, GAPS, devices_of(1, 1), WINDOW, "iteration 4")
    assert bars(figure, KIND_COLOURS["denoise"]) == [(0, 4, 0), (4, 6, 0)]
    assert bars(figure, KIND_COLOURS["push"]) == [(7, 9, 0)]
    assert bars(figure, KIND_COLOURS["score"]) == []  # reward-0 has no lane
    assert bars(figure, IDLE_STYLES["fill"].colour) == [(0, 10, 1)]
    assert figure.axes[0].get_title(loc="left") == "iteration 4: 10 s, devices busy 30%"
    assert {"g7", "g8", "push", "fill", "60% busy", "0% busy"} == set(texts(figure))


def test_labels_name_the_iteration_where_several_are_shown():
    spans = [denoise("rollout-0", 100, 105), denoise("rollout-0", 105, 110, iteration=1)]
    figure = draw_timeline(spans, [], devices_of(1, 0), WINDOW, "iteration 0")
    assert {"i1 g0", "i2 g0"} <= set(texts(figure))


def test_a_label_that_does_not_fit_is_left_out():
    gaps = [Gap("rollout-0", 100, 100.2, "push"), Gap("rollout-0", 104, 110, "starvation")]
    figure = draw_timeline(SPANS[:1], gaps, devices_of(1, 0), WINDOW, "iteration 0")
    assert "starvation" in texts(figure)
    assert "push" not in texts(figure)


@pytest.mark.parametrize("size", [(2, 2), (20, 12)])
def test_a_picture_has_room_for_all_its_lanes(size, tmp_path):
    spans, devices = pipeline(*size), devices_of(*size)
    window = iteration_windows(spans)[0]
    gaps = idle_gaps(spans, devices, window)
    for figure in (
        draw_timeline(spans, gaps, devices, window, "iteration 0"),
        draw_idle(gaps, {own.name: window.seconds for own in devices}, "iteration 0"),
    ):
        figure.savefig(tmp_path / "picture.png")
        labels = [label.get_window_extent() for label in figure.axes[0].get_yticklabels()]
        labels.sort(key=lambda box: box.y0)
        assert all(low.y1 <= high.y0 for low, high in pairwise(labels))
        assert min(box.x0 for box in labels) >= 0


def test_the_idle_chart_stacks_shares_up_to_one():
    figure = draw_idle(GAPS, {"rollout-0": 10, "trainer-0": 10}, "run")
    widths = {
        bars.get_label(): [bar.get_width() for bar in bars] for bars in figure.axes[0].containers
    }
    assert widths == {
        "busy 30.0%": pytest.approx([0.3, 0.6, 0]),
        "fill 50.0%\nits first inputs are being made": pytest.approx([0.5, 0, 1]),
        "push 20.0%\na version is made or loaded": pytest.approx([0.2, 0.4, 0]),
    }


def test_long_runs_take_whole_seconds():
    figure = draw_idle(GAPS, {"rollout-0": 61_234, "trainer-0": 61_234}, "run")
    assert figure.axes[0].get_title(loc="left") == "run: where 122468 device seconds went"


def test_curves_of_many_components_look_different():
    figure = draw_curves({f"r{n}/score": {1: 0.5, 2: n / 20} for n in range(20)}, {})
    looks = {(own.get_color(), own.get_linestyle()) for own in figure.axes[0].lines}
    assert len(looks) == 20


def test_curves_are_drawn_over_iterations():
    curves = {"reward": {1: 0.5, 3: 0.75}, "shapes/exact": {1: 0.0, 3: 0.25}}
    figure = draw_curves(curves, {"reward": {1: 0.125, 3: 0.25}})
    lines = {line.get_label(): line.get_xydata().tolist() for line in figure.axes[0].lines}
    assert lines == {
        "reward": [[1, 0.5], [3, 0.75]],
        "shapes/exact": [[1, 0.0], [3, 0.25]],
    }
    (band,) = figure.axes[0].collections  # only the reward's errors are known
    bounds = band.get_datalim(figure.axes[0].transData)
    assert (bounds.ymin, bounds.ymax) == (0.375, 1.0)
