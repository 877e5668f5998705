"""Rewards: what makes them, by the types that a config names."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from digen_core.config.rewards import RewardConfig, called
from digen_core.rewards.blip.image_reward import ImageReward
from digen_core.rewards.blip.vqa import BlipVqa
from digen_core.rewards.clip.aesthetic import Aesthetic
from digen_core.rewards.clip.clipscore import ClipScore
from digen_core.rewards.clip.hps import Hps
from digen_core.rewards.clip.pickscore import PickScore
from digen_core.rewards.clip.source_similarity import SourceSimilarity
from digen_core.rewards.dpg.dpg import Dpg, DpgBlip
from digen_core.rewards.geneval.geneval import Geneval
from digen_core.rewards.jpeg import jpeg_compressibility, jpeg_incompressibility
from digen_core.rewards.judge.judge import Judge
from digen_core.rewards.judge.pairwise import Pairwise
from digen_core.rewards.kind_questions.reward import JudgedKinds
from digen_core.rewards.ocr import Ocr
from digen_core.rewards.own import own_reward
from digen_core.rewards.remote import Remote
from digen_core.rewards.scoring import RewardFn
from digen_core.rewards.shapes import shapes
from digen_core.rewards.shapes_edit import shapes_edit
from digen_core.rewards.videos.consistency import Consistency, SubjectConsistency
from digen_core.rewards.videos.flickering import temporal_flickering
from digen_core.rewards.videos.motion import Motion
from digen_core.rewards.vlm.hps3 import Hps3
from digen_core.rewards.vlm.video_reward import VideoReward

REWARDS: dict[str, Callable[[Any, torch.device], RewardFn]] = {
    "shapes": lambda config, device: shapes,
    "shapes_edit": lambda config, device: shapes_edit,
    "jpeg_compressibility": lambda config, device: jpeg_compressibility,
    "jpeg_incompressibility": lambda config, device: jpeg_incompressibility,
    "ocr": Ocr,
    "clipscore": ClipScore,
    "source_similarity": SourceSimilarity,
    "pickscore": PickScore,
    "hps": Hps,
    "hps3": Hps3,
    "image_reward": ImageReward,
    "aesthetic": Aesthetic,
    "geneval": Geneval,
    "blip_vqa": BlipVqa,
    "consistency": Consistency,
    "subject_consistency": SubjectConsistency,
    "temporal_flickering": lambda config, device: temporal_flickering,
    "motion": Motion,
    "video_reward": VideoReward,
    "remote": Remote,
    "judge": Judge,
    "dpg": Dpg,
    "dpg_blip": DpgBlip,
    "judged_kinds": JudgedKinds,
    "pairwise": Pairwise,
    "function": own_reward,
}


def reward_functions(
    configs: Mapping[str, RewardConfig], device: torch.device
) -> dict[str, RewardFn]:
    """Make the rewards of a config that are called; models are loaded.

    Args:
        configs: of the rewards, by name.
        device: of the worker, for those that compute with a model.

    Raises:
        ConfigError: one cannot be made.
    """
    return {name: REWARDS[config.type](config, device) for name, config in called(configs).items()}
