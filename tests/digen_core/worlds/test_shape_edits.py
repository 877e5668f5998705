"""The edits of the world ``shapes``: their words, their images, which are held out."""

from collections import Counter
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from digen_core.rewards.shapes import inspect
from digen_core.worlds import shape_edits
from digen_core.worlds.shape_edits import (
    Change,
    Edit,
    all_changes,
    draw_pair,
    evaluation_changes,
    parse_edit,
    train_changes,
)
from digen_core.worlds.shapes import COLORS, SHAPES, Item


def test_every_change_of_every_object_is_there_once():
    counts = Counter(change.edit.changes for change in all_changes())
    assert counts == {"color": 4 * 3 * 3, "shape": 4 * 3 * 2}
    assert len(set(all_changes())) == 60
    for change in all_changes():
        assert change.edit.names(change.before)
        assert change.edit.applied(change.before) != change.before


@pytest.mark.parametrize(
    ("text", "edit", "before", "after"),
    [
        ("make the circle red", Edit("color", "circle", "red"), "blue circle", "red circle"),
        (
            "make the red one a circle",
            Edit("shape", "red", "circle"),
            "red square",
            "red circle",
        ),
    ],
)
def test_words_say_what_to_change(text, edit, before, after):
    assert parse_edit(text) == edit
    assert edit.text == text
    assert edit.applied(Item(*before.split())) == Item(*after.split())


@pytest.mark.parametrize("text", ["make the circle square", "make the red one red", "a red circle"])
def test_other_words_are_refused(text):
    with pytest.raises(ValueError, match="is no edit of the shapes world; it knows"):
        parse_edit(text)


def test_held_out_changes_are_new_combinations_of_what_is_trained_on():
    train, held_out = train_changes(), evaluation_changes()
    assert (len(train), len(held_out)) == (45, 15)
    assert not set(train) & set(held_out)
    assert {change.edit for change in held_out} <= {change.edit for change in train}
    assert {change.before for change in train} == {Item(c, s) for c in COLORS for s in SHAPES}
    assert Counter(change.edit.changes for change in held_out) == {"color": 9, "shape": 6}


@pytest.mark.parametrize("change", all_changes()[::7])
def test_an_edited_image_differs_by_the_edit_alone(change):
    rng = np.random.default_rng(3)
    sizes = set()
    for _ in range(8):
        before, after = (
            {(own.color, own.shape): own.center for own in inspect(image)}
            for image in draw_pair(change, rng)
        )
        sizes.add(len(before))
        (old,) = before.keys() - after.keys()
        (new,) = after.keys() - before.keys()
        assert Item(*old) == change.before
        assert Item(*new) == change.edit.applied(change.before)
        assert np.hypot(*np.subtract(before[old], after[new])) < 2
        del before[old]
        assert all(place == pytest.approx(after[own], abs=0.2) for own, place in before.items())
    assert sizes == {1, 2}


def test_rows_are_images_of_the_changes_in_their_order():
    changes = (
        Change(Edit("color", "circle", "red"), Item("blue", "circle")),
        Change(Edit("shape", "red", "circle"), Item("red", "square")),
    )
    rows = shape_edits.rows(changes, 3, seed=1)
    assert [text for text, _ in rows] == [own.edit.text for own in changes for _ in range(3)]
    assert rows == shape_edits.rows(changes, 3, seed=1)
    for place, (_, png) in enumerate(rows):
        found = inspect(np.asarray(Image.open(BytesIO(png))))
        wanted = changes[place // 3].before
        assert (wanted.color, wanted.shape) in {(own.color, own.shape) for own in found}
