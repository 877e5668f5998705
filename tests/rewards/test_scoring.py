import numpy as np
import pytest
import torch

from digen_core.config import ConfigError
from digen_core.reward_config import FunctionConfig
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
        (None, "'mine' returned NoneType, not numbers"),
        ("good", "'mine' returned str, not numbers"),
        ({"score": ["a", "b", "c"]}, "'mine' returned list, not numbers"),
    ],
)
def test_an_unusable_result_is_refused_with_its_value(result, message):
    with pytest.raises(RewardError, match=message):
        score(lambda images, prompts: result)


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
    with pytest.raises(ConfigError, match=message):
        import_reward(path)
