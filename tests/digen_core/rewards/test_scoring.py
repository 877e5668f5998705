import re

import numpy as np
import pytest
import torch
from mlflow.utils.validation import _validate_metric_name

from digen_core.config.rewards.own import FunctionConfig
from digen_core.errors import UserError
from digen_core.inputs.reading import shown
from digen_core.rewards.attempts import PermanentError
from digen_core.rewards.own import import_reward
from digen_core.rewards.scoring import RewardError, score_images

IMAGES = torch.zeros(3, 3, 8, 8)
PROMPTS = ["a", "b", "c"]


def options(**changes) -> FunctionConfig:
    return FunctionConfig(function="mine:judge", backoff_seconds=0, **changes)


def score(function, images=IMAGES, **changes):
    return score_images({"mine": function}, {"mine": options(**changes)}, images, PROMPTS)


def test_rewards_are_weighted_and_summed_in_float64():
    functions = {
        "ones": lambda images, prompts: torch.ones(3),
        "parts": lambda images, prompts: {
            "score": torch.tensor([1, 2, 3]),
            "detail": torch.tensor([0.25, 0.5, 0.75], dtype=torch.bfloat16),
        },
    }
    configs = {"ones": options(weight=0.1), "parts": options(weight=-2.0)}
    columns = score_images(functions, configs, IMAGES, PROMPTS)
    assert list(columns) == ["reward", "ones/score", "parts/score", "parts/detail"]
    assert all(column.dtype == np.float64 for column in columns.values())
    np.testing.assert_array_equal(columns["reward"], [0.1 - 2, 0.1 - 4, 0.1 - 6])
    np.testing.assert_array_equal(columns["parts/detail"], [0.25, 0.5, 0.75])


@pytest.mark.parametrize("values", [[0.1, 0.2, 0.3], np.array([0.1, 0.2, 0.3])])
def test_lists_and_arrays_are_rewards_too(values):
    np.testing.assert_allclose(score(lambda images, prompts: values)["reward"], [0.1, 0.2, 0.3])


def test_gradients_do_not_escape():
    values = torch.ones(3, requires_grad=True) * 2
    np.testing.assert_array_equal(score(lambda images, prompts: values)["reward"], [2, 2, 2])


def test_a_reward_that_raises_is_named():
    def broken(images, prompts):
        raise KeyError("detector")

    with pytest.raises(RewardError, match="reward 'mine' raised KeyError: 'detector'"):
        score(broken)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (torch.tensor([0.0, float("nan"), 1.0]), "'mine' returned nan for image 1 of 3"),
        (torch.tensor([0.0, 1.0, -float("inf")]), "'mine' returned -inf for image 2 of 3"),
        (torch.zeros(2), r"'mine' returned shape \(2,\) for 3 images"),
        (torch.zeros(3, 1), r"'mine' returned shape \(3, 1\) for 3 images"),
        (torch.tensor(1.0), r"'mine' returned shape \(\) for 3 images"),
        ({"detail": torch.zeros(3)}, r"returned \['detail'\] without 'score'"),
        ({}, r"returned \[\] without 'score'"),
        (
            {"score": torch.zeros(3), "detail": torch.full((3,), float("nan"))},
            r"'mine' \(detail\) returned nan for image 0 of 3",
        ),
        (
            torch.tensor([1.0, -1e16, 1e16], dtype=torch.float64),
            r"'mine' returned -1e\+16 for image 1 of 3, more than 1e\+15 from 0",
        ),
        *(
            (
                {"score": torch.zeros(3), component: torch.zeros(3)},
                f"'mine' returned {re.escape(shown(component, 80))} beside its score, which is no",
            )
            for component in ("red\x1b[31m", "two\nlines", "", "../up", "a//b", 7, "x" * 101)
        ),
        (None, "'mine' returned NoneType, not numbers"),
        ("good", "'mine' returned the str 'good', not numbers"),
        ({"score": ["a", "b", "c"]}, r"'mine' returned the list \['a', 'b', 'c'\], not numbers"),
        ([0.5, None, 1.0], r"'mine' returned the list \[0.5, None, 1.0\], not numbers"),
        (torch.zeros(3, dtype=torch.complex64), "'mine' returned complex numbers"),
        (np.array(0.5), r"'mine' returned shape \(\) for 3 images"),
    ],
)
def test_an_unusable_result_is_refused_with_its_value(result, message):
    with pytest.raises(RewardError, match=message):
        score(lambda images, prompts: result)


@pytest.mark.parametrize("kind", ["f2", ">f8", "g", "u2", ">i4", "?"])
def test_numpys_numbers_of_any_kind_are_taken(kind):
    found = score(lambda images, prompts: np.array([0, 1, 1]).astype(kind))
    assert found["mine/score"].tolist() == [0.0, 1.0, 1.0]


def test_columns_of_pandas_are_taken_whatever_their_index():
    pandas = pytest.importorskip("pandas")
    column = pandas.Series([0.5, 1.0, 2.0], index=[7, 8, 9])
    assert score(lambda images, prompts: column)["mine/score"].tolist() == [0.5, 1.0, 2.0]


def test_a_reward_may_change_what_it_is_given():
    """In place, as to [-1, 1]; neither its next attempt nor another reward sees that."""
    calls = []

    def changing(images, prompts, metadata):
        calls.append(images.mul_(2).sub_(1).mean(dim=(1, 2, 3)))
        prompts.clear()
        metadata[0]["words"].append("more")
        if len(calls) == 1:
            raise OSError("once")
        return calls[-1]

    def other(images, prompts, metadata):
        assert prompts == ["a", "b"]
        return images.mean(dim=(1, 2, 3)) + len(metadata[0]["words"])

    configs = {name: FunctionConfig(function=f"t:{name}") for name in ("changing", "other")}
    configs["changing"] = configs["changing"].model_copy(
        update={"max_attempts": 2, "backoff_seconds": 0.0}
    )
    images, rows = torch.full((2, 3, 4, 4), 0.75), [{"words": ["one"]}, {"words": []}]
    found = score_images({"changing": changing, "other": other}, configs, images, ["a", "b"], rows)
    assert found["changing/score"].tolist() == [0.5, 0.5]
    assert found["other/score"].tolist() == [1.75, 1.75]
    assert images.unique().tolist() == [0.75]
    assert rows == [{"words": ["one"]}, {"words": []}]


def test_a_reversed_array_of_numpy_is_taken():
    found = score(lambda images, prompts: np.array([1.0, 2.0, 3.0])[::-1])
    assert found["mine/score"].tolist() == [3.0, 2.0, 1.0]


def test_what_is_beside_the_score_may_be_called_as_metrics_are():
    names = ("exact", "colour: red", "a.b-c_d", "größe", "part/count", "x" * 100)
    found = score(lambda images, prompts: dict.fromkeys(["score", *names], torch.ones(3)))
    assert found.keys() == {"reward", "mine/score", *(f"mine/{name}" for name in names)}
    for name in names:  # MLflow has no public check
        _validate_metric_name(f"evaluation/mine/{name}")


def test_a_score_of_a_size_that_sums_would_lose_is_a_failure():
    values = torch.tensor([1.0, 1e300, 3.0], dtype=torch.float64)
    found = score(lambda images, prompts: values, on_failure="neutral")
    assert found["mine/score"].tolist() == [1.0, 0.0, 3.0]
    assert found["mine/failed"].tolist() == [0.0, 1.0, 0.0]


def test_samples_that_are_not_finite_are_refused_whatever_a_failure_means():
    images = IMAGES.clone()
    images[1, 0, 0, 0] = float("nan")
    for on_failure in ("fail", "neutral"):
        with pytest.raises(RewardError, match="the decoded samples have NaN or Inf in them"):
            score(lambda images, prompts: torch.zeros(3), images, on_failure=on_failure)


def test_rewards_compute_without_gradients():
    found = score(lambda images, prompts: torch.full((3,), float(torch.is_grad_enabled())))
    assert found["reward"].tolist() == [0, 0, 0]


# --- videos -----------------------------------------------------------------------------------

VIDEOS = torch.arange(3 * 9).view(3, 9, 1, 1, 1).expand(3, 9, 3, 4, 6) / 100


def mean_pixel(images, prompts):
    assert images.ndim == 4
    assert len(images) == len(prompts)
    return {"score": images.mean(dim=(1, 2, 3)), "is_b": torch.tensor([p == "b" for p in prompts])}


@pytest.mark.parametrize(
    ("stride", "frames"), [(1, range(9)), (4, (0, 4, 8)), (5, (0, 5)), (100, (0,))]
)
def test_an_image_reward_sees_every_so_many_th_frame_of_a_video(stride, frames):
    columns = score(mean_pixel, VIDEOS, frame_stride=stride)
    expected = [np.mean([9 * sample + frame for frame in frames]) / 100 for sample in range(3)]
    np.testing.assert_allclose(columns["mine/score"], expected, rtol=1e-6)
    assert columns["mine/is_b"].tolist() == [0, 1, 0]


def test_a_bad_frame_is_named():
    def broken(images, prompts):
        values = images.mean(dim=(1, 2, 3))
        values[4] = float("inf")
        return values

    with pytest.raises(RewardError, match="'mine' returned inf for image 4 of 9"):
        score(broken, VIDEOS)


def test_a_video_reward_gets_whole_videos_and_refuses_images():
    def shape(videos, prompts):
        return torch.full((len(prompts),), float(videos.shape[1]))

    assert score(shape, VIDEOS, takes="videos")["reward"].tolist() == [9, 9, 9]
    for on_failure in ("fail", "neutral"):
        with pytest.raises(UserError, match=r"'mine' takes videos .* the shape \[3, 3, 8, 8\]"):
            score(shape, takes="videos", on_failure=on_failure)


# --- latents ---------------------------------------------------------------------------------

LATENTS = torch.arange(3.0).view(3, 1, 1, 1).expand(3, 4, 2, 3)


def of_latents(function, latents=LATENTS, images=None, **changes):
    configs = {"mine": options(takes="latents", **changes)}
    return score_images({"mine": function}, configs, images, PROMPTS, latents=latents)


def test_rewards_of_images_and_of_latents_get_theirs_of_the_same_samples():
    functions = {
        "pixels": lambda images, prompts: images.mean(dim=(1, 2, 3)),
        "places": lambda latents, prompts, metadata: latents.mean(dim=(1, 2, 3)) + len(metadata),
    }
    configs = {"pixels": options(weight=2.0), "places": options(takes="latents")}
    found = score_images(functions, configs, IMAGES + 0.25, PROMPTS, latents=LATENTS)
    assert found["pixels/score"].tolist() == [0.25] * 3
    assert found["places/score"].tolist() == [3, 4, 5]
    assert found["reward"].tolist() == [3.5, 4.5, 5.5]


@pytest.mark.parametrize("shape", [(3, 4, 2, 3), (3, 4, 5, 2, 3)])
def test_latents_come_whole_also_of_videos(shape):
    def shapes(latents, prompts):
        assert latents.shape == shape
        return torch.ones(3)

    assert of_latents(shapes, torch.zeros(shape), frame_stride=2)["reward"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (torch.zeros(2), r"reward 'mine' returned shape \(2,\) for 3 images"),
        (torch.tensor([0.0, 1.0, torch.nan]), "reward 'mine' returned nan for image 2 of 3"),
    ],
)
def test_what_is_wrong_with_a_reward_of_latents_is_told(result, message):
    with pytest.raises(RewardError, match=message):
        of_latents(lambda latents, prompts: result)


def test_a_reward_of_latents_that_raises_may_be_neutral():
    def broken(latents, prompts):
        raise KeyError("net")

    found = of_latents(broken, on_failure="neutral")
    assert found["mine/failed"].tolist() == [1, 1, 1]
    with pytest.raises(RewardError, match="reward 'mine' raised KeyError: 'net'"):
        of_latents(broken)


def test_latents_that_are_not_finite_are_refused():
    latents = LATENTS.clone()
    latents[1, 2, 0, 0] = torch.inf
    with pytest.raises(RewardError, match="the latents have NaN or Inf in them"):
        of_latents(lambda latents, prompts: torch.zeros(3), latents, on_failure="neutral")


# --- attempts ---------------------------------------------------------------------------------


class Flaky:
    """Raise a number of times, then work."""

    def __init__(self, num_failures, error=RuntimeError):
        self.num_failures, self.error, self.num_calls = num_failures, error, 0

    def __call__(self, images, prompts):
        self.num_calls += 1
        if self.num_calls <= self.num_failures:
            raise self.error("busy")
        return torch.ones(len(prompts))


def test_a_reward_is_tried_again(caplog):
    flaky = Flaky(2)
    assert score(flaky, max_attempts=3)["reward"].tolist() == [1, 1, 1]
    assert flaky.num_calls == 3
    said = "reward 'mine' raised RuntimeError: busy; it is called again in 0.0 s"
    assert caplog.messages == [said] * 2


def test_attempts_are_counted_and_end():
    flaky = Flaky(5)
    with pytest.raises(RewardError, match=r"raised RuntimeError: busy \(attempt 3 of 3\)"):
        score(flaky, max_attempts=3)
    assert flaky.num_calls == 3


@pytest.mark.parametrize("error", [PermanentError, UserError])
def test_what_cannot_be_mended_is_not_tried_again(error):
    flaky = Flaky(5, error)
    with pytest.raises(RewardError, match=r"busy$"):
        score(flaky, max_attempts=3)
    assert flaky.num_calls == 1


def test_pauses_double_and_are_drawn_at_random(monkeypatch):
    pauses = []
    monkeypatch.setattr("time.sleep", pauses.append)
    monkeypatch.setattr("random.uniform", lambda low, high: (low + high) / 2)
    config = FunctionConfig(function="mine:judge", backoff_seconds=0.5, max_attempts=10)
    with pytest.raises(RewardError):
        score_images({"mine": Flaky(99)}, {"mine": config}, IMAGES, PROMPTS)
    assert pauses == [0.25, 0.5, 1, 2, 4, 8, 16, 30, 30]  # half of 0.5, 1, 2, ... and at most 60


def test_a_reward_of_the_users_is_imported():
    assert import_reward("digen_core.rewards.shapes:shapes").__name__ == "shapes"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("shapes", "'shapes' is neither a reward of digen nor of the form module:function"),
        (":f", "is neither"),
        ("nowhere:f", "cannot import 'nowhere' of 'nowhere:f'"),
        ("json:f", "'json' has no function 'f'"),
        ("math:pi", "'math' has no function 'pi'"),
    ],
)
def test_a_reward_that_cannot_be_imported_is_refused(path, message):
    with pytest.raises(UserError, match=message):
        import_reward(path)
