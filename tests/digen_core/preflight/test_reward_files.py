"""What rewards load: what is not there is told before a run starts."""

import pytest

from digen_core.config.run import RunConfig
from digen_core.errors import ConfigError
from digen_core.preflight.rewards import check_rewards
from support.tiny_image_reward import write_image_reward


def checked(reward, **cluster):
    tree = {"rewards": {"image_reward": reward}, "cluster": {"rollout_workers": 1, **cluster}}
    check_rewards(RunConfig.model_validate(tree), [], [])


@pytest.mark.parametrize("file", ["ImageReward.pt", "med_config.json"])
def test_a_folder_without_image_rewards_files_is_told(tmp_path, file):
    write_image_reward(tmp_path)
    reward = {"path": str(tmp_path), "tokenizer": str(tmp_path / "tokenizer")}
    checked(reward)
    (tmp_path / file).unlink()
    with pytest.raises(ConfigError, match=rf"image_reward.path .* is without {file}; give the fol"):
        checked(reward)
    checked(reward, scheduler_address="tcp://127.0.0.1:1")  # it is loaded elsewhere


def test_image_reward_that_cannot_be_had_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"rewards.image_reward.path nope is neither a folder"):
        checked({"path": "nope"})
    with pytest.raises(ConfigError, match=r"path no/such is no folder here, not in the hub's cac"):
        checked({"path": "no/such"})
    folder = str(write_image_reward(tmp_path))
    with pytest.raises(ConfigError, match=r"rewards.image_reward.tokenizer other is neither a fol"):
        checked({"path": folder, "tokenizer": "other"})
