"""What judges the last version of a run: its own evaluation, or other prompts, rewards and samples.

A suite says all three. Importing this module must not import torch.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from digen_core.checkpoints.manifest import CHECKPOINTS_OF_RUN, checkpoints_in
from digen_core.checkpoints.suites import SUITES, Suite, SuiteName, Table, rewards_for
from digen_core.config.load import config_of_run, describe
from digen_core.config.prompts import PromptsConfig
from digen_core.config.rewards.keys import split_key
from digen_core.config.run import RunConfig
from digen_core.data.prompts import evaluation_prompts
from digen_core.errors import UserError

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

    def options_of(self, reward: str) -> list[str]:
        """Return which options of a reward the settings name."""
        whole, options = self.settings.get("rewards"), list[str]()
        tables = {f"rewards.{name}": own for name, own in (whole or {}).items()}
        for key, value in {**tables, **self.settings}.items():
            name, option = split_key(key.removeprefix("rewards."))
            if key.startswith("rewards.") and name == reward:
                in_table = value if isinstance(value, Mapping) else ()  # a number is a weight
                options += [option] if option else in_table
        return options


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
    _check_named(asked, suite, named)
    prompts = PromptsConfig(train=place, evaluation=place, metadata_columns=suite.columns)
    needed = [*suite.rewards]
    if suite.kind_column is not None:
        read = config.model_copy(update={"prompts": prompts})
        own_prompts = evaluation_prompts(read)
        needed = rewards_for(f"suite {asked.suite}", suite, own_prompts, asked.rewards)

    def made_of(kind: str) -> dict[str, Any]:
        if kind in suite.models:  # what the protocol says, and not what the run was trained with
            options = {key: named[kind][key] for key in asked.options_of(kind)}
            return {**suite.models[kind], **options, "type": kind}
        return {**of_run.get(kind, {"type": kind}), **named.get(kind, {})}

    own = {kind: {**made_of(kind), **suite.rewards[kind]} for kind in needed}
    others = {name: table for name, table in named.items() if name not in suite.rewards}
    rewards = {name: {**table, **_OF_ALL} for name, table in {**others, **own}.items()}
    return {
        **_with_rewards(config, rewards),
        "model": {**config.model.model_dump(), "source_image": False},  # a suite has texts
        "prompts": prompts.model_dump(),
    }


def _check_named(asked: Judging, suite: Suite, named: Mapping[str, Table]) -> None:
    """Refuse what settings say of rewards where the suite says it, and otherwise.

    Args:
        asked: with the settings.
        suite: that judges.
        named: rewards that the settings name, with all that is known of them.
    """
    for name, table in named.items():
        said = {**_OF_ALL, **suite.rewards.get(name, {})}
        for option in asked.options_of(name):
            if option in said and table[option] != said[option]:
                raise UserError(
                    f"rewards.{name}.{option} is {json.dumps(table[option])}, but the suite "
                    f"{asked.suite} has {json.dumps(said[option])} there; leave it out, or judge "
                    "by rewards without a suite"
                )


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
