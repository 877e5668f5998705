"""Retention: the checkpoints of a run that are removed when a new one has come."""

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from digen_core.checkpoints.manifest import (
    CHECKPOINTS_OF_RUN,
    EVALUATIONS_OF_RUN,
    DamagedError,
    Manifest,
    checkpoints_in,
    name_of,
    read_manifest,
)
from digen_core.config.checkpoint import EVALUATION, CheckpointConfig
from digen_core.errors import UserError
from digen_core.records import EvaluationReport
from digen_core.transport.files import remove_folder

logger = logging.getLogger(__name__)

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
    regular = [v for v in versions if config.keep_every and v % config.keep_every == 0]
    sign = 1 if config.best_is == "highest" else -1
    scored = [version for version in versions if version in scores]
    best = sorted(scored, key=lambda version: (sign * scores[version], version), reverse=True)
    return {*newest, *regular, *best[: config.keep_best]}


def evaluations_of(run_dir: Path) -> dict[str, EvaluationReport]:
    """Return the evaluations that a run has kept, by tag; not those made when it was over.

    A damaged file is left out, with a warning: a run can continue without it.
    """
    found: dict[str, EvaluationReport] = {}
    for path in run_dir.glob(f"{EVALUATIONS_OF_RUN}/*.json"):
        if not _IN_TRAINING.fullmatch(path.stem):
            continue
        try:
            found[path.stem] = EvaluationReport.model_validate_json(path.read_bytes())
        except (OSError, ValueError) as error:
            logger.warning("%s is damaged and left out: %s", path, " ".join(str(error).split()))
    return found


def _scores(run_dir: Path, config: CheckpointConfig) -> dict[int, float]:
    """Return what checkpoints are judged by, by version; not all may have been judged."""
    name = config.best_by.removeprefix(EVALUATION)
    if name != config.best_by:
        tables = [(r.version, r.rewards) for r in evaluations_of(run_dir).values()]
    else:
        found = _manifests(run_dir / CHECKPOINTS_OF_RUN)
        # version 0, which no iteration made, has none
        tables = [(manifest.version, manifest.metrics) for manifest in found if manifest.metrics]
    for _, table in tables:
        if name not in table:
            raise UserError(
                f"checkpoints.best_by is {config.best_by}, but there are only "
                f"{', '.join(sorted(table))}; use one of them"
            )
    return {version: table[name] for version, table in tables}


def _manifests(folder: Path) -> Iterator[Manifest]:
    for checkpoint in checkpoints_in(folder):
        with suppress(DamagedError):
            yield read_manifest(checkpoint)
