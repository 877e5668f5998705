"""Rewards of edits: what they lack is told before a run starts."""

import base64
import json

import pytest

from digen_core.config.run import RunConfig
from digen_core.data.prompts import evaluation_prompts, train_prompts
from digen_core.errors import ConfigError
from digen_core.preflight.rewards import check_rewards
from digen_core.worlds.shape_edits import rows, train_changes
from support.tiny_models import write_clip

JUDGE = {"url": "http://127.0.0.1:1/v1", "model": "m", "template": "digen:judges/edit.toml"}


def checked(folder, rewards, *, images=True, **model):
    """Check rewards of a config whose prompts are edits of the world."""
    lines = [
        {"prompt": text, "image": "data:image/png;base64," + base64.b64encode(png).decode()}
        for text, png in rows(train_changes()[::40], seed=0)
    ]
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    prompts = {"train": str(folder / "a.jsonl"), "evaluation_fraction": 0.5}
    if images:
        prompts["image_column"] = "image"
    model = {"family": "flux2", "path": "x", "height": 32, "width": 32, **model}
    config = RunConfig.model_validate({"model": model, "prompts": prompts, "rewards": rewards})
    check_rewards(config, train_prompts(config), evaluation_prompts(config))


def rewards_of(folder):
    return {
        "shapes_edit": {"shapes_edit": 1.0},
        "source_similarity": {"source_similarity": {"path": write_clip(folder / "clip")}},
        "judge": {"judge": JUDGE},
        "function": {"smooth_rewards:like_source": 1.0},
        "more_sources": {"smooth_rewards:like_others": 1.0},
    }


@pytest.mark.parametrize(
    "kind", ["shapes_edit", "source_similarity", "judge", "function", "more_sources"]
)
def test_what_judges_edits_wants_images(tmp_path, kind):
    checked(tmp_path, rewards_of(tmp_path)[kind])
    with pytest.raises(ConfigError, match="judges edits of source images, but the prompts come wi"):
        checked(tmp_path, rewards_of(tmp_path)[kind], images=False)


def test_an_image_has_to_show_what_its_words_name_in_every_size(tmp_path):
    checked(tmp_path, {"shapes_edit": 1.0}, sizes=[[32, 32, 1]])
    with pytest.raises(ConfigError, match=r"a.jsonl line \d is not for the reward 'shapes_edit'"):
        checked(tmp_path, {"shapes_edit": 1.0}, sizes=[[32, 32, 1], [16, 256, 1]])
