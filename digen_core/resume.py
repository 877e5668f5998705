"""Where a run is to be gone on with, and what may not have changed since it began.

Importing this module must not import torch.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from digen_core.config import ConfigError, RunConfig
from digen_core.config_file import config_of_run
from digen_core.data import read_prompts
from digen_core.manifest import (
    CHECKPOINTS_OF_RUN,
    DamagedError,
    Lineage,
    Manifest,
    checkpoints_in,
    last_checkpoint,
    prompts_hash,
    read_lineage,
    read_manifest,
)

MAY_CHANGE: Final = re.compile(
    r"name|num_iterations|max_minutes|model\.device|prompts\.(train|evaluation)"
    r"|rollout\.(fragment_size|steps_per_task)|train\.(pack_size|gradient_checkpointing)"
    r"|evaluation\.(every|grid_prompts)|(cluster|schedule|checkpoints|tracking)\..*"
    r"|rewards\..*\.(url|timeout|max_attempts|backoff_seconds)"
)
"""Keys of a config that say how, where and how long a run works, not what it learns. Of prompt
files the content counts, not the place."""

MAX_NAMED: Final = 3
"""Changed keys that a message names."""


@dataclass(frozen=True)
class Resumption:
    """Where a run is to be gone on with."""

    run_dir: Path
    lineage: Lineage | None  # None: it ended before it was tracked
    checkpoint: Path | None = None  # None: none was written yet
    manifest: Manifest | None = None  # of the checkpoint
    damaged: tuple[DamagedError, ...] = ()  # newer ones

    @property
    def num_iterations(self) -> int:
        """Iterations that are not done again."""
        return self.manifest.num_iterations if self.manifest else 0


def resumption_of(config: RunConfig, run_dir: Path) -> Resumption:
    """Return from where a run can be gone on with, having checked that it is the same run.

    Args:
        config: to go on with.
        run_dir: folder of the run.

    Raises:
        ConfigError: the folder is no run's, every checkpoint is damaged, or something has changed
            that may not.
    """
    if not run_dir.is_dir():
        raise ConfigError(f"there is no run folder {run_dir}; give one such as runs/NAME")
    before, lineage = config_of_run(run_dir), read_lineage(run_dir)
    checkpoint, damaged = last_checkpoint(run_dir / CHECKPOINTS_OF_RUN)
    manifest = read_manifest(checkpoint) if checkpoint else None
    found = Resumption(run_dir, lineage, checkpoint, manifest, tuple(damaged))
    _check_same(before, config, run_dir)
    _check_num_iterations(before, config, found)
    if lineage is not None:
        _check_prompts(config, lineage, run_dir)
    return found


def _check_same(before: RunConfig, now: RunConfig, run_dir: Path) -> None:
    old, new = _leaves(before.model_dump(mode="json")), _leaves(now.model_dump(mode="json"))
    changed = [
        f"{key} was {_shown(old, key)} and is now {_shown(new, key)}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key) and not MAY_CHANGE.fullmatch(key)
    ]
    if changed:
        more = len(changed) - MAX_NAMED
        rest = f", and {more} more" if more > 0 else ""
        raise ConfigError(
            f"{run_dir} cannot go on with what would be another run: "
            f"{'; '.join(changed[:MAX_NAMED])}{rest}; leave that as it was, or start a new run"
        )


def _check_num_iterations(before: RunConfig, now: RunConfig, found: Resumption) -> None:
    if now.num_iterations < found.num_iterations:
        raise ConfigError(
            f"num_iterations is {now.num_iterations}, but {found.run_dir} has finished "
            f"{found.num_iterations}; use {found.num_iterations} or more"
        )
    decay = now.train.learning_rate_decay
    if decay != "none" and now.num_iterations != before.num_iterations:
        raise ConfigError(
            f"num_iterations was {before.num_iterations} and is now {now.num_iterations}, but with "
            f"train.learning_rate_decay {decay} every update's learning rate depends on it; leave "
            "it as it was"
        )


def _check_prompts(config: RunConfig, lineage: Lineage, run_dir: Path) -> None:
    for key, path, expected in (
        ("train", config.prompts.train, lineage.prompts_hash),
        ("evaluation", config.prompts.evaluation, lineage.evaluation_prompts_hash),
    ):
        found = prompts_hash(read_prompts(path))
        if found != expected:
            raise ConfigError(
                f"prompts.{key}: the content of {path} has changed since {run_dir} began (hash "
                f"{expected} then, {found} now); put the old prompts back, or start a new run"
            )


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of a tree by dotted key."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            found.update(_leaves(value, f"{prefix}{name}."))
        else:
            found[prefix + name] = value
    return found


def _shown(leaves: Mapping[str, Any], key: str) -> str:
    return repr(leaves[key]) if key in leaves else "not there"


def evaluation_config(
    run_dir: Path, prompts: str | None, samples_per_prompt: int | None
) -> RunConfig:
    """Return a run's config to judge its last version with; None keeps the run's own setting.

    Raises:
        ConfigError: the folder is not a run's, holds no version yet, or a setting is wrong.
    """
    asked = {"prompts.evaluation": prompts, "evaluation.samples_per_prompt": samples_per_prompt}
    given = {key: value for key, value in asked.items() if value is not None}
    config = config_of_run(run_dir, given)
    if not checkpoints_in(run_dir / CHECKPOINTS_OF_RUN):
        raise ConfigError(f"{run_dir} holds no trained version yet; it has no checkpoint")
    return config
