"""The state of a run, as its folder shows it: running, finished or stopped, and how far it is.

Nothing here imports torch, Prefect or MLflow: ``digen ls`` shows it at once. Damaged files that a
run could continue without are passed over.
"""

import fcntl
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, Literal

from pydantic import ValidationError

from digen_core.checkpoints.manifest import EVALUATIONS_OF_RUN
from digen_core.config.load import CONFIG_OF_RUN, config_of_run, require_run
from digen_core.errors import UserError
from digen_core.records import FIRST, LAST, EvaluationReport, IterationRecord
from digen_core.transport.entries import FOLDER, last_entries
from digen_core.transport.metrics import METRICS_OF_RUN, last_metrics

LOCK_OF_RUN: Final = ".lock"
"""Held, and written into, by the process that trains."""

MOST_BYTES: Final = 2**20
"""Of what a run told MLflow, that are read: its end tells the state."""

State = Literal["running", "finished", "stopped"]


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that trains a run."""

    pid: int
    host: str

    @property
    def is_here(self) -> bool:
        """Whether it is a process of this machine."""
        return self.host == os.uname().nodename


@dataclass(frozen=True, slots=True)
class RunState:
    """How far a run is."""

    folder: Path
    began: datetime
    state: State
    num_done: int  # iterations
    num_iterations: int | None  # None: its config cannot be read
    last: IterationRecord | None
    evaluation: EvaluationReport | None  # the newest of its own


def runs_in(runs_dir: Path) -> list[Path]:
    """Return the folders of runs, the oldest first; not those that one may not look into.

    Raises:
        UserError: the folder cannot be read.
    """
    try:
        paths = list(runs_dir.iterdir())
    except OSError as error:
        raise UserError(f"cannot read {runs_dir}: {error.strerror}") from error
    return sorted(filter(_is_run, paths), key=lambda path: (_began(path), path.name))


def _is_run(folder: Path) -> bool:
    try:
        return (folder / CONFIG_OF_RUN).is_file()
    except PermissionError:  # somebody else's
        return False


def find_run(run: str, runs_dir: Path) -> Path:
    """Return the folder of a run that is given by folder or name.

    Raises:
        UserError: there is none.
    """
    named = runs_dir / run
    folder = named if not Path(run).is_dir() and named.is_dir() else Path(run)
    require_run(folder if folder.is_dir() or "/" in run else named)
    return folder


def state_of(run_dir: Path) -> RunState:
    """Return how far a run is.

    Raises:
        UserError: the folder is not there.
    """
    require_run(run_dir)
    try:
        total: int | None = config_of_run(run_dir).num_iterations
    except UserError:
        total = None
    last, evaluations = _last_record(run_dir), _evaluations(run_dir)
    after, version = evaluations.get(LAST), last.version if last else 0
    newest = max(evaluations.values(), key=lambda report: report.version, default=None)
    done = last.iteration + 1 if last else 0
    is_over = after is not None and after.version == version and not _ended_otherwise(run_dir)
    state: State = "running" if holder_of(run_dir) else "finished" if is_over else "stopped"
    return RunState(run_dir, _began(run_dir), state, done, total, last, newest)


def holder_of(run_dir: Path) -> Holder | None:
    """Return the process that trains a run; None: nobody does."""
    path = run_dir / LOCK_OF_RUN
    try:
        pid, _, host = path.read_text().partition(" on ")
        holder = Holder(int(pid), host.strip())
        if holder.is_here and not _exists(holder.pid):
            return None
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return holder
    except (OSError, ValueError):  # there is none, or it is of a run that has only begun
        return None
    return None


def require_idle(run_dir: Path) -> None:
    """Check that no process trains a run, as far as its folder tells.

    Raises:
        UserError: one does.
    """
    if holder := holder_of(run_dir):
        raise trained_elsewhere(run_dir, f"{holder.pid} on {holder.host}")


def trained_elsewhere(run_dir: Path, holder: str) -> UserError:
    """Return the error of who wants to write in a run's folder while another process does.

    Args:
        run_dir: folder of the run.
        holder: that process, as its lock names it.
    """
    return UserError(
        f"{run_dir} is being trained by process {holder}; wait until it has ended, or stop it first"
    )


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return True


def _began(run_dir: Path) -> datetime:
    """Return when a run was begun: as its name says, or by the first file that it keeps.

    One that is resumed writes its config again, but not that.
    """
    if found := re.search(r"-(\d{8}-\d{6})(-\d+)?$", run_dir.resolve().name):
        with suppress(ValueError):  # it is no time
            return datetime.strptime(found[1], "%Y%m%d-%H%M%S")
    first = run_dir / FOLDER / "run.json"
    path = first if first.is_file() else run_dir / CONFIG_OF_RUN
    return datetime.fromtimestamp(path.stat().st_mtime)


def _ended_otherwise(run_dir: Path) -> bool:
    """Say whether the last that a run told MLflow of its state is that it goes on, or failed.

    As one that was killed while it exported, or was resumed and killed.
    """
    try:
        entries = last_entries(run_dir, MOST_BYTES)
    except OSError:
        return False
    told = [entry.get("status") for entry in entries if entry["kind"] == "status"]
    return bool(told) and told[-1] != "FINISHED"


def _last_record(run_dir: Path) -> IterationRecord | None:
    try:
        return last_metrics(run_dir / METRICS_OF_RUN)
    except (OSError, ValueError, TypeError):
        return None


def _evaluations(run_dir: Path) -> dict[str, EvaluationReport]:
    """Return the evaluations of a run by tag; of those between iterations the last one alone.

    There may be hundreds of these, and each has the scores of all samples. Those that were made
    when it was over may be of other prompts and rewards.
    """
    others, between = dict[str, Path](), dict[int, Path]()
    for path in run_dir.glob(f"{EVALUATIONS_OF_RUN}/*.json"):
        if number := re.fullmatch(r"iteration-(\d+)", path.stem):
            between[int(number[1])] = path
        elif path.stem in (FIRST, LAST):
            others[path.stem] = path
    found = {tag: report for tag, path in others.items() if (report := _evaluation(path))}
    last = (between[number] for number in sorted(between, reverse=True))
    found |= next(({own.stem: report} for own in last if (report := _evaluation(own))), {})
    return found


def _evaluation(path: Path) -> EvaluationReport | None:
    try:
        return EvaluationReport.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
