"""What a run kept of an iteration, to train it again without generating; and what cannot be.

A replay may learn otherwise (``algorithm``, ``train``), but from the samples as they are.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from digen_core.checkpoints.manifest import (
    CHECKPOINTS_OF_RUN,
    checkpoints_in,
    name_of,
    read_lineage,
    read_manifest,
)
from digen_core.config.load import config_of_run
from digen_core.config.run import RunConfig
from digen_core.control.packing import PairPool, by_step, pairs_by_step
from digen_core.control.protocol import Fragment, Pack
from digen_core.data.draws import prompts_with_refills
from digen_core.data.prompts import Prompt, prompts_hash, train_prompts
from digen_core.errors import UserError
from digen_core.inputs.reading import require_file
from digen_core.maths.ddpo import RewardHistory
from digen_core.records import IterationRecord
from digen_core.rollout.steps import own_steps_of_group, steps_of_iteration, steps_to_keep
from digen_core.training.advantages import advantages_of
from digen_core.transport.metrics import METRICS_OF_RUN, read_metrics
from digen_core.transport.parquet import read_whole
from digen_core.transport.samples import SCHEMA, file_of
from digen_core.transport.segment import Segment
from digen_core.transport.trajectories import read_segments

MAY_CHANGE: Final = re.compile(
    r"algorithm\..*|train\.(?!lora|updates_per_iteration|epochs|dealt_by).*|model\.device"
)
"""Keys that a replay may set: what is learnt from the samples, and where."""

_USED: Final = ("group", "prompt", "reward", "nonfinite")
"""Columns of the samples."""


@dataclass(frozen=True)
class KeptIteration:
    """All that an iteration's update was made of."""

    config: RunConfig
    version: int  # that was trained
    checkpoint: Path | None  # of that version; None: the run's start
    record: IterationRecord  # of the run, without samples and spans
    prompts: dict[int, Prompt]  # by group
    advantages: dict[int, np.ndarray]  # group -> [G]
    packs: list[Pack]
    segments: list[Segment]


def nonfinite_config(run_dir: Path, overrides: Mapping[str, Any]) -> RunConfig:
    """Return a run's config with other settings for the work whose input is kept.

    Raises:
        UserError: the folder is no run's, or a key is another than model.device and model.dtype.
    """
    config = config_of_run(run_dir, overrides)
    for key in overrides:
        if key not in ("model.device", "model.dtype"):
            raise UserError(
                f"{key} cannot be changed where an input is as it was; --nonfinite takes "
                "model.device and model.dtype"
            )
    return config


def replay_config(run_dir: Path, overrides: Mapping[str, Any]) -> RunConfig:
    """Return a run's config with other settings for learning.

    It asks the reference policy itself, as what generation asked it is not kept.

    Raises:
        UserError: the folder is no run's, or a key is wrong or about the samples.
    """
    own = overrides and {**overrides, "schedule.reference": "training"}  # they may ask nothing
    config = config_of_run(run_dir, own).asking("training")
    for key in overrides:
        if not MAY_CHANGE.fullmatch(key):
            raise UserError(
                f"{key} cannot be changed in a replay: samples and updates are as they are; it "
                "takes algorithm.*, train.* (but lora, updates_per_iteration, epochs and dealt_by) "
                "and model.device"
            )
    if config.train.updates_per_iteration > 1:
        raise UserError(
            f"train.updates_per_iteration is {config.train.updates_per_iteration}: the versions "
            "between the updates of an iteration are not kept, so it cannot be replayed"
        )
    if config.kl_reward:
        raise UserError(
            f"algorithm.kl_reward is {config.kl_reward}: the divergences that it takes off the "
            "rewards are not kept, so such an iteration cannot be replayed"
        )
    if config.algorithm.needs_margins:
        raise UserError(
            f"algorithm.type is {config.algorithm.type}: the margins of which it makes advantages "
            "are not kept, so such an iteration cannot be replayed"
        )
    return config


def kept_iteration(run_dir: Path, config: RunConfig, iteration: int) -> KeptIteration:
    """Return what a run kept of an iteration.

    Args:
        run_dir: folder of the run.
        config: to learn with.
        iteration: from 0.

    Raises:
        UserError: something is missing that its update needs, or it had none.
    """
    record = _record_of(run_dir, iteration)
    version = record.version - 1
    checkpoint, history = checkpoint_of(run_dir, version)
    rows = _rows_of(run_dir, iteration)
    texts, columns = _by_group(rows)
    prompts = _prompts_of(run_dir, config, iteration, texts)
    left = last_groups(columns, config.rollout.prompts_per_iteration)
    columns = {group: columns[group] for group in left}
    nonfinite = columns.keys() & {row["group"] for row in rows if row["nonfinite"]}
    keys = {group: prompt.key for group, prompt in prompts.items()}
    found = advantages_of(config, columns, keys, history, nonfinite=nonfinite)
    segments = read_segments(run_dir, iteration)
    if not segments:
        raise _without_trajectories(run_dir, config, iteration)
    trained = {
        group: found.chosen.get(group, tuple(range(len(values))))
        for group, values in found.values.items()
        if group not in found.skipped
    }
    if not trained:
        raise UserError(f"iteration {iteration + 1}: no group has a signal with these settings")
    _require_samples(iteration, segments, trained)
    _require_steps(config, iteration, segments)
    packs = _packs(config, iteration, segments, trained)
    return KeptIteration(
        config, version, checkpoint, record, prompts, found.values, packs, segments
    )


def last_groups(groups: Iterable[int], count: int) -> list[int]:
    """Return the groups of an iteration that no other took the place of, ascending.

    Args:
        groups: that have rows; of those that others take the place of some may have none.
        count: groups that the iteration begins and ends with.
    """
    return sorted({group % count: group for group in sorted(groups)}.values())


def _record_of(run_dir: Path, iteration: int) -> IterationRecord:
    records = {record.iteration: record for record in read_metrics(run_dir / METRICS_OF_RUN)}
    if iteration not in records:
        known = f"1 to {max(records) + 1}" if records else "none yet"
        raise UserError(f"{run_dir} has finished no iteration {iteration + 1}; it has {known}")
    if "train/grad_norm" not in records[iteration].metrics:
        skipped = records[iteration].metrics.get("numerics/skipped_updates")
        why = "it was NaN or infinite (see --nonfinite)" if skipped else "no group had a signal"
        raise UserError(f"iteration {iteration + 1} of {run_dir} made no update: {why}")
    return records[iteration]


def checkpoint_of(run_dir: Path, version: int) -> tuple[Path | None, RewardHistory]:
    """Return the checkpoint of a version that worked, and the rewards before it.

    Raises:
        UserError: it is not kept.
    """
    folder = run_dir / CHECKPOINTS_OF_RUN
    checkpoint = folder / name_of(version)
    if checkpoint.exists():
        return checkpoint, dict(read_manifest(checkpoint).reward_history)
    if version == 0:  # follows from the seed
        return None, {}
    kept = ", ".join(path.name for path in checkpoints_in(folder)) or "none"
    raise UserError(
        f"{run_dir} keeps no checkpoint of version {version}, which was in use then, but {kept}; "
        "set checkpoints.keep_every = 1 before the run, or replay another iteration"
    )


def _rows_of(run_dir: Path, iteration: int) -> list[dict[str, Any]]:
    """Return the samples of an iteration, a row each.

    Raises:
        UserError: they are not there, or damaged.
    """
    path = file_of(run_dir / "samples", iteration)
    require_file(path, f"the samples of iteration {iteration + 1},")
    try:
        table = read_whole(path)
        if lacking := {*_USED} - {*table.schema.names}:
            raise ValueError(f"it lacks the columns {', '.join(sorted(lacking))}")
        rows: list[dict[str, Any]] = table.to_pylist()
    except (ValueError, OSError) as error:
        raise UserError(f"{path} is damaged: {' '.join(str(error).split())}") from error
    return rows


def _without_trajectories(run_dir: Path, config: RunConfig, iteration: int) -> UserError:
    """Return the error of an iteration whose latents are not there."""
    number, kept = iteration + 1, config.tracking.keep_trajectories
    if kept == "all":
        return UserError(
            f"{run_dir} keeps no trajectories of iteration {number}, though "
            "tracking.keep_trajectories is all: it was not then, or they were removed; replay "
            "another iteration"
        )
    return UserError(
        f"{run_dir} keeps no trajectories of iteration {number}, as tracking.keep_trajectories, of "
        f"the newest iterations, was {kept}; set it to more, or to all, before a run"
    )


def _by_group(rows: list[dict[str, Any]]) -> tuple[dict[int, str], dict[int, dict[str, Any]]]:
    """Return text and rewards [G] of each group; rows are in the order of the samples."""
    prompts: dict[int, str] = {}
    columns: dict[int, dict[str, Any]] = defaultdict(lambda: defaultdict(list))
    rewards = ["reward", *(name for name in rows[0] if name not in SCHEMA.names)]
    for row in rows:
        prompts[row["group"]] = row["prompt"]
        for name in rewards:
            columns[row["group"]][name].append(row[name])
    return prompts, columns


def prompts_of_run(run_dir: Path, config: RunConfig) -> list[Prompt]:
    """Return the prompts that a run was trained on, with what they came with.

    Raises:
        UserError: they, or their images, are others by now.
    """
    prompts, lineage = train_prompts(config), read_lineage(run_dir)
    if lineage is not None and prompts_hash(prompts) != lineage.prompts_hash:
        raise UserError(
            f"the prompts in {config.prompts.train}, or their images, have changed since {run_dir} "
            "began, so what it was asked is not to be had; put the old ones back"
        )
    return prompts


def _prompts_of(
    run_dir: Path, config: RunConfig, iteration: int, texts: Mapping[int, str]
) -> dict[int, Prompt]:
    """Return the prompt of each group, as it was drawn, with what it came with."""
    if config.prompts.are_texts and not config.prompts.empty_fraction:
        return {group: Prompt(text) for group, text in texts.items()}
    drawn = prompts_with_refills(config, prompts_of_run(run_dir, config), iteration)
    return {group: drawn[group] for group in texts}


def _require_samples(
    iteration: int, segments: list[Segment], trained: Mapping[int, tuple[int, ...]]
) -> None:
    """Refuse an iteration of which some fragment's files are gone: it would be another update."""
    kept = {(own.fragment.group, sample) for own in segments for sample in own.fragment.samples}
    every = {(group, sample) for group, samples in trained.items() for sample in samples}
    if lacking := sorted(every - kept):
        group, sample = lacking[0]
        more = f" (and of {len(lacking) - 1} more)" if len(lacking) > 1 else ""
        raise UserError(
            f"iteration {iteration + 1} trained sample {sample} of group {group}{more}, whose "
            "trajectory is not kept; replay another iteration"
        )


def _require_steps(config: RunConfig, iteration: int, segments: list[Segment]) -> None:
    kept = defaultdict[Fragment, set[int]](set)
    for own in segments:
        covered = range(own.first_step, own.first_step + len(own.latents) - 1)
        kept[own.fragment].update(covered if config.trains_clean else own.logprobs)
    for fragment, steps in sorted(kept.items()):
        missing = {*steps_to_keep(config, iteration, fragment.group, fragment.num_steps)} - steps
        if missing:
            raise UserError(
                f"these settings train step {min(missing)}, whose latents iteration "
                f"{iteration + 1} did not keep; leave the trained steps as they were"
            )


def _packs(
    config: RunConfig,
    iteration: int,
    segments: list[Segment],
    trained: Mapping[int, tuple[int, ...]],
) -> list[Pack]:
    """Return the pairs of the update in packs, fragment by fragment and step by step."""
    pool = PairPool()
    for fragment in sorted({segment.fragment for segment in segments}):
        steps = steps_of_iteration(config, iteration, fragment.num_steps).trained
        own = own_steps_of_group(config, iteration, fragment.group, fragment.num_steps)
        samples = [s for s in fragment.samples if s in trained.get(fragment.group, ())]
        pool.add(pairs_by_step(fragment, by_step(samples, steps, own)))
    packs: list[Pack] = []
    while pool.num_pairs:
        packs.append(Pack(iteration, len(packs), pool.take(config.train.pack_size)))
    return packs
