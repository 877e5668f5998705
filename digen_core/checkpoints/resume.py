"""Resume: choose the checkpoint, and refuse changes of the config that a run cannot continue with.

Importing this module must not import torch.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from digen_core.checkpoints.manifest import (
    CHECKPOINTS_OF_RUN,
    DamagedError,
    Lineage,
    Manifest,
    last_checkpoint,
    read_lineage,
    read_manifest,
)
from digen_core.config.load import CONFIG_OF_RUN, config_of_run, require_run
from digen_core.config.rewards.base import OF_ASKING
from digen_core.config.run import RunConfig
from digen_core.data.prompts import evaluation_prompts, prompts_hash, train_prompts
from digen_core.errors import UserError

MAY_CHANGE: Final = re.compile(
    r"name|num_iterations|max_minutes|max_cost|model\.(device|offload|vae_slicing)"
    r"|prompts\.(?!empty_fraction).*|rollout\.(fragment_size|batch_size|steps_per_task|cuda_graphs)"
    r"|train\.(pack_size|gradient_checkpointing|max_replay_error|min_gradient_cosine)"
    r"|numerics\.patience"
    r"|evaluation\.(every|grid_prompts)|(cluster|parallel|schedule|checkpoints|tracking)\..*"
    rf"|rewards\.(?!.*\.options\.).*\.({'|'.join(OF_ASKING)})"
)
"""Keys of a config that say how, where and how long a run works, not what it learns. Of prompts
the content counts, and how many are emptied, not the place; what options of a reward of the user's
say nobody knows, whatever they are called."""

MAX_NAMED: Final = 3
"""Changed keys that a message names."""

_MISSING: Final = object()


AUTO: Final = "auto"
"""In place of a run's folder: the newest run of the config's name, else a new one."""


@dataclass(frozen=True)
class Resumption:
    """The place from which a run is resumed."""

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
    """Return from where a run is resumed, having checked that it is the same run.

    Args:
        config: to resume it with.
        run_dir: folder of the run.

    Raises:
        UserError: the folder is no run's, every checkpoint is damaged, or something has changed
            that may not.
    """
    require_run(run_dir)
    before, lineage = config_of_run(run_dir), read_lineage(run_dir)
    checkpoint, damaged = last_checkpoint(run_dir / CHECKPOINTS_OF_RUN)
    manifest = read_manifest(checkpoint) if checkpoint else None
    found = Resumption(run_dir, lineage, checkpoint, manifest, tuple(damaged))
    _check_same(before, config, run_dir)
    _check_num_iterations(before, config, found)
    if lineage is not None:
        for key in ("train", "evaluation"):
            if changed := changed_prompts(key, config, lineage, run_dir):
                raise UserError(f"{changed}; put the old prompts back, or start a new run")
    return found


def newest_run(config: RunConfig) -> Path | None:
    """Return the folder of the newest run of the config's name; None if there is none."""
    name = re.compile(re.escape(config.name) + r"-(\d{8}-\d{6})(?:-(\d+))?")
    found: list[tuple[str, int, Path]] = []
    for path in Path(config.tracking.runs_dir).glob(f"*/{CONFIG_OF_RUN}"):
        if match := name.fullmatch(path.parent.name):
            found.append((match[1], int(match[2] or 1), path.parent))
    return max(found)[2] if found else None


def _check_same(before: RunConfig, now: RunConfig, run_dir: Path) -> None:
    old, new = before.model_dump(mode="json"), now.model_dump(mode="json")
    changed = [change for change in _changes(old, new) if not MAY_CHANGE.fullmatch(change[0])]
    if not changed:
        return
    changed.sort(key=lambda change: not change[0].endswith("type"))  # it explains the others
    named = [f"{key} was {then} and is now {now}" for key, then, now in changed[:MAX_NAMED]]
    more = f", and {len(changed) - MAX_NAMED} more" if len(changed) > MAX_NAMED else ""
    raise UserError(
        f"{run_dir} cannot go on as what would be another run: {'; '.join(named)}{more}; leave "
        "that as it was, or start a new run"
    )


def _check_num_iterations(before: RunConfig, now: RunConfig, found: Resumption) -> None:
    if now.num_iterations < found.num_iterations:
        raise UserError(
            f"num_iterations is {now.num_iterations}, but {found.run_dir} has finished "
            f"{found.num_iterations}; use {found.num_iterations} or more"
        )
    decay = now.train.learning_rate_decay
    if decay != "none" and now.num_iterations != before.num_iterations:
        raise UserError(
            f"num_iterations was {before.num_iterations} and is now {now.num_iterations}, but with "
            f"train.learning_rate_decay {decay} every update's learning rate depends on it; leave "
            "it as it was"
        )


def changed_prompts(
    key: Literal["train", "evaluation"], config: RunConfig, lineage: Lineage, run_dir: Path
) -> str | None:
    """Return a line that says that prompts are others than when a run began; None: they are not.

    Args:
        key: which prompts.
        config: that says where they are.
        lineage: of the run, with their hashes.
        run_dir: folder of the run.

    Raises:
        UserError: they cannot be read.
    """
    if key == "train":
        path, expected = config.prompts.train, lineage.prompts_hash
        now = prompts_hash(train_prompts(config))
    else:
        path = config.prompts.evaluation or config.prompts.train
        expected, now = lineage.evaluation_prompts_hash, prompts_hash(evaluation_prompts(config))
    if now == expected:
        return None
    return (
        f"prompts.{key}: the content of {path} has changed since {run_dir} began (hash {expected} "
        f"then, {now} now)"
    )


def _changes(old: Any, new: Any, key: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield each dotted key that differs in two trees, with its old and new value as text."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        if old != new:
            yield key, _shown(old), _shown(new)
        return
    for name in dict.fromkeys((*old, *new)):
        inner = f"{key}.{name}" if key else name
        yield from _changes(old.get(name, _MISSING), new.get(name, _MISSING), inner)


def _shown(value: Any) -> str:
    if value is _MISSING:
        return "not there"
    return "a table" if isinstance(value, dict) else json.dumps(value)
