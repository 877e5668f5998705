"""What can be known to be wrong before anything starts: files, folders, names, devices.

Each check raises ConfigError with one line: what is wrong, its value, and what to do. Checks that
need no torch come first, so that the usual mistakes show at once.
"""

import os
from pathlib import Path

from digen_core.config import ConfigError, RunConfig
from digen_core.data import Prompt, evaluation_prompts, normal_text, train_prompts
from digen_core.model_checks import check_model
from digen_core.reward_checks import check_rewards


def check_inputs(config: RunConfig) -> None:
    """Check all that a run reads and writes, without loading the model.

    Raises:
        ConfigError: something is missing or does not fit; the message is one line.
    """
    train, evaluation = train_prompts(config), evaluation_prompts(config)
    _check_held_out(config, train, evaluation)
    _check_enough_prompts(config, train)
    _check_runs_dir(Path(config.tracking.runs_dir))
    check_rewards(config, train, evaluation)
    check_model(config)


def _check_held_out(config: RunConfig, train: list[Prompt], evaluation: list[Prompt]) -> None:
    trained = {normal_text(prompt.text) for prompt in train}
    shared = [prompt for prompt in evaluation if normal_text(prompt.text) in trained]
    if not shared:
        return
    what = (
        f"{len(shared)} of {len(evaluation)} evaluation prompts are trained on, the first being "
        f"{shared[0].text!r}"
    )
    if config.prompts.evaluation is None:
        raise ConfigError(f"{what}; put all its rows into one split ({shared[0].origin})")
    raise ConfigError(
        f"{what}; keep them in one of {config.prompts.train} and {config.prompts.evaluation} only"
    )


def _check_enough_prompts(config: RunConfig, train: list[Prompt]) -> None:
    wanted = config.rollout.prompts_per_iteration
    if wanted > len(train):
        raise ConfigError(
            f"rollout.prompts_per_iteration is {wanted}, but {config.prompts.train} has only "
            f"{len(train)} prompts to train on; use at most {len(train)}"
        )


def _check_runs_dir(runs_dir: Path) -> None:
    existing = runs_dir
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise ConfigError(f"tracking.runs_dir is {runs_dir}, but {existing} is a file")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"tracking.runs_dir is {runs_dir}, but {existing} is not writable")
