"""GenEval's judgement of boxes that are drawn by hand, without a detector."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from digen_core.rewards.geneval.boxes import Found, overlap, relations, surest
from digen_core.rewards.geneval.verdicts import judged
from digen_core.rewards.geneval.wanted import wanted_of

# A picture of 100 x 100: boxes of 20 x 20 by their left top corners.
LEFT, RIGHT, TOP, BOTTOM = (10, 40), (70, 40), (40, 10), (40, 70)


def box(corner, size=20):
    x, y = corner
    return (float(x), float(y), float(x + size), float(y + size))


def found(*corners, score=0.95):
    return [Found(box(corner), score) for corner in corners]


def no_colours(name, ones):
    raise AssertionError("no colour is asked for")


def verdict(include, objects, exclude=None, colours=no_colours, tag="two_object"):
    wanted = wanted_of({"tag": tag, "include": include, "exclude": exclude})
    return judged(wanted, objects, colours, 0.1)


DOG, CAT = {"class": "dog", "count": 1}, {"class": "cat", "count": 1}


@pytest.mark.parametrize(
    ("include", "objects", "expected"),
    [
        # what is there -> correct, strict, partial
        ([DOG], {"dog": found(LEFT)}, (True, True, 1)),
        ([DOG], {"dog": found(LEFT, RIGHT)}, (True, False, 0)),  # 1 - |1 - 2| / 1
        ([DOG], {"dog": found(LEFT, RIGHT, TOP)}, (True, False, -1)),
        ([DOG], {"cat": found(LEFT)}, (False, False, 0)),
        ([DOG], {}, (False, False, 0)),
        ([DOG, CAT], {"dog": found(LEFT), "cat": found(LEFT)}, (True, True, 1)),
        ([DOG, CAT], {"dog": found(LEFT)}, (False, False, 0.5)),
    ],
)
def test_one_and_two_objects(include, objects, expected):
    assert verdict(include, objects) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (0, (False, False, 0)),
        (1, (False, False, 1 / 3)),
        (2, (False, False, 2 / 3)),
        (3, (True, True, 1)),
        (4, (False, False, 2 / 3)),  # excluded: four or more
        (5, (False, False, 1 / 3)),
    ],
)
def test_counting(number, expected):
    include = [{"class": "clock", "count": 3}]
    exclude = [{"class": "clock", "count": 4}]
    clocks = {"clock": found(*[(10 * n, 0) for n in range(number)])}
    assert verdict(include, clocks, exclude, tag="counting") == pytest.approx(expected)


def colours_of(**known):
    """Return a teller of colours: of the objects of a class, the surest first."""
    return lambda name, ones: known[name][: len(ones)]


RED_DOG, BLUE_CAT = {**DOG, "color": "red"}, {**CAT, "color": "blue"}


@pytest.mark.parametrize(
    ("dogs", "dog_colours", "cat_colours", "expected"),
    [
        (1, ["red"], ["blue"], (True, True, 1)),
        (1, ["blue"], ["blue"], (False, False, 0.75)),  # 1, 0; 1, 1
        (1, ["blue"], ["red"], (False, False, 0.5)),
        # the surest dog has the colour, but there are two: 0, 0; 1, 1
        (2, ["red", "green"], ["blue"], (True, False, 0.5)),
        (2, ["green", "red"], ["blue"], (False, False, 0.5)),
        (0, [], ["blue"], (False, False, 0.5)),
    ],
)
def test_colour_attribution(dogs, dog_colours, cat_colours, expected):
    objects = {"dog": found(*[LEFT, RIGHT][:dogs]), "cat": found(TOP)}
    teller = colours_of(dog=dog_colours, cat=cat_colours)
    got = verdict([RED_DOG, BLUE_CAT], objects, colours=teller, tag="color_attr")
    assert got == pytest.approx(expected)


def test_several_of_a_colour():
    include = [{"class": "dog", "count": 2, "color": "red"}]
    objects = {"dog": found(LEFT, RIGHT)}
    one = verdict(include, objects, colours=colours_of(dog=["red", "blue"]), tag="colors")
    assert one == pytest.approx((False, False, 0.75))  # 1, 1 - |2 - 1| / 2
    both = verdict(include, objects, colours=colours_of(dog=["red", "red"]), tag="colors")
    assert both == (True, True, 1)


@pytest.mark.parametrize(
    ("dog", "cat", "expected"),
    [
        ([LEFT], [RIGHT], (True, True, 1)),
        # misplaced: 1 for the cat, 1 for the dog's number, and 0 and 1 for its place
        ([RIGHT], [LEFT], (False, False, 0.75)),
        ([TOP], [BOTTOM], (False, False, 0.75)),
        ([LEFT], [], (False, False, 1 / 3)),  # 0, 1, and 0 for a place beside nothing
        ([], [RIGHT], (False, False, 1 / 3)),  # 1, 0, and 0 for a place
        # the surest cat is on the right, but there are two: 0, 1, 0
        ([LEFT], [RIGHT, TOP], (True, False, 1 / 3)),
    ],
)
def test_positions(dog, cat, expected):
    include = [CAT, {**DOG, "position": ["left of", 0]}]
    objects = {"dog": found(*dog), "cat": found(*cat)}
    assert verdict(include, objects, tag="position") == pytest.approx(expected)


def test_a_place_is_to_all_of_the_others():
    include = [{**CAT, "count": 2}, {**DOG, "position": ["left of", 0]}]
    between = {"dog": found((40, 40)), "cat": found(RIGHT, LEFT)}
    assert verdict(include, between, tag="position").correct is False
    beside = {"dog": found((0, 40)), "cat": found(RIGHT, (40, 40))}
    assert verdict(include, beside, tag="position").correct is True


def test_a_wrong_colour_leaves_no_place_to_be_judged():
    include = [CAT, {**DOG, "color": "red", "position": ["left of", 0]}]
    objects = {"dog": found(LEFT), "cat": found(RIGHT)}
    got = verdict(include, objects, colours=colours_of(dog=["blue"]), tag="position")
    assert got == pytest.approx((False, False, 2 / 3))  # 1; 1, 0


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (LEFT, RIGHT, {"left of"}),
        (RIGHT, LEFT, {"right of"}),
        (TOP, BOTTOM, {"above"}),  # y grows downwards
        (BOTTOM, TOP, {"below"}),
        ((0, 0), (60, 60), {"left of", "above"}),
        (LEFT, LEFT, set()),
        ((10, 40), (13, 43), set()),  # 3 pixels, of which 0.1 (20 + 20) = 4 are slack
        # centres 6 apart: 6 - 4 = 2, which is a third of 6
        ((10, 40), (16, 40), set()),
        # 9 apart: 5 / 9 > 1 / 2
        ((10, 40), (19, 40), {"left of"}),
        # 40 and 20 apart: (36, 16) / 44.7 = 0.80, 0.36
        ((10, 10), (50, 30), {"left of"}),
    ],
)
def test_relations_by_hand(a, b, expected):
    assert relations(box(a), box(b), 0.1) == expected


@given(st.tuples(*[st.floats(0, 100)] * 4), st.tuples(*[st.floats(0, 100)] * 4), st.floats(0, 1))
def test_relations_turn_round_when_the_boxes_change_places(a, b, slack):
    opposite = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
    there = relations(a, b, slack)
    assert {opposite[name] for name in there} == relations(b, a, slack)
    assert len(there & {"left of", "right of"}) <= 1
    assert len(there & {"above", "below"}) <= 1


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((0, 0, 9, 9), (0, 0, 9, 9), 1),
        ((0, 0, 9, 9), (20, 0, 29, 9), 0),
        ((0, 0, 9, 9), (5, 0, 14, 9), 50 / 150),  # 10 x 10 pixels each, 5 x 10 of them shared
        ((0, 0, 9, 9), (9, 9, 18, 18), 1 / 199),  # the pixel in the corner
        ((5, 5, 0, 0), (5, 5, 0, 0), 0),  # inside out
    ],
)
def test_overlaps_by_hand(a, b, expected):
    assert overlap(a, b) == pytest.approx(expected)


def test_the_surest_count():
    a, b, c = (Found(box((x, 0)), s) for x, s in ((0, 0.5), (2, 0.9), (60, 0.31)))
    limits = {"above": 0.3, "most": 16}
    assert surest([a, b, c], **limits) == [b, a, c]
    assert surest([a, b, c], above=0.31, most=16) == [b, a]  # above, not from
    assert surest([a, b, c], above=0.3, most=2) == [b, a]
    assert surest([a, b, c], **limits, max_overlap=0.5) == [b, c]
    assert surest([a, b, c], above=0.3, most=2, max_overlap=0.5) == [b]
    assert surest([Found(box((0, 0)), math.nan)], **limits) == []


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "its 'tag' is None"),
        ({"tag": "counting"}, "its 'include' names no object"),
        ({"tag": "counting", "include": "dog"}, "its 'include' is 'dog', not a list"),
        ({"tag": "x", "include": ["dog"]}, "number 1 of its 'include' is 'dog'; write an object"),
        ({"tag": "x", "include": [{"class": "dog"}]}, "its count is to be from 1 to 100"),
        ({"tag": "x", "include": [{"class": "dog", "count": True}]}, "its count is to be"),
        ({"tag": "x", "include": [{"class": "dog", "count": 0}]}, "its count is to be"),
        ({"tag": "x", "include": [{**DOG, "color": "gold"}]}, "its color is to be one of red, or"),
        ({"tag": "x", "include": [{**DOG, "position": ["left of", 0]}]}, "its position is to be"),
        ({"tag": "x", "include": [CAT, {**DOG, "position": ["beside", 0]}]}, "its position is to"),
        ({"tag": "x", "include": [CAT, {**DOG, "position": "left of"}]}, "its position is to be"),
        ({"tag": "x", "include": [DOG] * 101}, "not a list of at most 100 objects"),
        ({"tag": "x", "include": [DOG], "exclude": [1]}, "number 1 of its 'exclude' is 1"),
    ],
)
def test_a_row_that_asks_for_nothing_is_told(row, message):
    with pytest.raises(ValueError, match=message) as error:
        wanted_of(row)
    assert "\n" not in str(error.value)
