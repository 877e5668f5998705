"""Export tasks: the averaged weights of a version as a diffusers folder, whole or not at all."""

from pathlib import Path

import torch

from digen_core.checkpoints.average import kept_average
from digen_core.checkpoints.export import save_adapter, save_transformer
from digen_core.gang.rows import gathered_weights
from digen_core.models.expert_names import PARTS
from digen_core.models.families import adapter_of
from digen_core.training.train_state import TrainState
from digen_core.transport.arrays import Weights, rounded
from digen_core.transport.files import folder_written_whole
from tasks.body import body
from tasks.gang.together import together
from tasks.receipts import Nothing
from tasks.worker.engine import engine_of, working


@body("export", Nothing)
def export_adapter(
    run_id: str, label: str, state: TrainState, folder: Path
) -> tuple[None, Nothing]:
    """Save the moving average of a version's adapter (its weights where there is none)."""
    with working(run_id) as engine, folder_written_whole(folder) as unfinished:
        save_adapter(engine.policy, unfinished, whole_average(run_id, state))
    return None, Nothing()


@together
def whole_average(run_id: str, state: TrainState) -> Weights:
    """Return, on the leader, the whole average, as it was trained: in float32 or better."""
    engine = engine_of(run_id)
    own = engine.versions.dtypes
    dtypes = {name: torch.promote_types(dtype, torch.float32) for name, dtype in own.items()}
    return gathered_weights(rounded(state.ema, dtypes), engine.gang)


@body("export", Nothing)
def export_transformer(
    run_id: str, label: str, checkpoint: Path, folder: Path
) -> tuple[None, Nothing]:
    """Save the moving average of all weights (the weights where there is none), file by file.

    They are read from the checkpoint, which may be of a gang: its members have no part in this.

    Raises:
        DamagedError: the checkpoint is not what was written.
    """
    with (
        working(run_id) as engine,
        folder_written_whole(folder) as unfinished,
        kept_average(checkpoint) as weights,  # is verified before the folder appears
    ):
        dtypes, model = engine.versions.dtypes, engine.config.model
        source = None  # of what is not trained, and held in parts here
        if engine.policy.idle:
            source = adapter_of(model.family).folder_of(model) / PARTS["high"]
        save_transformer(
            engine.policy.transformer, unfinished, weights, dtypes=dtypes, source=source
        )
    return None, Nothing()
