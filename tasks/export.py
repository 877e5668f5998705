"""Export task: the averaged weights of a version as a diffusers folder."""

from pathlib import Path

from digen_core.checkpoints.export import save_for_diffusers
from digen_core.models.versions import WholeVersions
from digen_core.training.optimizer import TrainState
from tasks.body import body
from tasks.receipts import Nothing
from tasks.worker.engine import working


@body("export", Nothing)
def export_weights(
    run_id: str, label: str, state: TrainState, folder: Path
) -> tuple[None, Nothing]:
    """Save the moving average of a version's weights (its weights where there is none)."""
    with working(run_id) as engine:
        if isinstance(engine.versions, WholeVersions):
            save_for_diffusers(engine.policy, folder, state.ema)
        else:
            with engine.temporary_weights(state.ema):
                save_for_diffusers(engine.policy, folder)
    return None, Nothing()
