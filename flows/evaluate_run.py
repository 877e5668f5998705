"""Judge the last version that a run kept, on its own evaluation prompts or on others."""

from pathlib import Path

import dask
from prefect import flow
from pydantic import PositiveInt

from digen_core.checks import check_inputs
from digen_core.config import ConfigError
from digen_core.config_file import CONFIG_OF_RUN, config_of_run
from digen_core.records import EvaluationReport
from flows.collect import receipts_of
from flows.evaluate import evaluate
from flows.prepare import load_models
from flows.run import on_cluster, reopen_run
from flows.session import session_of
from tasks.completions import Completions
from tasks.setup import restore_state

LATEST = "latest"


@flow(name="evaluate-run", flow_run_name="evaluate {run}")
def evaluate_run(
    run: str = LATEST, prompts: str | None = None, samples_per_prompt: PositiveInt | None = None
) -> EvaluationReport:
    """Evaluate a run's last version; the report and its image grid join the run's folder.

    Args:
        run: Folder of the run; "latest" is the newest in the folder runs.
        prompts: File of other prompts than the run's evaluation prompts.
        samples_per_prompt: Images per prompt, other than the run's.

    Raises:
        ConfigError: the folder is not a run's, or holds no version yet.
    """
    run_dir = latest_run(Path("runs")) if run == LATEST else Path(run)
    config = config_of_run(run_dir, Path(prompts) if prompts else None, samples_per_prompt)
    check_inputs(config)
    with reopen_run(config, run_dir) as session:
        on_cluster(session, restore)
        report: EvaluationReport = on_cluster(session, evaluate, "again")
        return report


def latest_run(runs_dir: Path) -> Path:
    """Return the newest run that kept a version.

    Raises:
        ConfigError: there is none.
    """
    kept = {path.parent.parent for path in runs_dir.glob("*/weights/v*.safetensors")}
    if not kept:
        raise ConfigError(f"{runs_dir} holds no run with a trained version; train one first")
    return max(kept, key=lambda run: (run / CONFIG_OF_RUN).stat().st_mtime)


@flow(name="restore", flow_run_name="{run_id}-restore", validate_parameters=False)
def restore(run_id: str) -> None:
    """Load the model on the workers, and the kept version."""
    session = session_of(run_id)
    with Completions() as completions:
        load_models(session, completions)
        device, label = session.rollout_devices()[0], "restore version"
        with dask.annotate(workers=[device]):
            session.state = restore_state.submit(run_id, label, session.run_dir / "weights")
        labels = {session.state.task_run_id: (label, device)}
        (receipt,) = receipts_of(session, completions, labels).values()
        session.version = receipt["version"]
