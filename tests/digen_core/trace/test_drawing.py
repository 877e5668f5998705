"""Timelines that are drawn in a process of their own."""

import io
import logging

import pytest
from PIL import Image

from digen_core.trace.drawing import draw_apart, is_drawn
from support.trace_schedules import devices_of, pipeline


def test_a_timeline_is_drawn_apart():
    png = draw_apart(pipeline(2, 1, num_iterations=2), devices_of(2, 1), 1).result(timeout=60)
    with Image.open(io.BytesIO(png)) as image:
        assert (image.format, image.mode) == ("PNG", "P")
        assert image.width == 13 * 110
    assert len(png) < 60_000  # it is embedded in pages


def test_a_picture_that_cannot_be_drawn_is_no_picture(caplog):
    spans = pipeline(2, 1)
    with caplog.at_level(logging.WARNING):
        assert draw_apart(spans, devices_of(2, 1), 5).result(timeout=60) == b""
    assert "the run goes on without it: KeyError: 5" in caplog.text


def test_without_a_python_there_is_no_picture(caplog, monkeypatch):
    monkeypatch.setattr("digen_core.trace.drawing.PYTHON", ["no-such-python"])
    with caplog.at_level(logging.WARNING):
        assert draw_apart([], [], 0).result(timeout=60) == b""
    assert "no-such-python" in caplog.text


@pytest.mark.parametrize(
    ("num_iterations", "drawn"), [(1, [0]), (10, [0, 9]), (11, [0, 10]), (22, [0, 10, 20, 21])]
)
def test_the_first_each_tenth_and_the_last_are_drawn(num_iterations, drawn):
    assert [k for k in range(num_iterations) if is_drawn(k, num_iterations)] == drawn
