"""The edits of the world ``shapes``: their words, their images, which are held out."""

import base64
import json
from collections import Counter
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from digen_core.inputs.shipped import located
from digen_core.rewards.shapes import inspect
from digen_core.worlds import shape_edits
from digen_core.worlds.shape_edits import (
    Edit,
    all_changes,
    draw_pair,
    evaluation_changes,
    parse_edit,
    train_changes,
)
from digen_core.worlds.shapes import Item


def test_every_change_of_every_object_is_there_alone_and_beside_each_other():
    changes = all_changes()
    assert len(set(changes)) == len(changes) == 252
    alone = [change for change in changes if change.beside is None]
    assert len(alone) == 4 * 3 * 3
    for edit, beside in ((change.edit, change.beside) for change in changes):
        assert edit.color == edit.after.color != edit.before.color
        assert edit.after.shape == edit.before.shape
        assert beside is None or (
            beside.color != edit.before.color and beside.shape != edit.before.shape
        )


@pytest.mark.parametrize(
    ("text", "before", "after"),
    [
        ("make the blue circle red", "blue circle", "red circle"),
    ],
)
def test_words_say_what_to_change(text, before, after):
    edit = Edit(Item(*before.split()), Item(*after.split()).color)
    assert parse_edit(text) == edit
    assert edit.text == text
    assert edit.after == Item(*after.split())


@pytest.mark.parametrize(
    "text",
    [
        "make the circle red",
        "make the red square red",
        "make the red square a circle",
        "a red circle",
    ],
)
def test_other_words_are_refused(text):
    with pytest.raises(ValueError, match="is no edit of the shapes world; it knows"):
        parse_edit(text)


def test_held_out_changes_are_new_scenes_of_edits_that_are_trained_on():
    train, held_out = train_changes(), evaluation_changes()
    assert (len(train), len(held_out)) == (180, 72)
    assert not set(train) & set(held_out)
    edits = Counter(change.edit for change in held_out)
    assert set(edits.values()) == {2}
    assert edits.keys() == {change.edit for change in train}
    beside = {(change.edit.before, change.beside) for change in held_out}
    assert beside <= {(change.edit.before, change.beside) for change in train}


@pytest.mark.parametrize("change", all_changes()[::29])
def test_an_edited_image_differs_by_the_edit_alone(change):
    rng = np.random.default_rng(3)
    for _ in range(4):
        before, after = (
            {(own.color, own.shape): own.center for own in inspect(image)}
            for image in draw_pair(change, rng)
        )
        assert len(before) == (1 if change.beside is None else 2)
        (old,) = before.keys() - after.keys()
        (new,) = after.keys() - before.keys()
        assert Item(*old) == change.edit.before
        assert Item(*new) == change.edit.after
        assert np.hypot(*np.subtract(before[old], after[new])) < 3
        del before[old]
        assert all(place == pytest.approx(after[own], abs=0.2) for own, place in before.items())


@pytest.mark.parametrize(
    ("file", "changes", "seed"),
    [("train", train_changes(), 0), ("evaluation", evaluation_changes(), 1)],
)
def test_the_shipped_prompts_are_images_of_the_changes(file, changes, seed):
    """Pixel by pixel: what a file of them looks like is the library's."""
    path = located(f"digen:prompts/shapes_edit_{file}.jsonl")
    shipped = [json.loads(line) for line in Path(path).read_text().splitlines()]
    made = shape_edits.rows(changes, seed=seed)
    assert [row["prompt"] for row in shipped] == [text for text, _ in made]
    for row, (_, png) in zip(shipped, made, strict=True):
        content = base64.b64decode(row["image"].partition(",")[2])
        assert np.array_equal(*(np.asarray(Image.open(BytesIO(own))) for own in (content, png)))
