"""The reward ``dpg``: DPG-Bench's questions, what depends on what, its table, and who is asked."""

import re

import numpy as np
import pytest
import torch

from digen_core.config.rewards.clip import ClipScoreConfig
from digen_core.config.rewards.judges import DpgConfig
from digen_core.data.prompts import Prompt
from digen_core.rewards.dpg.categories import category_shares
from digen_core.rewards.dpg.dpg import Dpg
from digen_core.rewards.dpg.questions import Question, questions_of, score_of
from digen_core.rewards.pixels import as_pixels
from digen_core.rewards.scoring import RewardError, score_images
from support.judge_servers import MODEL, fails, images_of, judging, says, texts_of

CPU = torch.device("cpu")
IMAGES = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def row(*questions):
    """Return the columns of questions: (id, dependency, tuple, text)."""
    names = "proposition_id", "dependency", "tuple", "question_natural_language"
    return dict(zip(names, map(list, zip(*questions, strict=True)), strict=True))


DOG = row(
    ("1", "0", "entity - whole (dog)", "Is there a dog?"),
    ("2", "1", "attribute - color (dog, red)", "Is the dog red?"),
    ("3", " 1, 2", "relation - spatial (dog, mat, on)", "Is it on a mat?"),
    ("4", "0", "global - (photo)", "Is it a photo?"),
)
MAT = row(
    (1, 0, "entity - whole (mat)", "Is there a mat?"), (2, 0, "other - count (mat, ==2)", "2?")
)


def chain(*numbers):
    """Return questions each of which depends on the one with the number before."""
    return [Question(n, (n - 1,) if n > 1 else (), "entity", f"{n}?") for n in numbers]


def test_questions_are_read_as_the_table_has_them():
    dog, red, on, photo = questions_of(DOG)
    assert dog == Question(1, (), "entity", "Is there a dog?")
    assert (red.parents, on.parents) == ((1,), (1, 2))
    assert [own.category for own in (red, on, photo)] == ["attribute", "relation", "global"]
    assert [own.number for own in questions_of(MAT)] == [1, 2]  # numbers, as Parquet has them
    again = row(*zip(*MAT.values(), strict=True), (1, 2, "entity - whole (cat)", "A cat?"))
    assert questions_of(again)[0] == Question(1, (2,), "entity", "A cat?")


@pytest.mark.parametrize(
    ("yes", "score"),
    [
        ("1111", 1.0),
        ("1101", 0.75),
        ("1011", 0.5),  # the relation has a parent that is answered no
        ("0111", 0.25),  # and so have both
        ("0000", 0.0),
    ],
)
def test_what_depends_on_a_no_counts_as_no(yes, score):
    assert score_of(questions_of(DOG), [each == "1" for each in yes]) == score


def test_a_no_goes_down_a_chain_in_the_order_of_the_rows():
    """As in the published program, which reads what it has already set to no."""
    assert score_of(chain(1, 2, 3), [False, True, True]) == 0.0
    assert score_of(chain(3, 2, 1), [True, True, False]) == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tuple": None}, "its columns proposition_id, .* None, .*; each must be a list of one"),
        ({"tuple": []}, "each must be a list of one value for each question"),
        ({"dependency": ["0"]}, "each must be a list of one value for each question"),
        (
            {"dependency": ["0", "7"]},
            "question 2 depends on 7, which is none of its questions 1, 2",
        ),
        ({"dependency": ["0", ""]}, "its dependency has '', which is no whole number"),
        ({"proposition_id": [1, None]}, "its proposition_id has None, which is no whole number"),
        ({"tuple": ["entity - whole (a)", "mood (b)"]}, "question 2 is 'mood .b.', which begins"),
        ({"question_natural_language": ["a?", " "]}, "its question 2 is ' '; write a text"),
    ],
)
def test_rows_without_questions_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        questions_of({**MAT, **changes})


def test_a_category_is_a_mean_over_questions_not_over_prompts():
    more = row(
        (1, 0, "entity - whole (a)", "a?"), (2, 1, "entity - part (b)", "b?"),
    )  # fmt: skip
    prompts = [Prompt("a", more), Prompt("b", MAT)]
    columns = {"entity": [1.5, 0.0], "other": [0.0, 0.25], "global": [0.0, 0.0]}
    by_prompt = {f"mine/{name}_yes": means for name, means in columns.items()}
    rewards = {"mine": DpgConfig(url="http://x/v1", model="m"), "clipscore": ClipScoreConfig()}
    found = category_shares(rewards, prompts, by_prompt)
    assert found == {"mine/entity": 0.5, "mine/other": 0.25}
    assert category_shares(rewards, prompts, {"mine/score": [0.0, 0.0]}) == {}
    assert category_shares({}, [Prompt("c")], {}) == {}


def score(server, metadata, images=IMAGES, **options):
    named = {"url": server.url, "model": MODEL, "backoff_seconds": 0, "max_attempts": 1}
    config = DpgConfig(**named | options)
    prompts = [f"prompt {index}" for index in range(len(metadata))]
    asked = {"dpg": Dpg(config, CPU)}, {"dpg": config}
    found = score_images(*asked, images[: len(metadata)], prompts, metadata)
    return {name.removeprefix("dpg/"): values.tolist() for name, values in found.items()}


def question_in(request):
    return texts_of(request)[1].split("---\n")[1].removesuffix("\n")


def answering(*noes):
    """Return what says no, or nearly, to some questions and yes, barely, to the others."""

    def answer(request):
        return says(yes=0.3, no=0.3) if question_in(request) in noes else says(yes=0.31, no=0.3)

    return answer


def test_each_question_is_asked_about_the_image():
    with judging(answering("Is the dog red?", "2?")) as server:
        found = score(server, [DOG, MAT])
    assert found["score"] == [0.5, 0.5]
    assert {name: values for name, values in found.items() if name.endswith("_yes")} == {
        "global_yes": [1, 0],
        "entity_yes": [1, 1],
        "attribute_yes": [0, 0],
        "relation_yes": [1, 0],  # whatever it depends on
        "other_yes": [0, 0],
    }
    asked = {}
    for request in server.requests:
        ((shown,), _) = images_of(request)
        (index,) = [i for i, own in enumerate(as_pixels(IMAGES)) if np.array_equal(own, shown)]
        asked.setdefault(index, []).append(question_in(request))
    names = "question_natural_language"
    assert {index: sorted(own) for index, own in asked.items()} == {
        0: sorted(DOG[names]),
        1: sorted(MAT[names]),
    }


def test_a_template_may_ask_otherwise(template):
    path = template(
        'score = "pattern"\nuser = "{prompt}: {question}"\npattern = "([01])"\nrange = [0, 1]'
    )
    answers = {"prompt 0: Is there a mat?": "It is 1.", "prompt 0: 2?": "So 0."}
    with judging(lambda request: says(answers[texts_of(request)[1]])) as server:
        found = score(server, [MAT], template=path)
    assert (found["score"], found["entity_yes"]) == ([0.5], [1])


def test_a_sample_has_no_score_without_each_answer():
    with judging(
        lambda request: fails(400)(request) if question_in(request) == "2?" else says(yes=1.0)
    ) as server:
        found = score(server, [DOG, MAT, DOG], on_failure="neutral")
        assert (found["score"], found["failed"]) == ([1.0, 0.0, 1.0], [0, 1, 0])
        with pytest.raises(RewardError, match="answered 400"):
            score(server, [DOG, MAT])
        with pytest.raises(RewardError, match=re.escape("each must be a list of one value")):
            score(server, [{}])
