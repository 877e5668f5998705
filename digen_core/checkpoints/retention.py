"""Retention: the checkpoints of a run that are removed when a new one has come."""

import logging
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from digen_core.checkpoints.manifest import (
    CHECKPOINTS_OF_RUN,
    EVALUATIONS_OF_RUN,
    MANIFEST,
    DamagedError,
    checkpoints_in,
    name_of,
    read_manifest,
)
from digen_core.config.checkpoint import EVALUATION, CheckpointConfig
from digen_core.errors import UserError
from digen_core.inputs.reading import reason_of
from digen_core.records import EvaluationReport
from digen_core.rewards.failures import FAILED
from digen_core.transport.files import remove_folder

logger = logging.getLogger(__name__)

Scored = tuple[int, Mapping[str, float]]
"""A version, and the numbers that it may be judged by."""

MOST_REMEMBERED: Final = 100_000
"""Evaluations and checkpoints whose numbers are."""

_OF_STALE: Final = "train/stale_clip_fraction"
_IN_TRAINING: Final = re.compile(r"before|iteration-\d+|after")  # tags of evaluations


def prune(run_dir: Path, config: CheckpointConfig) -> None:
    """Remove the checkpoints that are not to be kept; the newest one always is.

    Raises:
        UserError: there is no metric ``best_by``.
    """
    folder = run_dir / CHECKPOINTS_OF_RUN
    versions = [int(path.name[1:]) for path in checkpoints_in(folder)]
    scores = _scores(run_dir, config) if config.keep_best else {}
    for version in set(versions) - kept(versions, scores, config):
        remove_folder(folder / name_of(version))


def kept(versions: list[int], scores: Mapping[int, float], config: CheckpointConfig) -> set[int]:
    """Return the versions that are kept.

    Args:
        versions: that there are, in any order.
        scores: of those of them that have one, by version.
        config: says which.
    """
    newest = sorted(versions)[-config.keep_last :]
    every = config.keep_every  # whose multiples are passed where an iteration makes several
    past = [version for version in versions if every and not 0 < version < every]
    regular = {version // every: version for version in sorted(past, reverse=True)}
    sign = 1 if config.best_is == "highest" else -1
    scored = [version for version in versions if version in scores]
    best = sorted(scored, key=lambda version: (sign * scores[version], version), reverse=True)
    return {*newest, *regular.values(), *best[: config.keep_best]}


def evaluations_of(run_dir: Path) -> dict[str, EvaluationReport]:
    """Return the evaluations that a run has kept, by tag; not those made when it was over.

    A damaged file is left out, with a warning: a run can continue without it.
    """
    found = {path.stem: _evaluation_in(path) for path in _evaluation_files(run_dir)}
    return {tag: report for tag, report in found.items() if report is not None}


def _evaluation_files(run_dir: Path) -> list[Path]:
    paths = run_dir.glob(f"{EVALUATIONS_OF_RUN}/*.json")
    return [path for path in paths if _IN_TRAINING.fullmatch(path.stem)]


def _evaluation_in(path: Path) -> EvaluationReport | None:
    try:
        return EvaluationReport.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        logger.warning("%s is damaged and left out: %s", path, reason_of(error))
        return None


def _scores(run_dir: Path, config: CheckpointConfig) -> dict[int, float]:
    """Return what checkpoints are judged by, by version.

    Not all may have been judged, and of some iterations no sample has a score of a reward.
    """
    name = config.best_by.removeprefix(EVALUATION)
    if name != config.best_by:
        paths = _evaluation_files(run_dir)
    else:
        paths = [own / MANIFEST for own in checkpoints_in(run_dir / CHECKPOINTS_OF_RUN)]
    found = (_scored_in(path, path.stat().st_mtime_ns) for path in paths if path.exists())
    tables = [scored for scored in found if scored is not None]
    scores = {version: table[name] for version, table in tables if name in table}
    if tables and not scores and not _may_come(name, tables):
        known = sorted(set().union(*(table for _, table in tables)))
        raise UserError(
            f"checkpoints.best_by is {config.best_by}, but there are only {', '.join(known)}; use "
            "one of them"
        )
    return scores


def _may_come(name: str, tables: Sequence[Scored]) -> bool:
    """Say whether versions may have a metric that none has so far: a score that has failed in all.

    Nor is there a share of stale pairs as long as none of them was trained.
    """
    reward, _, part = name.rpartition("/")
    has_failed = any(f"{reward}/{FAILED}" in table for _, table in tables)
    return name == _OF_STALE or (part == "score" and has_failed)


@lru_cache(maxsize=MOST_REMEMBERED)
def _scored_in(path: Path, changed: int) -> Scored | None:
    """Return what an evaluation, or the manifest of a checkpoint, says; None: nothing, or damaged.

    It is remembered until the file has changed: there may be hundreds, and each new checkpoint
    asks for all of them.
    """
    if path.name != MANIFEST:
        report = _evaluation_in(path)
        return None if report is None else (report.version, report.rewards)
    try:
        manifest = read_manifest(path.parent)
    except DamagedError:
        return None
    # version 0, which no iteration made, has none
    return (manifest.version, manifest.metrics) if manifest.metrics else None
