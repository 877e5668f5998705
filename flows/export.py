"""Write the trained weights in the form that diffusers loads."""

from pathlib import Path

from prefect import flow

from digen_core.checkpoints.manifest import CHECKPOINTS_OF_RUN, DamagedError, name_of
from flows.runtime.context import RunContext, context_of
from flows.runtime.fleet.losses import DevicesLostError, StateLostError, take_over
from flows.runtime.fleet.task_set import Submitted, TaskSet
from flows.runtime.observers import say
from flows.runtime.publishing import publish_model
from tasks.body import ONCE
from tasks.export import export_adapter, export_transformer
from tasks.receipts import Nothing
from tasks.runner.completions import Completions


@flow(**ONCE, name="export", flow_run_name="{run_id}-export", validate_parameters=False)
def export(run_id: str) -> None:
    """Save LoRA adapters or the transformer under the run's folder, and register them in MLflow.

    Raises:
        StateLostError: the worker that holds the optimizer's state is lost, and nobody has a copy,
            or the checkpoint of the last version is damaged.
    """
    run = context_of(run_id)
    name = "transformer" if run.config.train.lora is None else "lora"
    folder = run.shared_dir / name
    say(f"exporting version {run.progress.version}")
    with Completions() as completions, TaskSet(run, completions) as task_set:
        _export(run, task_set, folder)
    publish_model(run, folder)


def _export(run: RunContext, task_set: TaskSet, folder: Path) -> None:
    """Have the weights written, whatever else is lost meanwhile.

    Raises:
        StateLostError: as `export` does.
    """
    exporting = _submit(run, task_set, folder)
    while task_set.num_pending:
        try:
            task_set.next()
        except DevicesLostError as lost:
            if run.progress.holder in lost.names:
                take_over(run)
                task_set.forget([exporting])
                exporting = _submit(run, task_set, folder)
        except DamagedError as error:
            run.progress.is_damaged(_kept(run))
            raise StateLostError(str(error)) from error


def _submit(run: RunContext, task_set: TaskSet, folder: Path) -> Submitted[Nothing]:
    """Have the holder of the optimizer's state write adapters, or what a checkpoint holds."""
    holder, label = run.progress.holder, f"export v{run.progress.version}"
    if run.config.train.lora is None:
        return task_set.submit(export_transformer, label, holder, _kept(run).absolute(), folder)
    return task_set.submit(export_adapter, label, holder, run.progress.state, folder)


def _kept(run: RunContext) -> Path:
    """Return the last version's checkpoint."""
    return run.run_dir / CHECKPOINTS_OF_RUN / name_of(run.progress.version)
