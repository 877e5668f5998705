"""The pictures of the pages: of which run they are, and that every one has a way to be made."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from deployments.bench import training
from deployments.bench.pictures import (
    BEFORE_AFTER,
    PICTURES,
    TIMELINE,
    draw_timeline_of,
    join_grids,
    left_alone,
)
from digen_core.config.run import RunConfig
from digen_core.control.protocol import Device
from digen_core.errors import UserError
from digen_core.records import Span
from digen_core.trace.spans import DEVICES_OF_RUN, SPANS_OF_RUN, write_devices, write_spans
from support.paths import ROOT
from tasks.views.pictures import draw_grid

IMAGES = ROOT / "docs" / "images"


def test_every_picture_of_the_pages_is_made_or_is_of_a_browser():
    assert {path.name for path in IMAGES.iterdir()} == {*PICTURES, *left_alone(IMAGES)}
    assert all(name.startswith("prefect-") for name in left_alone(IMAGES))


def test_every_picture_is_on_a_page():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = {n for page in pages for n in re.findall(r"images/([\w-]+\.png)\)", page.read_text())}
    assert shown == {path.name for path in IMAGES.iterdir()}


def test_the_timeline_is_of_the_iteration_of_median_length(tmp_path):
    (tmp_path / "config.json").write_text(RunConfig().model_dump_json())
    spans, started = [], 0.0
    for iteration, seconds in enumerate((5.0, 1.0, 3.0)):
        times = (started, started, started + seconds)
        spans.append(Span(iteration, "denoise g00", "denoise", "rollout-0", *times))
        started += seconds
    for iteration in range(3):
        write_spans(tmp_path / SPANS_OF_RUN, iteration, [spans[iteration]])
    write_devices(tmp_path / DEVICES_OF_RUN, [Device("rollout-0", frozenset({"rollout"}))])
    said = draw_timeline_of(tmp_path, tmp_path / TIMELINE)
    assert said == f"timeline.png shows iteration 3 of {tmp_path}"
    with Image.open(tmp_path / TIMELINE) as picture:
        assert picture.width > 1000


def test_the_samples_before_stand_at_the_left_of_those_after(tmp_path):
    (tmp_path / "grids").mkdir()
    for tag, colour in (("before", 10), ("after", 200)):
        images = np.full((2, 3, 32, 32, 3), colour, np.uint8)
        draw_grid(tag, ["one", "two"], images).save(tmp_path / "grids" / f"{tag}.png")
    join_grids(tmp_path, tmp_path / BEFORE_AFTER)
    with Image.open(tmp_path / BEFORE_AFTER) as joined:
        middle, last = joined.width // 2, joined.height - 20
        assert joined.getpixel((middle - 20, last)) == (10, 10, 10)
        assert joined.getpixel((joined.width - 20, last)) == (200, 200, 200)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"only": ["prefect-run.png"]}, "--only names 'prefect-run.png'; use some of timeline.png"),
        (
            {"output": Path("taken")},
            "--output is taken, and no such folder can be made: File exists",
        ),
    ],
)
def test_wrong_input_is_refused_before_the_run(tmp_path, monkeypatch, settings, message):
    monkeypatch.chdir(tmp_path)
    Path("taken").touch()
    with pytest.raises(UserError, match=re.escape(message)):
        training.pictures(**settings)
