"""Export task: the averaged weights of a version as a diffusers folder."""

from pathlib import Path

from digen_core.checkpoints.export import save_for_diffusers
from digen_core.gang.rows import gathered_weights
from digen_core.models.versions import WholeVersions
from digen_core.training.optimizer import TrainState
from digen_core.transport.arrays import Weights, rounded
from tasks.body import body
from tasks.gang.together import together
from tasks.receipts import Nothing
from tasks.worker.engine import engine_of, working


@body("export", Nothing)
def export_weights(
    run_id: str, label: str, state: TrainState, folder: Path
) -> tuple[None, Nothing]:
    """Save the moving average of a version's weights (its weights where there is none)."""
    with working(run_id) as engine:
        weights = whole_average(run_id, state)
        if isinstance(engine.versions, WholeVersions):
            save_for_diffusers(engine.policy, folder, weights)
        else:
            with engine.temporary_weights(weights):
                save_for_diffusers(engine.policy, folder)
    return None, Nothing()


@together
def whole_average(run_id: str, state: TrainState) -> Weights:
    """Return, on the leader, the whole average, in the dtypes of the parameters."""
    engine = engine_of(run_id)
    return gathered_weights(rounded(state.ema, engine.versions.dtypes), engine.gang)
