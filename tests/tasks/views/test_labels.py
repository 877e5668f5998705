"""Labels of pictures: any script is readable where a font has it, and stays in its column."""

import numpy as np
import pytest
from matplotlib import get_data_path
from matplotlib.font_manager import fontManager
from PIL.ImageFont import load_default

from tasks.views import labels
from tasks.views.labels import BOXES, MORE, SIZE, font_of, wrapped
from tasks.views.pictures import LABEL_PIXELS, draw_grid

WIDTH = 100


@pytest.fixture(autouse=True)
def _found_anew():
    yield
    labels._font_with.cache_clear()


@pytest.mark.parametrize(
    "text",
    ["a red circle", "une étoile filante", "красный круг", "红色圆圈" * 9, "a 红色圆圈 b" * 9],
)
@pytest.mark.parametrize("num_lines", [1, 2, 30])
def test_no_line_is_wider_and_nothing_is_lost(text, num_lines):
    font = font_of(text)
    lines = wrapped(text, font, WIDTH, num_lines).split("\n")
    assert max(map(font.getlength, lines)) <= WIDTH
    assert len(lines) <= num_lines
    found, whole = "".join(lines).replace(" ", ""), text.replace(" ", "")
    if found != whole:
        assert len(lines) == num_lines
        assert lines[-1].endswith(MORE)
        assert whole.startswith(found.removesuffix(MORE.strip()))


def test_lines_by_hand():
    font = load_default(size=SIZE)  # of which an i is 3 pixels wide, and a blank, too
    assert font.getlength("iiii iiii") == 27
    assert wrapped("iiii iiii iiii", font, 27, 2) == "iiii iiii\niiii"
    assert wrapped("iiii iiii iiii", font, 26, 3) == "iiii\niiii\niiii"
    assert wrapped("iiiiiiiiii ii", font, 12, 9) == "iiii\niiii\nii\nii"
    assert wrapped("", font, 12, 9) == ""


def test_words_of_other_scripts_are_told_apart():
    """Pillow's own font has boxes for both."""
    black = np.zeros((1, 1, 96, 96, 3), dtype=np.uint8)
    one, other = (np.asarray(draw_grid("", [text], black)) for text in ("круг", "жлоб"))
    assert not np.array_equal(one, other)
    assert np.array_equal(one[:, LABEL_PIXELS:], other[:, LABEL_PIXELS:])


def test_the_font_with_most_of_the_letters_is_taken(monkeypatch, tmp_path):
    broken, serif = tmp_path / "broken.ttf", f"{get_data_path()}/fonts/ttf/STIXGeneral.ttf"
    broken.write_text("no font")
    listed = [own for own in fontManager.ttflist if own.fname == serif]
    gone = [
        type(listed[0])(fname=str(path), name="A", weight=400)
        for path in (broken, tmp_path / "none")
    ]
    boxes = [own for own in fontManager.ttflist if own.name.startswith(BOXES)]
    assert boxes
    monkeypatch.setattr(fontManager, "ttflist", [*boxes, *gone, *listed])
    assert font_of("жук").path == serif
    assert font_of("红色").getname() == load_default(size=SIZE).getname()
