"""What a story left, held against what the run in peace left."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from mlflow import MlflowClient

from deployments.chaos.ledger import Work
from deployments.chaos.outcome import Outcome
from deployments.chaos.services import DATABASE, FOLDER
from digen_core.checkpoints.tensors import last_state
from digen_core.config.load import CONFIG_OF_RUN
from digen_core.errors import UserError
from digen_core.transport.arrays import distance
from digen_core.transport.metrics import METRICS_OF_RUN, read_metrics
from digen_core.transport.samples import read_samples

TOLERANCE: Final = 1e-10
"""Of weights of float64, relative to the largest: gradients may be added up in another order."""
TOLERANCE_OF_FLOAT32: Final = 1e-5
"""Of others: whatever the dtype of the model, the optimizer's weights have float32 at least."""
LOOSER: Final = 1e3
"""A reward or a metric may be that many times as far away: it magnifies what weights differ."""
TIMELINES: Final = "timelines"
"""Pictures that are drawn beside the run: one that ends at once leaves out the last of them."""
_TRACKED: Final = ("reward", "evaluation/")
_PREFIXES: Final = ("reward", "train/", "evaluation/")


@dataclass(frozen=True)
class Left:
    """What a run left."""

    run_dirs: Sequence[Path]
    dtype: str

    @classmethod
    def in_folder(cls, runs_dir: Path, dtype: str) -> "Left":
        """Return what there is in a folder of runs."""
        return cls([config.parent for config in sorted(runs_dir.glob(f"*/{CONFIG_OF_RUN}"))], dtype)

    @property
    def tolerance(self) -> float:
        """Of weights."""
        return TOLERANCE if self.dtype == "float64" else TOLERANCE_OF_FLOAT32


def complaints_of(outcome: Outcome, left: Left, peace: Left) -> list[str]:
    """Return what is wrong with what a story left; nothing if all is as without faults."""
    last, found = outcome.attempts[-1], []
    if last.is_late:
        found.append("it did not end")
    elif last.code:
        found.append(f"it ended with exit code {last.code}: {last.last_line}")
    if any(attempt.has_traceback for attempt in outcome.attempts):
        found.append("a traceback was shown")
    found += [
        f"left over: {command}" for attempt in outcome.attempts for command in attempt.left_over
    ]
    if len(left.run_dirs) != 1:
        return [*found, f"{len(left.run_dirs)} folders of runs"]
    if not last.code:
        found += _differences(left.run_dirs[0], peace.run_dirs[0], peace.tolerance)
    return found


def excess_of(outcome: Outcome, peace: Outcome) -> list[str]:
    """Return in which iterations a story did more again than was lost."""
    needed, lost, found = peace.asked, outcome.lost, []
    for iteration, asked in sorted(outcome.asked.items()):
        for name, what in (("sample_steps", "denoising steps"), ("pairs", "training pairs")):
            own, need, gone = (
                getattr(work, name)
                for work in (asked, needed.get(iteration, Work()), lost.get(iteration, Work()))
            )
            if own > need + gone:
                found.append(
                    f"iteration {iteration + 1}: {own - need} {what} were done again, and at most "
                    f"{gone} were lost"
                )
    return found


def _differences(run_dir: Path, peace: Path, tolerance: float) -> Iterator[str]:
    try:
        own, expected = last_state(run_dir), last_state(peace)
    except UserError as error:
        yield str(error)
        return
    if own.version != expected.version:
        yield f"its last version is {own.version}, not {expected.version}"
    for part in ("weights", "ema"):
        apart = distance(getattr(own, part), getattr(expected, part))
        if not apart <= tolerance:
            yield f"{part} differ by {apart:.1e} (limit {tolerance:.0e})"
    yield from differing_rows("samples", _samples(run_dir), _samples(peace), LOOSER * tolerance)
    yield from differing_rows("metrics", _metrics(run_dir), _metrics(peace), LOOSER * tolerance)
    yield from differing_rows("MLflow", _tracked(run_dir), _tracked(peace), LOOSER * tolerance)
    if names := _names(peace) - _names(run_dir):
        yield f"not in its folder: {', '.join(sorted(names))}"
    if names := _names(run_dir) - _names(peace):
        yield f"left in its folder: {', '.join(sorted(names))}"


Rows = Sequence[tuple[Any, float]]


def differing_rows(what: str, own: Rows, expected: Rows, tolerance: float) -> Iterator[str]:
    """Yield what is wrong with named numbers."""
    names, others = [name for name, _ in own], [name for name, _ in expected]
    if twice := len(names) - len(set(names)):
        yield f"{what}: {twice} are there twice"
    if missing := set(others) - set(names):
        yield f"{what}: {len(missing)} are missing, such as {min(missing)}"
    if more := set(names) - set(others):
        yield f"{what}: {len(more)} should not be there, such as {min(more)}"
    values = dict(own)
    for name, value in expected:
        if name in values and not np.isclose(values[name], value, rtol=tolerance, atol=tolerance):
            yield f"{what}: {name} is {values[name]:.9g}, not {value:.9g}"
            return


def _samples(run_dir: Path) -> Rows:
    rows = read_samples(run_dir / "samples").to_pylist()
    return [((row["iteration"], row["group"], row["sample"]), row["reward"]) for row in rows]


def _metrics(run_dir: Path) -> Rows:
    return [
        ((record.iteration, name), value)
        for record in read_metrics(run_dir / METRICS_OF_RUN)
        for name, value in record.metrics.items()
        if name.startswith(_PREFIXES)
    ]


def _tracked(run_dir: Path) -> Rows:
    """Return what MLflow shows of a run and its evaluations: rewards by iteration, and files."""
    served = run_dir.parent.parent / FOLDER
    folder = served if (served / DATABASE).exists() else run_dir.parent
    client = MlflowClient(f"sqlite:///{folder / DATABASE}")
    found: list[tuple[Any, float]] = []
    for experiment in client.search_experiments():
        for run in client.search_runs([experiment.experiment_id]):
            nested = "mlflow.parentRunId" in run.data.tags
            of = run.info.run_name.removeprefix(run_dir.name) if nested else "run"
            found += [((of, "status", run.info.status), 0.0)]
            found += [((of, "parameters"), float(len(run.data.params)))]
            for name in sorted(n for n in run.data.metrics if n.startswith(_TRACKED)):
                history = client.get_metric_history(run.info.run_id, name)
                found += [((of, name, point.step), point.value) for point in history]
            for artifacts in folder.rglob(f"{run.info.run_id}/artifacts"):
                files = (path.relative_to(artifacts) for path in _files(artifacts))
                found += [((of, str(path)), 0.0) for path in files if path.parts[0] != TIMELINES]
    return found


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _names(run_dir: Path) -> set[str]:
    """Return what lies in a run's folder, but for timelines, and what somebody asked of it."""
    names = {path.name for path in run_dir.iterdir() if not path.name.startswith(".explain")}
    return names - {TIMELINES}
