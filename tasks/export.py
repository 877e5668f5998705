"""Export task: the averaged weights of a version as a diffusers folder."""

from pathlib import Path

from prefect import task

from digen_core.models.export import save_for_diffusers
from digen_core.training.optimizer import TrainState
from tasks.worker.engine import working


@task(name="export", task_run_name="{label}")
def export_weights(run_id: str, label: str, state: TrainState, folder: Path) -> None:
    """Save the moving average of a version's weights (its weights where there is none)."""
    with working(run_id) as engine, engine.temporary_weights(state.ema):
        save_for_diffusers(engine.policy, folder)
