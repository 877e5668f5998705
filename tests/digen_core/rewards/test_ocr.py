import socket

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont

from digen_core.config.rewards.verifiers import OcrConfig
from digen_core.rewards.ocr import Ocr, agreement, quoted_text, wanted_text


def picture(text: str, size: int = 30) -> torch.Tensor:
    """Return an image [3, 96, 256] that shows a text."""
    image = Image.new("RGB", (256, 96), "white")
    font = ImageFont.load_default(size)
    ImageDraw.Draw(image).text((16, 24), text, fill=(160, 20, 20), font=font)
    return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1) / 255


@pytest.fixture(scope="module")
def reward() -> Ocr:
    return Ocr(OcrConfig(), torch.device("cpu"))


@pytest.mark.parametrize(
    ("wanted", "read", "score"),
    [
        ("Open", "open", 1.0),
        ("Grand Opening", "GRANDOPENING", 1.0),
        ("open", "we are Open today", 1.0),  # contained
        ("open", "", 0.0),
        ("open", "0pen", 0.75),  # one of four letters
        ("kitten", "sitting", 0.5),  # distance 3 of 6
        ("ab", "something else altogether", 0.0),  # no less than 0
        ("2 + 2", "2+3", 1 - 1 / 3),
    ],
)
def test_agreement_by_hand(wanted, read, score):
    assert agreement(wanted, read) == pytest.approx(score, abs=1e-15)


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ('a sign that says "Open"', "Open"),
        ('"One" above "Two"', "One"),
        ("a banner “Grand Opening” over a door", "Grand Opening"),
        ('a shop\'s "No. 5"', "No. 5"),
    ],
)
def test_the_wanted_text_is_the_first_in_quotes(prompt, text):
    assert quoted_text(prompt) == text


def test_the_wanted_text_may_be_in_the_metadata():
    assert wanted_text('a sign that says "Open"', {"text": "007"}, "text") == "007"
    assert wanted_text('a sign that says "Open"', {"text": "007"}, None) == "Open"
    for metadata in ({}, {"text": None}, {"text": 7}, {"text": " "}):
        with pytest.raises(ValueError, match=r"its 'text' is .*, but must be the text to be read"):
            wanted_text("a sign", metadata, "text")


@pytest.mark.parametrize(
    "prompt", ["a sign", 'a 5" screen', 'a sign that says ""', '" "', "it's 'x'"]
)
def test_a_prompt_without_quoted_text_is_refused(prompt):
    with pytest.raises(ValueError, match="quotes no text to be read; write it in double quotes"):
        quoted_text(prompt)


def test_rendered_text_is_read_without_a_network(reward, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    texts = ["HELLO WORLD", "HELLO WORLD", "HELLO WORLD", "HELLO WORLD"]
    images = torch.stack([picture(t) for t in ("HELLO WORLD", "HELLO WORD", "", "bicycle")])
    found = reward(images, [f'a sign that says "{text}"' for text in texts])
    assert found["exact"].tolist() == [1, 0, 0, 0]
    assert found["score"][:3].tolist() == [1.0, 0.9, 0.0]  # HELLOWORLD has ten letters
    assert found["score"][3] < 0.5


def test_what_the_engine_is_not_sure_of_is_unread():
    sure = Ocr(OcrConfig(min_confidence=1.0), torch.device("cpu"))
    found = sure(picture("HELLO WORLD", 12)[None], ['"HELLO WORLD"'])
    assert found["score"].tolist() == [0.0]
