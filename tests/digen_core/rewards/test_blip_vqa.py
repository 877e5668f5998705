"""The reward ``blip_vqa`` against the generation of transformers, on a tiny model."""

import math

import numpy as np
import pytest
import torch

from digen_core.config.rewards.verifiers import BlipVqaConfig, DpgBlipConfig
from digen_core.errors import ConfigError
from digen_core.rewards.attempts import PermanentError
from digen_core.rewards.blip.answers import BlipAnswers
from digen_core.rewards.blip.phrases import phrases_of, questions_of
from digen_core.rewards.blip.vqa import BlipVqa
from digen_core.rewards.dpg.dpg import DpgBlip
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


def test_places_are_no_things():
    """As in the published program: what is left out is none of the first eight."""
    places = "top", "the side", "the left", "the right"
    row = {"phrases": ["the cat", *places, *map(str, range(7)), "Top", "a left"]}
    assert phrases_of(row) == ["the cat", *map(str, range(7))]
    assert phrases_of({"phrases": ["Top", "the left hand"]}) == ["Top", "the left hand"]


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


def between(folder, out, probabilities):
    """Write a BLIP that finds yes so much likelier that it says so about half as often as not."""
    from transformers import BlipForQuestionAnswering, BlipProcessor

    middle = float(np.mean(sorted(probabilities)[1:3]))
    model = BlipForQuestionAnswering.from_pretrained(folder)
    with torch.no_grad():
        bias = model.text_decoder.cls.predictions.bias
        bias[BLIP_WORDS.index("yes")] -= math.log(middle / (1 - middle))
    model.save_pretrained(out)
    BlipProcessor.from_pretrained(folder).save_pretrained(out)
    return str(out)


def test_dpg_bench_is_answered_by_the_same_model(folder, tmp_path):
    """A question is answered yes where yes is the likelier; what depends on a no counts as no."""
    names = "proposition_id", "dependency", "tuple", "question_natural_language"
    texts = ("A cat?", "A red DOG?", "a green bench?", "a big cat, red?", "no dog?")
    rows = [
        dict(zip(names, own, strict=True))
        for own in [
            ([1, 2, 3], ["0", "1", "0"], ["entity - (a)"] * 2 + ["global (b)"], [*texts[:3]]),
            ([1, 2], ["0", "0"], ["attribute (c)", "other (d)"], [*texts[3:]]),
        ]
    ]
    images, asked = IMAGES[:2], [[text.lower() for text in row[names[3]]] for row in rows]
    first = BlipAnswers(BlipVqaConfig(path=folder), CPU).probabilities(images, asked)
    own = between(folder, tmp_path, [each for few in first for each in few])
    answers = BlipAnswers(BlipVqaConfig(path=own), CPU).probabilities(images, asked)
    for image, texts, found in zip(as_pixels(images), asked, answers, strict=True):
        expected = [probability(own, image, text) for text in texts]
        assert found == pytest.approx(expected, rel=1e-5)
    yes = [[own > 0.5 for own in of_them] for of_them in answers]
    assert {own for of_them in yes for own in of_them} == {True, False}
    found = DpgBlip(DpgBlipConfig(path=own), CPU)(images, ["x", "y"], rows)
    (cat, dog, bench), (big, no) = yes
    assert found["score"].tolist() == [(cat + (cat and dog) + bench) / 3, (big + no) / 2]
    assert found["entity_yes"].tolist() == [cat + dog, 0]
    assert found["other_yes"].tolist() == [0, no]
    with pytest.raises(PermanentError, match="each must be a list of one value"):
        DpgBlip(DpgBlipConfig(path=folder), CPU)(images[:1], ["x"], [{}])


def test_a_model_that_cannot_answer_is_told(folder, tmp_path):
    with pytest.raises(ConfigError, match=r"^the BLIP model \S+nowhere cannot be loaded: "):
        BlipVqa(BlipVqaConfig(path=str(tmp_path / "nowhere")), CPU)
    last = len(BLIP_WORDS) + 1
    path = write_blip_vqa(tmp_path, bos_token_id=last)  # no token is left for questions
    with pytest.raises(ConfigError, match=f"and bos_token_id is {last}; use Salesforce/blip-vqa"):
        BlipVqa(BlipVqaConfig(path=path), CPU)
    with pytest.raises(ConfigError, match=r"^the BLIP model \S+nowhere cannot be loaded: "):
        DpgBlip(DpgBlipConfig(path=str(tmp_path / "nowhere")), CPU)
