"""Commands about what runs logged."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from deployments.views.terminal import terminal
from digen_core.config.load import tree_of_run
from digen_core.config.schedule import SQLITE, database_in, mlflow_of_environment
from digen_core.errors import UserError
from digen_core.inputs.addresses import redacted
from digen_core.inputs.text import number_of, printable

LOCAL_MLFLOW = f"{SQLITE}runs/mlflow.db"


def compare(
    run: str,
    /,
    *others: str,
    metric: Annotated[list[str] | None, Parameter(consume_multiple=True, negative="")] = None,
    out: Path = Path("runs/compare"),
    mlflow_uri: str | None = None,
) -> int:
    """Show what differs between runs, and draw their curves together.

    Example: digen compare runs/shapes-20260101-120000 runs/shapes-20260102-120000

    Args:
        run: Folder of a run, or its name or id in MLflow.
        others: The runs to compare it with.
        metric: Metrics to show; default: evaluations, rewards, training and speed.
        out: Folder for the picture of the curves, compare.png.
        mlflow_uri: MLflow with runs that are given by name; default: MLFLOW_TRACKING_URI, else
            runs/mlflow.db.
    """
    _check_mlflow(mlflow_uri)
    if not others:
        raise UserError(f"what is {run} to be compared with? Give two runs or more")
    uri = mlflow_uri or mlflow_of_environment() or LOCAL_MLFLOW
    for target in (run, *others):  # MLflow takes seconds to import: mistakes are reported before
        if Path(target).is_dir():
            tree_of_run(Path(target))
        elif (database := database_in(uri)) is not None and not database.exists():
            raise UserError(
                f"there is no run {target}: no folder has that name, and MLflow has no file "
                f"{database}"
            )

    from deployments.views import compare as command
    from tasks.tracking.history import read_run

    targets = (run, *others)
    runs = command.told_apart(targets, [read_run(target, uri) for target in targets])
    names = command.metrics_to_show(runs, metric or [])
    console = terminal()
    command.print_comparison(runs, names, console)
    if names:
        console.print(f"curves: {command.write_curves(runs, names, out)}", markup=False)
    return 0


def sync(run: Path, /, *others: Path, mlflow_uri: str | None = None) -> int:
    """Send what runs logged and MLflow has not taken: after a crash, or while it was away.

    Example: digen sync runs/shapes-20260101-120000

    A run that is alive sends by itself; one whose process is gone is marked as killed. Places in
    tracking.also are told what they lack, too.

    Args:
        run: Folder of a run.
        others: More of them.
        mlflow_uri: MLflow to send to, where that of the run is neither the one in
            MLFLOW_TRACKING_URI nor mlflow.db beside the run's folder.
    """
    _check_mlflow(mlflow_uri)
    if mlflow_uri and (database := database_in(mlflow_uri)) and not database.exists():
        raise UserError(
            f"--mlflow-uri is {mlflow_uri}, but MLflow has no file {database}; correct it"
        )

    from tasks.tracking.sync import send_rest

    code = 0
    for folder in (run, *others):
        sent = send_rest(folder, mlflow_uri)
        left = number_of(sent.num_left, "entry", "entries")
        if sent.is_busy:
            text = f"is alive and sends by itself; {left} left"
        elif sent.num_left:
            text = f"{left} left, which MLflow at {sent.uri} does not take"
            code = 1
        else:
            text = f"{number_of(sent.num_sent, 'entry', 'entries')} sent to {sent.uri}"
        if sent.also:
            text += f"; {' and '.join(sent.also)} told"
        if sent.not_yet:
            text += f"; {' and '.join(sent.not_yet)} did not take all"
            code = 1
        sys.stdout.write(printable(redacted(f"{sent.name}: {text}")) + "\n")
    return code


def _check_mlflow(uri: str | None) -> None:
    """Check an address that was given for MLflow."""
    if uri is not None:
        from digen_core.preflight.network import check_tracking

        check_tracking("--mlflow-uri", uri)
