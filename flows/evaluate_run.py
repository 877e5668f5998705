"""Judge the last version that a run kept, on its own evaluation prompts or on others."""

from pathlib import Path

from prefect import flow
from pydantic import PositiveInt

from digen_core.checks import check_inputs
from digen_core.config import ConfigError
from digen_core.config_file import CONFIG_OF_RUN
from digen_core.manifest import CHECKPOINTS_OF_RUN, checkpoints_in, last_checkpoint
from digen_core.records import EvaluationReport
from digen_core.resume import evaluation_config
from flows.evaluate import evaluate
from flows.prepare import load_models, restore_version, tell_of_cut_prompts
from flows.run import reopen_run
from flows.session import session_of
from flows.subflows import on_cluster
from tasks.completions import Completions

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
    config = evaluation_config(run_dir, prompts, samples_per_prompt)
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
    folders = runs_dir.glob(f"*/{CHECKPOINTS_OF_RUN}")
    kept = [folder.parent for folder in folders if checkpoints_in(folder)]
    if not kept:
        raise ConfigError(f"{runs_dir} holds no run with a trained version; train one first")
    return max(kept, key=lambda run: (run / CONFIG_OF_RUN).stat().st_mtime)


@flow(name="restore", flow_run_name="{run_id}-restore", validate_parameters=False)
def restore(run_id: str) -> None:
    """Load the model on the workers, and the kept version."""
    session = session_of(run_id)
    with Completions() as completions:
        load_models(session, completions)
        tell_of_cut_prompts(session, completions, session.evaluation_prompts)
        checkpoint, _ = last_checkpoint(session.run_dir / CHECKPOINTS_OF_RUN)
        if checkpoint is None:
            raise ConfigError(f"{session.run_dir} holds no trained version yet")
        restore_version(session, completions, session.rollout_devices()[0], checkpoint)
