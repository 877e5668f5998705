"""Judge the last version that a run kept, on its own evaluation prompts or on others."""

from pathlib import Path

from prefect import flow

from digen_core.checks import check_inputs
from digen_core.config import ConfigError, RunConfig
from digen_core.manifest import CHECKPOINTS_OF_RUN, last_checkpoint
from digen_core.records import EvaluationReport
from flows.evaluate import evaluate
from flows.prepare import load_models, restore_version
from flows.run import on_cluster, reopen_run
from flows.session import session_of
from tasks.completions import Completions


@flow(name="evaluate-run", flow_run_name="evaluate {run_dir.name}", validate_parameters=False)
def evaluate_run(run_dir: Path, config: RunConfig) -> EvaluationReport:
    """Evaluate a run's last version; the report and its image grid join the run's folder."""
    check_inputs(config)
    with reopen_run(config, run_dir) as session:
        on_cluster(session, restore)
        report: EvaluationReport = on_cluster(session, evaluate, "again")
        return report


@flow(name="restore", flow_run_name="{run_id}-restore", validate_parameters=False)
def restore(run_id: str) -> None:
    """Load the model on the workers, and the kept version."""
    session = session_of(run_id)
    with Completions() as completions:
        load_models(session, completions)
        checkpoint, _ = last_checkpoint(session.run_dir / CHECKPOINTS_OF_RUN)
        if checkpoint is None:
            raise ConfigError(f"{session.run_dir} holds no trained version yet")
        restore_version(session, completions, session.rollout_devices()[0], checkpoint)
