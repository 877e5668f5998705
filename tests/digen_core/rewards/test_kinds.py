"""Means of rewards over kinds of prompts, by hand."""

from digen_core.config.rewards.clip import ClipScoreConfig, ConsistencyConfig
from digen_core.config.rewards.pixels import MotionConfig
from digen_core.config.rewards.verifiers import BlipVqaConfig
from digen_core.data.prompts import Prompt
from digen_core.rewards.kinds import kind_means, kind_scores


def scored(rewards, rows, means):
    prompts = [Prompt(f"{place}", row) for place, row in enumerate(rows)]
    return kind_scores(rewards, prompts, {f"{name}/score": means for name in rewards})


def test_categories_are_means_over_their_prompts():
    kinds = ["color", "texture", "color", "spatial", None, "non_spatial"]
    rewards = {"mine": BlipVqaConfig(), "clipscore": ClipScoreConfig()}
    means = [1.0, 0.25, 0.5, 0.0, 0.0, 0.3]
    found = scored(rewards, [{"category": kind} for kind in kinds], means)
    assert found == {
        "mine/color": [1.0, None, 0.5, None, None, None],
        "mine/texture": [None, 0.25, None, None, None, None],
        "clipscore/non_spatial": [None] * 5 + [0.3],
    }
    assert kind_means(found) == {
        "mine/color": 0.75,
        "mine/texture": 0.25,
        "clipscore/non_spatial": 0.3,
    }


def test_a_prompt_may_be_of_several_dimensions():
    rows = [
        {"dimension": ["scene", "background_consistency"]},
        {"dimension": ["appearance_style"]},
        {"dimension": ["subject_consistency", "background_consistency"]},
        {},
    ]
    rewards = {"consistency": ConsistencyConfig(), "clipscore": ClipScoreConfig()}
    found = scored(rewards | {"motion": MotionConfig()}, rows, [0.5, 0.25, None, 1.0])
    assert found == {
        "consistency/background_consistency": [0.5, None, None, None],
        "clipscore/appearance_style": [None, 0.25, None, None],
    }
