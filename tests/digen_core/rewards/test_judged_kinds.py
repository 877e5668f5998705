"""The reward ``judged_kinds``: what is asked of each kind of prompt, and what answers are worth."""

import re

import pytest
import torch

from digen_core.config.rewards.judges import JudgedKindsConfig
from digen_core.rewards.kind_questions.reward import JudgedKinds
from digen_core.rewards.kind_questions.texts import KINDS, kind_of, questions_of
from digen_core.rewards.scoring import RewardError, score_images
from support.judge_servers import MODEL, fails, judging, says, texts_of

CPU = torch.device("cpu")
VIDEOS = torch.rand(3, 2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def of(dimension, **info):
    return {"dimension": [dimension, "imaging_quality"], "auxiliary_info": info}


def compared(category, *phrases):
    return {"category": category, "phrases": list(phrases)}


LEFT = {"object_a": "bicycle", "object_b": "car", "relationship": "on the left of"}
ASKED = {
    ("dimension", "object_class"): (
        "a person",
        of("object_class", object_class={"object": "person"}),
        ["Can this be seen: person?"],
        [()],
    ),
    ("dimension", "multiple_objects"): (
        "a bird and a hot dog",
        of("multiple_objects", multiple_objects={"object": "bird and hot dog"}),
        ["Can this be seen: bird?", "Can this be seen: hot dog?"],
        [(), ()],
    ),
    ("dimension", "human_action"): (
        "A person is riding a bike.",
        of("human_action"),
        ["Is this what happens: A person is riding a bike?"],
        [()],
    ),
    ("dimension", "color"): (
        "An Orange umbrella",
        of("color", color={"color": "orange"}),
        ["Can this be seen: umbrella?", "Is this orange: umbrella?"],
        [(), (1,)],
    ),
    ("dimension", "spatial_relationship"): (
        "a bicycle on the left of a car, front view",
        of("spatial_relationship", spatial_relationship={"spatial_relationship": LEFT}),
        [
            "Can this be seen: bicycle?",
            "Can this be seen: car?",
            "Is this where things are: bicycle on the left of car?",
        ],
        [(), (), (1, 2)],
    ),
    ("dimension", "scene"): (
        "alley",
        of("scene", scene={"scene": {"scene": "alley"}}),
        ["Is this the scene: alley?"],
        [()],
    ),
    ("category", "spatial"): (
        "a cat on the left of a dog.",
        compared("spatial", "a cat", "the left", "a dog"),
        [
            "Can this be seen: a cat?",
            "Can this be seen: a dog?",
            "Is this where things are: a cat on the left of a dog?",
        ],
        [(), (), (1, 2)],
    ),
    ("category", "3d_spatial"): (
        "a cat in front of a dog",
        compared("3d_spatial", "a cat", "front", "a dog"),
        [
            "Can this be seen: a cat?",
            "Can this be seen: a dog?",
            "Is this where things are: a cat in front of a dog?",
        ],
        [(), (), (1, 2)],
    ),
    ("category", "numeracy"): (
        "two cats and a bench",
        compared("numeracy", "two cats", "a bench"),
        ["Are there exactly so many: two cats?", "Are there exactly so many: a bench?"],
        [(), ()],
    ),
    ("category", "complex"): (
        "The red cat sat",
        compared("complex", "The red cat"),
        ["Can this be seen: The red cat?", "Is this what can be seen: The red cat sat?"],
        [(), (1,)],
    ),
}


def test_each_kind_has_its_questions():
    assert {(column, kind) for column, kinds in KINDS.items() for kind in kinds} == ASKED.keys()


@pytest.mark.parametrize("kind", ASKED, ids="/".join)
def test_what_is_asked_by_hand(kind):
    prompt, row, texts, parents = ASKED[kind]
    found = questions_of(prompt, row)
    assert kind_of(row) == kind
    assert [own.text for own in found] == texts
    assert [own.parents for own in found] == parents
    assert [own.number for own in found] == list(range(1, len(texts) + 1))


@pytest.mark.parametrize("place", ["top", "the top", "the bottom", "side", "the side", "front"])
def test_places_are_no_things(place):
    """They are what spaCy finds in "on the top of", "on side of", "in front of" and their like."""
    asked = questions_of("a cat", compared("spatial", place))
    assert [own.text for own in asked] == ["Is this where things are: a cat?"]


def test_of_other_kinds_nothing_is_asked():
    assert questions_of("a dog", {"dimension": ["subject_consistency"], "category": "color"}) == []
    assert questions_of("a dog", {}) == []


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (of("object_class"), "its 'auxiliary_info' has no 'object_class.object'; the text must"),
        (of("scene", scene={"scene": "alley"}), "has no 'scene.scene.scene'"),
        (of("color", color={"color": 3}), "its 'auxiliary_info.color.color' is 3; it must be a"),
        (
            of("color", color={"color": "blue"}),
            "its prompt 'dog' names nothing of the color 'blue'",
        ),
        (
            of("multiple_objects", multiple_objects={"object": "dog"}),
            "its 'multiple_objects.object' is 'dog'; write as 'cat and dog'",
        ),
        ({"category": "spatial"}, "its 'phrases' is None; it must be a list of the noun phrases"),
        (compared("numeracy"), "its 'phrases' are none; they must say how many there are of"),
        ({"dimension": ["scene", "color"]}, "of the kinds 'color' and 'scene', and questions are"),
    ],
    ids=str,
)
def test_rows_without_what_is_asked_are_refused(row, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        questions_of("a dog" if "blue" not in message else "dog", row)


def score(server, kinds, **options):
    config = JudgedKindsConfig(url=server.url, model=MODEL, takes="videos", **options)
    asked = {"judged_kinds": JudgedKinds(config, CPU)}, {"judged_kinds": config}
    prompts, rows = zip(*(ASKED[kind][:2] for kind in kinds), strict=True)
    found = score_images(*asked, VIDEOS[: len(rows)], prompts, rows)
    return found["judged_kinds/score"].tolist()


def answering(*noes):
    def answer(request):
        question = texts_of(request)[1].split("---\n")[1].removesuffix("\n")
        return says(yes=0.3, no=0.31) if question in noes else says(yes=0.31, no=0.3)

    return answer


def test_scores_are_shares_and_of_vbench_all_or_nothing():
    kinds = [("dimension", "spatial_relationship"), ("category", "spatial")]
    with judging(answering()) as server:
        assert score(server, kinds) == [1.0, 1.0]
        assert len(server.requests) == 6
    with judging(answering("Can this be seen: car?", "Can this be seen: a dog?")) as server:
        assert score(server, kinds) == [0.0, 1 / 3], "what is asked of the dog counts as no"
    with judging(answering("Are there exactly so many: two cats?")) as server:
        assert score(server, [("category", "numeracy"), ("dimension", "color")]) == [0.5, 1.0]


def test_of_prompts_of_other_kinds_nobody_is_asked():
    with judging(answering()) as server:
        config = JudgedKindsConfig(url=server.url, model=MODEL)
        found = JudgedKinds(config, CPU)(VIDEOS[:2], ["a", "b"], [{}, {"category": "color"}])
        assert (found.tolist(), server.requests) == ([1.0, 1.0], [])


def test_a_sample_has_no_score_without_each_answer():
    kinds = [("dimension", "color"), ("dimension", "scene")]

    def answer(request):
        return fails(400)(request) if "orange" in texts_of(request)[1] else says(yes=1.0)

    with judging(answer) as server, pytest.raises(RewardError, match="answered 400"):
        score(server, kinds)
    with judging(answer) as server:
        assert score(server, kinds, on_failure="neutral") == [0.0, 1.0]
