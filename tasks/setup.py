"""Set-up tasks: load the model on a worker, and restore a version."""

from collections.abc import Collection
from pathlib import Path

from digen_core.checkpoints.tensors import read_checkpoint
from digen_core.config.run import RunConfig
from digen_core.errors import UserError
from digen_core.models.pipeline.cuda_graphs import require_graphs
from digen_core.models.pipeline.float8 import require_float8
from digen_core.models.policy import resolve_device
from digen_core.preflight.model import check_device, explain_load_error
from digen_core.training.train_state import TrainState
from tasks.body import body
from tasks.gang.together import together
from tasks.receipts import CountedTokens, HeldVersion, Nothing
from tasks.worker.engine import Engine, build_engine, engine_of, working
from tasks.worker.fitting import needing_memory
from tasks.worker.span import span_on_receipt


@body("load model", Nothing)
def load_model(
    run_id: str, label: str, config: RunConfig, device: str, roles: list[str]
) -> tuple[None, Nothing]:
    """Load the parts of the model that the worker needs for its roles.

    Raises:
        UserError: it cannot be loaded, or the device cannot generate as the run does.
    """
    with span_on_receipt(device):
        if "rollout" in roles:
            require_rollouts(config)
        load_engine(run_id, config, device, roles)
    return None, Nothing()


@together
def require_rollouts(config: RunConfig) -> None:
    """Check that this worker's device computes as a run's rollouts do, in a gang each member's.

    Raises:
        ConfigError: it does not have their precision, or no CUDA graphs.
    """
    device = resolve_device(config.model.device)
    if config.rollout.uses_float8:
        require_float8(device, config.rollout.key_of_float8)
    if config.rollout.cuda_graphs:
        require_graphs(device)


@together
def load_engine(run_id: str, config: RunConfig, device: str, roles: Collection[str]) -> Engine:
    """Build the engine of a worker, in a gang that of each member.

    Raises:
        UserError: the model cannot be loaded, or this worker has no such device.
    """
    check_device(config.model, here=True)
    try:
        with needing_memory(device, "model", config.model.size):
            return build_engine(run_id, config, device, frozenset(roles))
    except OSError as error:  # its causes, which explain it, are lost on the way to who asked
        raise UserError(explain_load_error(config.model, error)) from error


@body("count tokens", CountedTokens)
def count_tokens(
    run_id: str, label: str, prompts: list[str], num_images: list[int]
) -> tuple[None, CountedTokens]:
    """Say how many tokens the prompts take: the largest number, and how many cut."""
    with working(run_id) as engine:
        numbers = engine.policy.num_tokens(prompts, num_images)
        most = engine.config.model.max_sequence_length
    return None, CountedTokens(max(numbers), sum(number > most for number in numbers))


@body("restore version", HeldVersion)
def restore_state(run_id: str, label: str, checkpoint: Path) -> tuple[TrainState, HeldVersion]:
    """Read a version that a run kept.

    Raises:
        DamagedError: the checkpoint is not what was written.
    """
    with working(run_id):
        state = kept_state(run_id, checkpoint)
    return state, HeldVersion(state.version, state.weights_hash)


@together
def kept_state(run_id: str, checkpoint: Path) -> TrainState:
    """Return the state in a checkpoint; in a gang each member reads its rows.

    Raises:
        DamagedError: the checkpoint is not what was written.
    """
    return read_checkpoint(checkpoint, engine_of(run_id).gang)
