"""Labels of pictures: texts of any script, in a font that has their letters, broken into lines."""

from functools import lru_cache
from itertools import takewhile
from typing import Final

from PIL import ImageFont
from PIL.ImageFont import FreeTypeFont

Font = ImageFont.ImageFont | FreeTypeFont

SIZE: Final = 13  # pixels
BOXES: Final = "Last Resort"  # begins the name of a font that has a box for each script
MORE: Final = " ..."


def font_of(text: str) -> Font:
    """Return Pillow's own font, or of a text beyond ASCII one of this machine that has its letters.

    Where none has them all it is the one with the most: boxes stand for the others.
    """
    if text.isascii():
        return ImageFont.load_default(size=SIZE)
    return _font_with(frozenset(text) - {" "})


def wrapped(text: str, font: Font, width: int, num_lines: int) -> str:
    """Break a text into lines, at blanks, or in words that take more than a line, as Chinese does.

    Args:
        text: of which blanks and ends of lines are taken alike.
        font: that it is drawn in.
        width: of a line, in pixels.
        num_lines: at most; the last one says if there would be more.
    """
    lines = [""]
    for word in text[: num_lines * width].split():  # more has no place: a letter takes a pixel
        if font.getlength(longer := f"{lines[-1]} {word}".strip()) <= width:
            lines[-1] = longer
            continue
        lines += [""] * bool(lines[-1])
        for letter in word:
            lines += [""] * (font.getlength(lines[-1] + letter) > width)
            lines[-1] += letter
    if len(lines) > num_lines:
        last = lines[num_lines - 1]
        ends = range(1, len(last) + 1)
        fit = takewhile(lambda end: font.getlength(last[:end] + MORE) <= width, ends)
        lines[num_lines - 1 :] = [last[: max(fit, default=0)].rstrip() + MORE]
    return "\n".join(lines)


@lru_cache
def _font_with(letters: frozenset[str]) -> Font:
    from matplotlib.font_manager import fontManager
    from matplotlib.ft2font import FT2Font

    fonts = [own for own in fontManager.ttflist if not own.name.startswith(BOXES)]
    upright = [own for own in fonts if own.style == "normal" and own.weight == 400]
    upright.sort(key=lambda own: (own.name != "DejaVu Sans", own.name))  # which comes with it
    found, fewest = ImageFont.load_default(size=SIZE), len(letters)
    for own in upright:
        try:
            lacking = len(letters - {*map(chr, FT2Font(own.fname).get_charmap())})
            if lacking < fewest:
                found, fewest = ImageFont.truetype(own.fname, SIZE), lacking
        except (OSError, RuntimeError):  # it is gone, or of pictures in one size
            continue
        if not fewest:
            break
    return found
