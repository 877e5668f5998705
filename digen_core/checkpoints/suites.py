"""Published protocols to judge a run's model by: other prompts, samples and rewards than its own.

Importing this module must not import torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import ValidationError

from digen_core.checkpoints.resume import evaluation_config
from digen_core.config.load import describe
from digen_core.config.run import RunConfig
from digen_core.data.published import GENEVAL_COLUMNS, GENEVAL_TASKS
from digen_core.errors import UserError

SuiteName = Literal["geneval"]


@dataclass(frozen=True, slots=True)
class Suite:
    """A published protocol."""

    reward: str  # its type, and its name in reports
    settings: Mapping[str, Any]  # of the reward
    columns: tuple[str, ...]  # that the reward gets
    num_prompts: int
    samples_per_prompt: int
    tasks: Mapping[str, str]  # in the order of its table, and what they are called there


SUITES: Final[Mapping[SuiteName, Suite]] = {
    "geneval": Suite(
        reward="geneval",
        settings={"counts": "correct", "on_failure": "fail", "weight": 1.0, "pool": None},
        columns=GENEVAL_COLUMNS,
        num_prompts=553,
        samples_per_prompt=4,
        tasks={"overall": "Overall", **GENEVAL_TASKS},
    )
}


@dataclass(frozen=True, slots=True)
class AskedSuite:
    """A suite that is asked for; models that are None are those of the run's own reward."""

    name: SuiteName
    detector: str | None = None
    clip: str | None = None


def suite_config(
    run_dir: Path, asked: AskedSuite, prompts: str | None, samples_per_prompt: int | None
) -> RunConfig:
    """Return a run's config to judge its last version with by a suite, and by nothing else.

    Args:
        run_dir: folder of the run.
        asked: the suite, and the models of its reward.
        prompts: its file or folder; None: the run's evaluation prompts are those of the suite.
        samples_per_prompt: None: as published.

    Raises:
        UserError: the folder is not a run's, holds no version yet, or a setting is wrong.
    """
    suite = SUITES[asked.name]
    config = evaluation_config(run_dir, None, samples_per_prompt or suite.samples_per_prompt)
    place = prompts or config.prompts.evaluation
    if place is None:
        raise UserError(
            f"the suite {asked.name} has prompts of its own; name their file with --prompts"
        )
    own = (reward for reward in config.rewards.values() if reward.type == suite.reward)
    reward = next((reward.model_dump() for reward in own), {"type": suite.reward})
    models = {"detector": asked.detector, "path": asked.clip}
    given = {key: value for key, value in models.items() if value is not None}
    changes = {
        "rewards": {suite.reward: {**reward, **suite.settings, **given}},
        "model": {**config.model.model_dump(), "source_image": False},  # a suite has texts
        "prompts": {"train": place, "evaluation": place, "metadata_columns": suite.columns},
        "cluster": {**config.cluster.model_dump(), "reward_workers": {}},
    }
    try:
        return RunConfig.model_validate({**config.model_dump(), **changes})
    except ValidationError as error:
        raise UserError(f"the suite {asked.name}: {describe(error)}") from error
