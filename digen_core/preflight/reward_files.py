"""Files of rewards: models, tokenizers and tokens without which one cannot be made."""

import os
from pathlib import Path

from digen_core.config.rewards import RewardConfig
from digen_core.config.rewards.clip import ClipConfig, SubjectConsistencyConfig
from digen_core.config.rewards.preferences import AestheticConfig, ImageRewardConfig
from digen_core.config.rewards.reward_models import HeadConfig, Hps3Config
from digen_core.config.rewards.servers import ServerReward
from digen_core.config.rewards.verifiers import BlipReward, GenevalConfig
from digen_core.errors import ConfigError
from digen_core.preflight.hub import check_source


def check_files(name: str, reward: RewardConfig, *, here: bool) -> None:
    """Check that what a reward loads is there, or can be downloaded if it is loaded here.

    Args:
        name: of the reward.
        reward: its config.
        here: it is loaded on this machine.

    Raises:
        ConfigError: it is not; the message is one line.
    """
    if isinstance(reward, AestheticConfig) and not Path(reward.head).is_file():
        raise ConfigError(
            f"rewards.{name}.head {reward.head} is no file (seen from {Path.cwd()}); give the "
            "safetensors file of the predictor's layers"
        )
    token = reward.token_variable if isinstance(reward, ServerReward) else None
    if here and token is not None and not os.environ.get(token):
        raise ConfigError(
            f"rewards.{name}.token_variable is {token}, which is not set in the environment; "
            "export it before the start"
        )
    if isinstance(reward, ClipConfig):
        own, processor = reward.revision, reward.processor_path
        _check_model(name, "path", reward.path, own, here=here)
        _check_model(
            name, "processor", processor, own if processor == reward.path else None, here=here
        )
    if isinstance(reward, GenevalConfig):
        _check_model(name, "detector", reward.detector, reward.detector_revision, here=here)
    if isinstance(reward, BlipReward | SubjectConsistencyConfig):
        _check_model(name, "path", reward.path, reward.revision, here=here)
    if isinstance(reward, ImageRewardConfig):
        _check_image_reward(name, reward, here=here)
    if isinstance(reward, HeadConfig):
        _check_weights(name, reward, here=here)
        _check_base(name, reward, here=here)


def _check_image_reward(name: str, reward: ImageRewardConfig, *, here: bool) -> None:
    """Check that ImageReward's files and the tokenizer are there, or can be had from the hub."""
    from digen_core.rewards.blip.checkpoint import TEXT_CONFIG, WEIGHTS

    label, folder = f"rewards.{name}.path {reward.path}", Path(reward.path)
    for file in (WEIGHTS, TEXT_CONFIG):
        if not folder.is_dir():
            check_source(label, reward.path, [file], reward.revision, here=here)
        elif here and not (folder / file).is_file():
            raise ConfigError(
                f"{label} (seen from {Path.cwd()}) is without {file}; give the folder of "
                f"ImageReward's published files, {WEIGHTS} and {TEXT_CONFIG}"
            )
    if not Path(reward.tokenizer).is_dir():
        files = ["tokenizer_config.json", "vocab.txt"]
        check_source(
            f"rewards.{name}.tokenizer {reward.tokenizer}", reward.tokenizer, files, None, here=here
        )


def _check_weights(name: str, reward: HeadConfig, *, here: bool) -> None:
    """Check that a reward model's published files are there, or can be had from the hub."""
    from digen_core.rewards.vlm.hps3 import WEIGHTS
    from digen_core.rewards.vlm.settings import SETTINGS, checkpoint_in, read_settings

    label, folder = f"rewards.{name}.path {reward.path}", Path(reward.path)
    is_hps = isinstance(reward, Hps3Config)
    if not folder.is_dir():
        files = [WEIGHTS if is_hps else SETTINGS]
        check_source(label, reward.path, files, reward.revision, here=here)
    elif here and is_hps and not (folder / WEIGHTS).is_file():
        raise ConfigError(
            f"{label} (seen from {Path.cwd()}) is without {WEIGHTS}; give the folder of HPS v3's "
            "published file"
        )
    elif here and not is_hps:
        try:
            read_settings(folder)
            checkpoint_in(folder)
        except ConfigError as error:
            raise ConfigError(f"rewards.{name}.path: {error}") from error


def _check_base(name: str, reward: HeadConfig, *, here: bool) -> None:
    """Check that the model that a reward model began as is there, or can be had from the hub."""
    label, folder = f"rewards.{name}.base {reward.base}", Path(reward.base)
    for file in ("config.json", "tokenizer_config.json", "preprocessor_config.json"):
        if not folder.is_dir():
            check_source(label, reward.base, [file], None, here=here)
        elif here and not (folder / file).is_file():
            raise ConfigError(
                f"{label} (seen from {Path.cwd()}) is without {file}; give the folder of the "
                "Qwen2-VL that it began as, which needs no weights"
            )


def _check_model(name: str, key: str, path: str, revision: str | None, *, here: bool) -> None:
    """Check that a model, or its processor, is a folder or can be had from the hub."""
    if not Path(path).is_dir():
        is_processor = key == "processor"
        files = ["preprocessor_config.json", "processor_config.json"]
        wanted = files if is_processor else ["config.json"]
        check_source(f"rewards.{name}.{key} {path}", path, wanted, revision, here=here)
