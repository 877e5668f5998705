"""Write the trained weights in the form that diffusers loads."""

from prefect import flow

from digen_core.checkpoints.manifest import CHECKPOINTS_OF_RUN, DamagedError, name_of
from flows.runtime.context import RunContext, context_of
from flows.runtime.fleet.batch import Batch
from flows.runtime.fleet.losses import DevicesLostError, StateLostError
from flows.runtime.observers import say
from flows.runtime.publishing import publish_model
from tasks.export import export_adapter, export_transformer
from tasks.runner.completions import Completions


@flow(name="export", flow_run_name="{run_id}-export", validate_parameters=False)
def export(run_id: str) -> None:
    """Save LoRA adapters or the transformer under the run's folder, and register them in MLflow.

    Raises:
        StateLostError: the worker that holds the optimizer's state is lost, or the checkpoint of
            the last version is damaged.
    """
    run = context_of(run_id)
    run_dir = run.run_dir.resolve()  # the worker may be in another one
    folder = run_dir / ("transformer" if run.config.train.lora is None else "lora")
    holder, label = run.fleet.trainer_devices()[0], f"export v{run.progress.version}"
    say(f"exporting version {run.progress.version}")
    with Completions() as completions:
        batch = Batch(run, completions)
        if run.config.train.lora is None:
            kept = run_dir / CHECKPOINTS_OF_RUN / name_of(run.progress.version)
            batch.submit(export_transformer, label, holder, kept, folder)
        else:
            batch.submit(export_adapter, label, holder, run.progress.state, folder)
        _wait(run, batch, holder)
    publish_model(run, folder)


def _wait(run: RunContext, batch: Batch, holder: str) -> None:
    """Wait for the export, whatever else is lost meanwhile.

    Raises:
        StateLostError: as `export` does.
    """
    while batch.num_pending:
        try:
            batch.next()
        except DevicesLostError as lost:
            if holder in lost.names:
                raise StateLostError(f"the weights were lost with worker {holder}") from lost
        except DamagedError as error:
            kept = run.run_dir / CHECKPOINTS_OF_RUN / name_of(run.progress.version)
            run.progress.is_damaged(kept)
            raise StateLostError(str(error)) from error
