"""Write the trained weights in the form that diffusers loads."""

from prefect import flow

from flows.runtime.context import context_of
from flows.runtime.fleet.batch import Batch
from flows.runtime.fleet.losses import DevicesLostError, StateLostError
from flows.runtime.publishing import publish_model
from tasks.export import export_weights
from tasks.runner.completions import Completions


@flow(name="export", flow_run_name="{run_id}-export", validate_parameters=False)
def export(run_id: str) -> None:
    """Save LoRA adapters or the transformer under the run's folder, and register them in MLflow.

    Raises:
        StateLostError: the worker that holds the optimizer's state is lost.
    """
    run = context_of(run_id)
    folder = run.run_dir / ("transformer" if run.config.train.lora is None else "lora")
    holder, label = run.fleet.trainer_devices()[0], f"export v{run.progress.version}"
    with Completions() as completions:
        batch = Batch(run, completions)
        batch.submit(export_weights, label, holder, run.progress.state, folder)
        while batch.num_pending:
            try:
                batch.next()
            except DevicesLostError as lost:
                if holder in lost.names:
                    raise StateLostError(f"the weights were lost with worker {holder}") from lost
    publish_model(run, folder)
