"""What judges the last version of a run: its own evaluation, or other prompts, rewards and samples.

A suite is a published protocol, which says all three. Importing this module must not import torch.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import ValidationError

from digen_core.checkpoints.manifest import CHECKPOINTS_OF_RUN, checkpoints_in
from digen_core.config.load import config_of_run, describe
from digen_core.config.rewards.keys import split_key
from digen_core.config.run import RunConfig
from digen_core.data.published import (
    COMPBENCH_ATTRIBUTES,
    COMPBENCH_COLUMNS,
    DPG_CATEGORIES,
    DPG_COLUMNS,
    GENEVAL_COLUMNS,
    GENEVAL_TASKS,
)
from digen_core.errors import UserError

SuiteName = Literal["geneval", "ocr", "drawbench", "dpg", "t2i-compbench"]

Table = Mapping[str, Any]
"""What a config says of a reward."""


@dataclass(frozen=True, slots=True)
class Suite:
    """A published protocol."""

    rewards: Mapping[str, Table]  # by their types, which are their names in reports
    shown: Mapping[str, str]  # values of its table in their order, and what they are called there
    samples_per_prompt: int
    num_prompts: int | None = None  # None: not known
    columns: tuple[str, ...] = ()  # of metadata, that the rewards get
    in_percent: bool = False  # its table shows shares times 100
    num_decimals: int = 2  # that it shows
    kinds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of prompts, by the column


SUITES: Final[Mapping[SuiteName, Suite]] = {
    "geneval": Suite(
        rewards={"geneval": {"counts": "correct"}},
        shown={
            f"geneval/{task}": title
            for task, title in {"overall": "Overall", **GENEVAL_TASKS}.items()
        },
        samples_per_prompt=4,
        num_prompts=553,
        columns=GENEVAL_COLUMNS,
    ),
    "ocr": Suite(rewards={"ocr": {}}, shown={"ocr/score": "OCR accuracy"}, samples_per_prompt=1),
    "drawbench": Suite(
        rewards={"pickscore": {}, "image_reward": {}},
        shown={"pickscore/score": "PickScore", "image_reward/score": "ImageReward"},
        samples_per_prompt=1,
        num_prompts=200,
    ),
    "dpg": Suite(
        rewards={"dpg": {}},
        shown={
            **{f"dpg/{category}": title for category, title in DPG_CATEGORIES.items()},
            "dpg/score": "Overall",
        },
        samples_per_prompt=4,
        num_prompts=1065,
        columns=DPG_COLUMNS,
        in_percent=True,
    ),
    "t2i-compbench": Suite(
        rewards={"blip_vqa": {}},
        shown={f"blip_vqa/{kind}": title for kind, title in COMPBENCH_ATTRIBUTES.items()},
        samples_per_prompt=10,
        columns=COMPBENCH_COLUMNS,
        num_decimals=4,
        kinds={"category": tuple(COMPBENCH_ATTRIBUTES)},
    ),
}

_OF_ALL: Final[Table] = {"on_failure": "fail", "weight": 1.0, "pool": None}
"""What holds for each reward of a suite."""

_MAY_BE_SET: Final = re.compile(
    r"rewards(\..+)?|evaluation\.(num_steps|grid_prompts)|cluster\..+|prompts\.\w+_column"
    r"|model\.(device|height|width|num_frames|negative_prompt|guidance_\w+|vae_\w+|offload)"
)


@dataclass(frozen=True, slots=True)
class Judging:
    """What is asked for in place of a run's own evaluation."""

    prompts: str | None = None  # file or folder
    samples_per_prompt: int | None = None
    suite: SuiteName | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)  # dotted keys of the config

    def __post_init__(self) -> None:
        """Raise UserError if a key is none that may have another value."""
        for key in self.settings:
            if not _MAY_BE_SET.fullmatch(key):
                raise UserError(
                    f"{key} cannot be set where a run is judged; rewards.*, cluster.*, "
                    "evaluation.num_steps, prompts.*_column and of model its device, size, "
                    "guidance_*, negative_prompt, vae_* and offload can"
                )

    @property
    def rewards(self) -> list[str]:
        """Names of the rewards that the settings name."""
        whole = self.settings.get("rewards", {})
        names = [*whole] if isinstance(whole, Mapping) else []
        keys = (key for key in self.settings if key.startswith("rewards."))
        return [*names, *(split_key(key.removeprefix("rewards."))[0] for key in keys)]


def judged_config(run_dir: Path, asked: Judging) -> RunConfig:
    """Return a run's config to judge its last version with.

    Rewards that are named judge in place of the run's own, and beside those of a suite.

    Raises:
        UserError: the folder is not a run's, holds no version yet, or a setting is wrong.
    """
    suite = None if asked.suite is None else SUITES[asked.suite]
    samples = asked.samples_per_prompt or (None if suite is None else suite.samples_per_prompt)
    own = {"prompts.evaluation": asked.prompts, "evaluation.samples_per_prompt": samples}
    given = {key: value for key, value in own.items() if value is not None}
    # Beside the run's own at first: its pools and what compares rewards need those.
    whole = asked.settings.get("rewards")
    if isinstance(whole, Mapping):
        given |= {f"rewards.{name}": table for name, table in whole.items()}
    else:
        given |= {key: value for key, value in asked.settings.items() if key == "rewards"}
    others = {key: value for key, value in asked.settings.items() if key != "rewards"}
    config = config_of_run(run_dir, {**given, **others})
    if not checkpoints_in(run_dir / CHECKPOINTS_OF_RUN):
        raise UserError(f"{run_dir} holds no trained version yet; it has no checkpoint")
    if suite is None and not asked.rewards:
        return config
    changes = _of_rewards(config, asked) if suite is None else _of_suite(config, asked, suite)
    what = "the command line" if asked.suite is None else f"the suite {asked.suite}"
    try:
        return RunConfig.model_validate({**config.model_dump(), **changes})
    except ValidationError as error:
        raise UserError(f"{what}: {describe(error)}") from error


def _of_rewards(config: RunConfig, asked: Judging) -> dict[str, Any]:
    """Return what changes where other rewards judge than the run's own."""
    rewards = {name: config.rewards[name].model_dump() for name in asked.rewards}
    return _with_rewards(config, rewards)


def _of_suite(config: RunConfig, asked: Judging, suite: Suite) -> dict[str, Any]:
    """Return what changes where a suite judges."""
    place = config.prompts.evaluation
    if place is None:
        raise UserError(
            f"the suite {asked.suite} has prompts of its own; name their file with --prompts"
        )
    of_run: dict[str, Table] = {}
    for reward in config.rewards.values():
        of_run.setdefault(reward.type, reward.model_dump())
    named: dict[str, Table] = {name: config.rewards[name].model_dump() for name in asked.rewards}
    own = {
        kind: {**of_run.get(kind, {"type": kind}), **named.get(kind, {}), **settings}
        for kind, settings in suite.rewards.items()
    }
    rewards = {name: {**table, **_OF_ALL} for name, table in {**named, **own}.items()}
    return {
        **_with_rewards(config, rewards),
        "model": {**config.model.model_dump(), "source_image": False},  # a suite has texts
        "prompts": {"train": place, "evaluation": place, "metadata_columns": suite.columns},
    }


def _with_rewards(config: RunConfig, rewards: Mapping[str, Table]) -> dict[str, Any]:
    """Return rewards, and what else depends on which they are."""
    pools = {own.get("pool") for own in rewards.values()}
    workers = {
        pool: number for pool, number in config.cluster.reward_workers.items() if pool in pools
    }
    return {
        "rewards": dict(rewards),
        "cluster": {**config.cluster.model_dump(), "reward_workers": workers},
        "checkpoints": {**config.checkpoints.model_dump(), "keep_best": 0},
    }
