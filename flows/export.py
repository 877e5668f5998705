"""Write the trained weights in the form that diffusers loads."""

import dask
from prefect import flow

from flows.collect import receipts_of
from flows.publishing import publish_model
from flows.session import session_of
from tasks.completions import Completions
from tasks.export import export_weights


@flow(name="export", flow_run_name="{run_id}-export", validate_parameters=False)
def export(run_id: str) -> None:
    """Save LoRA adapters or the transformer under the run's folder, and register them in MLflow."""
    session = session_of(run_id)
    folder = session.run_dir / ("transformer" if session.config.train.lora is None else "lora")
    trainer, label = session.trainer_devices()[0], f"export v{session.version}"
    with Completions() as completions:
        with dask.annotate(workers=[trainer]):
            future = export_weights.submit(run_id, label, session.state, folder)
        receipts_of(session, completions, {future.task_run_id: (label, trainer)})
    publish_model(session, folder)
