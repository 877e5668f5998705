"""The verifier of edits: what is asked for is done, all else kept, each object in its place."""

import numpy as np
import pytest
import torch

from digen_core.config.rewards.verifiers import ShapesEditConfig
from digen_core.rewards.scoring import RewardError, score_images
from digen_core.rewards.shapes import Detection
from digen_core.rewards.shapes_edit import COMPONENTS, judge_edit, shapes_edit, verify_edit
from digen_core.worlds.shape_edits import all_changes, draw_pair
from digen_core.worlds.shapes import Item, paint

CIRCLE, SQUARE = (8.0, 16.0, 5.0), (24.0, 16.0, 5.0)
SOURCE = paint([Item("blue", "circle"), Item("yellow", "square")], [CIRCLE, SQUARE])
TEXT = "make the blue circle red"


def made(*items, places=(CIRCLE, SQUARE)):
    return paint([Item(*own.split()) for own in items], places)


@pytest.mark.parametrize("change", all_changes()[::4])
def test_every_edit_of_the_world_is_exact_and_the_source_is_not(change):
    rng = np.random.default_rng(5)
    for _ in range(2):
        before, after = draw_pair(change, rng)
        verdict = verify_edit(before, after, change.edit.text)
        assert (verdict.exact, verdict.score) == (True, 1.0)
        undone = verify_edit(before, before, change.edit.text)
        assert not undone.exact
        assert undone.score < 0.9


@pytest.mark.parametrize(
    ("image", "wanted"),
    [
        (made("red circle", "yellow square"), (1, 1, 1, 1)),
        (SOURCE, (0.5, 1, 1, 1)),  # nothing was done
        (made("red circle", "red square"), (0.5, 1, 1, 1)),  # too much was
        (made("red square", "yellow square"), (1, 0.5, 1, 1)),
        (made("red circle", places=[CIRCLE]), (0.5, 0.5, 0.5, 0.5)),  # the other one is gone
        (made("red circle", "yellow square", places=(SQUARE, CIRCLE)), (1, 1, 0, 1)),
        (np.zeros((32, 32, 3), np.uint8), (0, 0, 0, 0)),
    ],
)  # fmt: skip
def test_partial_credit_by_hand(image, wanted):
    verdict = verify_edit(SOURCE, image, TEXT)
    assert [verdict.components[name] for name in COMPONENTS] == pytest.approx(wanted)
    color, shape, place, count = wanted
    total = 0.3 * color + 0.3 * shape + 0.2 * place + 0.2 * count
    assert verdict.score == pytest.approx(total)
    assert verdict.exact == (wanted == (1, 1, 1, 1))


@pytest.mark.parametrize(("moved", "credit"), [(0, 1), (3, 1), (7.5, 0.5), (12, 0), (20, 0)])
def test_an_object_may_move_a_little(moved, credit):
    before = [Detection("blue", "circle", (8.0, 16.0), 78.0)]
    after = [Detection("red", "circle", (8.0 + moved, 16.0), 78.0)]
    assert judge_edit(before, after, TEXT).components["place"] == pytest.approx(credit)


def test_more_objects_than_wanted_dilute_all_shares():
    places = (CIRCLE, SQUARE, (8.0, 27.0, 4.0))
    image = made("red circle", "yellow square", "red circle", places=places)
    verdict = verify_edit(SOURCE, image, TEXT)
    assert verdict.components == pytest.approx(
        {"color": 2 / 3, "shape": 2 / 3, "place": 2 / 3, "count": 0.5}
    )


@pytest.mark.parametrize(("named", "number"), [("blue circle", 0), ("blue square", 2)])
def test_words_that_name_no_single_object_are_refused(named, number):
    source = paint([Item("blue", "square"), Item("blue", "square")], [CIRCLE, SQUARE])
    with pytest.raises(ValueError, match=f"its source image shows {number}, in 2 objects"):
        verify_edit(source, source, f"make the {named} red")


def as_tensor(*images):
    return torch.from_numpy(np.stack(images)).movedim(-1, 1) / 255


def test_a_batch_is_judged_one_by_one_against_its_own_sources():
    other = paint([Item("blue", "circle")], [CIRCLE])
    images = as_tensor(made("red circle", "yellow square"), made("red circle", places=[CIRCLE]))
    found = shapes_edit(images, [TEXT] * 2, as_tensor(SOURCE, other))
    assert found["exact"].tolist() == [1, 1]
    found = shapes_edit(images.flip(0), [TEXT] * 2, as_tensor(SOURCE, other))
    assert found["exact"].tolist() == [0, 0]


def test_without_sources_it_says_so():
    configs = {"shapes_edit": ShapesEditConfig()}
    with pytest.raises(RewardError, match="the prompts come without source images"):
        score_images({"shapes_edit": shapes_edit}, configs, as_tensor(SOURCE), [TEXT])
