"""The reward ``blip_vqa`` against the generation of transformers, on a tiny model."""

import math

import numpy as np
import pytest
import torch

from digen_core.config.rewards.verifiers import BlipVqaConfig
from digen_core.errors import ConfigError
from digen_core.rewards.attempts import PermanentError
from digen_core.rewards.blip.phrases import questions_of
from digen_core.rewards.blip.vqa import BlipVqa
from digen_core.rewards.pixels import as_pixels
from support.tiny_models import BLIP_WORDS, write_blip_vqa

CPU = torch.device("cpu")
IMAGES = torch.rand(3, 3, 40, 56, generator=torch.Generator().manual_seed(0))
PHRASES = [["a red cat", "a big green bench"], ["dogs"], ["a dog", "a cat", "a bench"]]
PROMPTS = [" and ".join(phrases) for phrases in PHRASES]
ROWS = [{"phrases": phrases} for phrases in PHRASES]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return write_blip_vqa(tmp_path_factory.mktemp("blip"))


def probability(folder, image, question, size=32):
    """Return p(yes) / (p(yes) + p(no)) of the first word that transformers generates."""
    from transformers import BlipForQuestionAnswering, BlipProcessor

    model = BlipForQuestionAnswering.from_pretrained(folder).eval()
    processor = BlipProcessor.from_pretrained(folder)
    sizes = {"size": {"height": size, "width": size}}
    inputs = processor(images=image, text=question, return_tensors="pt", **sizes)
    inputs["input_ids"][:, 0] = len(BLIP_WORDS) + 1  # what questions begin with
    made = model.generate(
        **inputs, interpolate_pos_encoding=True, max_new_tokens=1, do_sample=False, num_beams=1,
        output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    yes, no = made.logits[0][0, [BLIP_WORDS.index("yes"), BLIP_WORDS.index("no")]].double().exp()
    return float(yes / (yes + no))


@pytest.mark.parametrize("size", [None, 48])
def test_the_score_is_the_product_of_what_is_generated(folder, size):
    found = BlipVqa(BlipVqaConfig(path=folder, image_size=size), CPU)(IMAGES, PROMPTS, ROWS)
    wanted = [
        math.prod(probability(folder, image, f"{phrase}?", size or 32) for phrase in phrases)
        for image, phrases in zip(as_pixels(IMAGES), PHRASES, strict=True)
    ]
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert len({round(score, 4) for score in wanted}) == 3
    assert all(0.001 < score < 0.999 for score in wanted)


def test_batches_and_neighbours_change_nothing(folder):
    def score(rows, images, **options):
        return BlipVqa(BlipVqaConfig(path=folder, **options), CPU)(images, PROMPTS, rows)

    whole = score(ROWS, IMAGES)
    torch.testing.assert_close(score(ROWS, IMAGES, batch_size=2), whole, rtol=1e-5, atol=0)
    torch.testing.assert_close(score(ROWS[2:], IMAGES[2:]), whole[2:], rtol=1e-5, atol=0)
    torch.testing.assert_close(score(ROWS, IMAGES, dtype="bfloat16"), whole, rtol=0.2, atol=0.02)
    assert score([{"phrases": []}, *ROWS[1:]], IMAGES)[0] == 1


def test_questions_are_in_the_words_of_the_model():
    def asked(*phrases):
        return questions_of({"phrases": list(phrases)})

    assert asked("a Red cat", "A dog.", "Rubik's #1 (cube)") == [
        "a red cat?",
        "a dog?",
        "rubik's 1 cube?",
    ]
    assert asked() == []
    assert asked(*map(str, range(10))) == [f"{number}?" for number in range(8)]
    assert asked(" ".join("a" * 60)) == [" ".join("a" * 50)]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "its 'phrases' is None; it must be a list of the noun phrases of the prompt"),
        ({"phrases": "a cat"}, "its 'phrases' is 'a cat'; it must be a list"),
        ({"phrases": ["a cat", " "]}, "its 'phrases' has ' '; each must be a text"),
    ],
)
def test_rows_without_phrases_are_refused(folder, row, message):
    with pytest.raises(ValueError, match=message):
        questions_of(row)
    with pytest.raises(PermanentError, match=message):
        BlipVqa(BlipVqaConfig(path=folder), CPU)(IMAGES[:1], ["a"], [row])


def test_a_model_that_cannot_answer_is_told(folder, tmp_path):
    with pytest.raises(ConfigError, match=r"^the BLIP model \S+nowhere cannot be loaded: "):
        BlipVqa(BlipVqaConfig(path=str(tmp_path / "nowhere")), CPU)
    last = len(BLIP_WORDS) + 1
    path = write_blip_vqa(tmp_path, bos_token_id=last)  # no token is left for questions
    with pytest.raises(ConfigError, match=f"and bos_token_id is {last}; use Salesforce/blip-vqa"):
        BlipVqa(BlipVqaConfig(path=path), CPU)
