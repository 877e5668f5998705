import numpy as np
import pytest
import torch
from scipy import ndimage

from digen_core.rewards.shapes import COMPONENTS, OTHER, Detection, inspect, judge, shapes, verify
from digen_core.worlds.shapes import BACKGROUND, COLORS, Item, Scene, all_prompts, render

RENDERS = 3


@pytest.fixture(scope="module")
def renders():
    rng = np.random.default_rng(0)
    return [(prompt, render(prompt, rng)) for prompt in all_prompts() for _ in range(RENDERS)]


def canvas():
    return np.full((32, 32, 3), BACKGROUND, dtype=np.uint8)


def seen(color, shape, x=16.0, y=16.0):
    return Detection(color, shape, (x, y), 60.0)


def test_renders_are_exact_for_their_own_prompt_and_for_no_other(renders):
    missed = 0
    for prompt, image in renders:
        found = inspect(image)
        missed += not judge(found, prompt).exact
        for other in all_prompts():
            assert other == prompt or judge(found, other).score < 1.0, (prompt, other)
    assert missed <= 0.01 * len(renders)


def test_both_wordings_of_a_relation_are_one_scene():
    image = render("a red circle left of a blue square", np.random.default_rng(0))
    assert verify(image, "a blue square right of a red circle").exact


@pytest.mark.parametrize(
    "spoil",
    [
        lambda image, rng: image + rng.normal(0, 0.05, image.shape),
        lambda image, rng: ndimage.gaussian_filter(image, (0.5, 0.5, 0)),
        lambda image, rng: 0.85 * image,
    ],
    ids=["noise", "blur", "dimmed"],
)
def test_mild_spoiling_is_forgiven(renders, spoil):
    rng = np.random.default_rng(1)
    sample = renders[::5]
    spoilt = [(prompt, spoil(image / 255, rng).clip(0, 1)) for prompt, image in sample]
    exact = sum(verify(image, prompt).exact for prompt, image in spoilt)
    assert exact >= 0.95 * len(sample)


def test_detection_reports_colour_shape_centre_and_area():
    image = canvas()
    image[4:12, 6:14] = COLORS["green"]
    image[20:22, 20:22] = COLORS["red"]  # a speck
    (found,) = inspect(image)
    assert (found.color, found.shape) == ("green", "square")
    assert found.center == pytest.approx((10.0, 8.0), abs=0.05)
    assert found.area == pytest.approx(64.0, rel=0.02)


def test_floats_and_bytes_are_seen_alike():
    image = render("four blue triangles", np.random.default_rng(0))
    assert inspect(image) == inspect(image / 255)


@pytest.mark.parametrize("color", [(230, 230, 230), (200, 50, 200), (40, 200, 200)])
def test_a_foreign_colour_is_an_object_of_another_colour(color):
    image = canvas()
    image[4:12, 6:14] = color
    assert [found.color for found in inspect(image)] == [OTHER]


def test_a_bar_and_a_ring_are_no_shape_of_the_world():
    bar, ring = canvas(), canvas()
    bar[4:8, 4:20] = COLORS["red"]
    ring[4:16, 4:16] = COLORS["red"]
    ring[7:13, 7:13] = BACKGROUND
    assert [inspect(image)[0].shape for image in (bar, ring)] == [OTHER, OTHER]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        # score = weighted mean of colour .3, shape .3, relation .2, count .2
        ([seen("red", "circle", 8), seen("blue", "square", 24)], (1.0, 1.0, 1.0, 1.0, 1.0)),
        ([seen("red", "square", 8), seen("blue", "circle", 24)], (0.7, 1.0, 0.0, 1.0, 1.0)),
        ([seen("red", "circle", 24), seen("blue", "square", 8)], (0.8, 1.0, 1.0, 0.0, 1.0)),
        ([seen("red", "circle")], (0.4, 0.5, 0.5, 0.0, 0.5)),
        ([seen("red", "circle", 8), seen("green", OTHER, 24)], (0.7, 0.5, 0.5, 1.0, 1.0)),
        (
            [seen("red", "circle", 8), seen("blue", "square", 24), seen("red", "circle", 16, 2)],
            (0.7, 2 / 3, 2 / 3, 1.0, 0.5),
        ),
    ],
    ids=["exact", "swapped binding", "swapped places", "one missing", "one wrong", "one extra"],
)
def test_partial_credit_of_a_relation_by_hand(found, expected):
    verdict = judge(found, "a red circle left of a blue square")
    values = (verdict.score, *(verdict.components[name] for name in COMPONENTS))
    assert values == pytest.approx(expected)
    assert verdict.exact == (expected[0] == 1.0)


def test_partial_credit_of_a_count_by_hand():
    verdict = judge([seen("red", "circle"), seen("red", "square")], "three red circles")
    # (.3 * 2/3 + .3 * 1/3 + .2 * 2/3) / .8: no relation is asked for, so none is weighed
    assert verdict.score == pytest.approx((0.2 + 0.1 + 0.4 / 3) / 0.8)


def test_a_diagonal_relation_earns_part_of_its_credit():
    verdict = judge(
        [seen("red", "circle", 10, 10), seen("blue", "square", 16, 18)],
        "a red circle left of a blue square",
    )
    assert verdict.components["relation"] == pytest.approx(0.5 * 6 / 10)


@pytest.mark.parametrize("prompt", ["a red circle", "a red circle above a blue square"])
def test_an_empty_image_scores_0(prompt):
    assert verify(canvas(), prompt).score == 0.0


def test_an_extra_object_is_never_exact():
    image = render(Scene((Item("red", "circle"),)), np.random.default_rng(0)).copy()
    image[:4, :4] = COLORS["blue"]
    assert not verify(image, "a red circle").exact


def test_the_batch_agrees_with_single_verdicts(renders):
    prompts, images = zip(*renders[::40], strict=True)
    prompts = (*prompts[1:], prompts[0])
    batch = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2) / 255
    result = shapes(batch, prompts)
    verdicts = [verify(image, prompt) for image, prompt in zip(images, prompts, strict=True)]
    assert set(result) == {"score", "exact", *COMPONENTS}
    assert result["score"].dtype == torch.float64
    assert result["score"].tolist() == pytest.approx([v.score for v in verdicts])
    assert result["exact"].tolist() == [v.exact for v in verdicts]


def test_images_that_cannot_be_judged_are_refused():
    with pytest.raises(ValueError, match="not finite"):
        verify(np.full((32, 32, 3), np.nan), "a red circle")
    with pytest.raises(ValueError, match=r"\[H, W, 3\]"):
        verify(np.zeros((3, 32, 32)), "a red circle")
    with pytest.raises(ValueError, match="1 images but 2 prompts"):
        shapes(torch.zeros(1, 3, 32, 32), ["a red circle"] * 2)
