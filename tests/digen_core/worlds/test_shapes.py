from collections import Counter

import numpy as np
import pytest

from digen_core.worlds.shapes import (
    BACKGROUND,
    COLORS,
    IMAGE_SIZE,
    Item,
    Scene,
    all_prompts,
    evaluation_prompts,
    parse_prompt,
    render,
    train_prompts,
)
from support.paths import ROOT

PROMPTS = ROOT / "deployments" / "prompts"
RED_CIRCLE, BLUE_SQUARE = Item("red", "circle"), Item("blue", "square")


@pytest.mark.parametrize(
    ("text", "scene"),
    [
        ("a red circle", Scene((RED_CIRCLE,))),
        ("three red circles", Scene((RED_CIRCLE,) * 3)),
        ("a red circle left of a blue square", Scene((RED_CIRCLE, BLUE_SQUARE), "left of")),
        ("a blue square right of a red circle", Scene((RED_CIRCLE, BLUE_SQUARE), "left of")),
        ("a blue square above a red circle", Scene((BLUE_SQUARE, RED_CIRCLE), "above")),
        ("a red circle below a blue square", Scene((BLUE_SQUARE, RED_CIRCLE), "above")),
    ],
)
def test_a_prompt_means_its_scene(text, scene):
    assert parse_prompt(text) == scene


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a pink circle",
        "two red circle",
        "a red circle left of a red square",
        "a red circle left of a blue circle",
        "A red circle",
    ],
)
def test_text_outside_the_grammar_is_refused(text):
    with pytest.raises(ValueError, match="outside the shapes world"):
        parse_prompt(text)


def test_every_scene_has_one_prompt_and_is_on_one_side_of_the_split():
    scenes = [parse_prompt(prompt) for prompt in all_prompts()]
    assert len(set(scenes)) == len(scenes) == 12 + 36 + 144
    train = set(map(parse_prompt, train_prompts()))
    held_out = set(map(parse_prompt, evaluation_prompts()))
    assert not train & held_out
    assert train | held_out == set(scenes)


def test_both_sides_hold_the_kinds_in_equal_proportion():
    kinds = [
        Counter(parse_prompt(prompt).kind for prompt in prompts)
        for prompts in (train_prompts(), evaluation_prompts())
    ]
    assert kinds[0] == {"single": 9, "count": 27, "relation": 108}
    assert kinds[1] == {"single": 3, "count": 9, "relation": 36}


def test_training_prompts_say_every_word_of_the_world():
    def words(prompts):
        return {word for prompt in prompts for word in prompt.split()}

    assert words(train_prompts()) == words(all_prompts())


def test_the_same_generator_renders_the_same_image():
    for prompt in all_prompts()[::10]:
        image = render(prompt, np.random.default_rng(3))
        assert image.shape == (IMAGE_SIZE, IMAGE_SIZE, 3)
        assert image.dtype == np.uint8
        np.testing.assert_array_equal(image, render(prompt, np.random.default_rng(3)))
        assert (image != render(prompt, np.random.default_rng(4))).any()


def test_an_image_has_the_background_in_its_corner_and_the_colour_it_was_asked_for():
    image = render(Scene((RED_CIRCLE,)), np.random.default_rng(0))
    assert tuple(image[0, 0]) == BACKGROUND
    assert (image == COLORS["red"]).all(axis=-1).sum() > 80


@pytest.mark.parametrize(
    ("name", "prompts"), [("train", train_prompts()), ("evaluation", evaluation_prompts())]
)
def test_the_prompt_files_list_the_prompts(name, prompts):
    assert (PROMPTS / f"shapes_{name}.txt").read_text().splitlines() == list(prompts)
