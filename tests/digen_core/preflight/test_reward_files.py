"""What rewards load: what is not there is told before a run starts."""

import pytest

from digen_core.config.rewards.clip import SubjectConsistencyConfig
from digen_core.config.rewards.verifiers import BlipVqaConfig, DpgBlipConfig
from digen_core.config.run import RunConfig
from digen_core.data.prompts import Prompt
from digen_core.errors import ConfigError
from digen_core.preflight.reward_files import check_files
from digen_core.preflight.rewards import check_rewards
from support.tiny_image_reward import write_image_reward
from support.tiny_reward_models import write_hps3, write_video_reward


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


@pytest.mark.parametrize("config", [BlipVqaConfig, DpgBlipConfig, SubjectConsistencyConfig])
def test_a_model_that_cannot_be_had_is_told(tmp_path, monkeypatch, config):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    check_files("vqa", config(path=str(tmp_path)), here=True)
    with pytest.raises(ConfigError, match=r"rewards.vqa.path nope is neither a folder"):
        check_files("vqa", config(path="nope"), here=True)


WRITERS = {"hps3": write_hps3, "video_reward": write_video_reward}


def checked_model(kind, folder, prompts=(), cluster=(), **changes):
    """Check a run with a reward model, whose files are in a folder."""
    reward = {"path": str(folder), "base": str(folder / "base")}
    reward |= {"template": str(folder / "template.txt"), **changes}
    model = {}
    if kind == "video_reward":
        reward["frames_per_second"] = 16
        model = {"family": "wan", "path": "a/b", "height": 16, "width": 24, "num_frames": 5}
    tree = {"rewards": {kind: reward}, "model": model}
    tree["cluster"] = {"rollout_workers": 1, **dict(cluster)}
    check_rewards(RunConfig.model_validate(tree), [Prompt(text) for text in prompts], [])


@pytest.mark.parametrize(
    ("kind", "file", "message"),
    [
        ("hps3", "HPSv3.safetensors", "path .* is without HPSv3.safetensors; give the folder of"),
        ("video_reward", "model_config.json", "path: cannot read .*model_config.json: No such"),
        ("video_reward", "checkpoint-12/model.pth", "path: .* is without checkpoint-NUMBER/model"),
        ("hps3", "base/config.json", "base .*base .* is without config.json; give the folder of"),
        ("hps3", "base/preprocessor_config.json", "base .* is without preprocessor_config.json"),
        ("video_reward", "base/tokenizer_config.json", "base .* is without tokenizer_config.json"),
    ],
)
def test_what_reward_models_lack_is_told(tmp_path, kind, file, message):
    WRITERS[kind](tmp_path)
    checked_model(kind, tmp_path, ["a red circle"])
    (tmp_path / file).unlink()
    with pytest.raises(ConfigError, match=rf"^rewards.{kind}.{message}") as caught:
        checked_model(kind, tmp_path)
    assert "\n" not in str(caught.value)
    checked_model(kind, tmp_path, cluster={"scheduler_address": "tcp://127.0.0.1:1"})


@pytest.mark.parametrize("kind", WRITERS)
def test_the_instruction_and_the_prompts_of_a_reward_model_are_looked_at(tmp_path, kind):
    WRITERS[kind](tmp_path)
    with pytest.raises(
        ConfigError, match=rf"is not for the reward '{kind}': the prompt 'a <\|x\|>' has .*leave"
    ):
        checked_model(kind, tmp_path, ["a red circle", "a <|x|>"])
    (tmp_path / "template.txt").write_text("{text_prompt}")
    with pytest.raises(ConfigError, match=rf"^rewards.{kind}.template: .* 0 times, but must have"):
        checked_model(kind, tmp_path)
    (tmp_path / "template.txt").unlink()
    with pytest.raises(ConfigError, match=rf"^rewards.{kind}.template: cannot read the template"):
        checked_model(kind, tmp_path)


@pytest.mark.parametrize("kind", WRITERS)
def test_reward_models_that_cannot_be_had_are_told(tmp_path, kind, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    WRITERS[kind](tmp_path)
    for key in ("path", "base"):
        with pytest.raises(ConfigError, match=rf"rewards.{kind}.{key} nope is neither a folder"):
            checked_model(kind, tmp_path, **{key: "nope"})
        with pytest.raises(
            ConfigError, match=rf"{kind}.{key} no/such is no folder here, not in th"
        ):
            checked_model(kind, tmp_path, **{key: "no/such"})
