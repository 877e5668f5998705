"""Set-up tasks: load the model on a worker, and restore a version."""

from collections.abc import Collection
from pathlib import Path
from time import time

from prefect import task

from digen_core.checkpoints.tensors import read_checkpoint
from digen_core.config.run import RunConfig
from digen_core.errors import UserError
from digen_core.preflight.model import explain_load_error
from digen_core.training.optimizer import TrainState
from tasks import receipts
from tasks.worker.engine import Engine, build_engine, working


@task(name="load model", task_run_name="{label}")
def load_model(run_id: str, label: str, config: RunConfig, device: str, roles: list[str]) -> None:
    """Load the parts of the model that the worker needs for its roles."""
    started = time()
    load_engine(run_id, config, device, roles)
    receipts.attach({"device": device, "started": started, "ended": time()})


def load_engine(run_id: str, config: RunConfig, device: str, roles: Collection[str]) -> Engine:
    """Build the engine of a worker.

    Raises:
        UserError: the model cannot be loaded.
    """
    try:
        return build_engine(run_id, config, device, frozenset(roles))
    except OSError as error:  # its causes, which explain it, are lost on the way to the flow
        raise UserError(explain_load_error(config.model, error)) from error


@task(name="count tokens", task_run_name="{label}")
def count_tokens(run_id: str, label: str, prompts: list[str]) -> None:
    """Say on the receipt how many tokens the prompts take: the largest number, and how many cut."""
    with working(run_id) as engine:
        numbers, most = engine.policy.num_tokens(prompts), engine.config.model.max_sequence_length
    receipts.attach({"most": max(numbers), "num_cut": sum(number > most for number in numbers)})


@task(name="restore version", task_run_name="{label}")
def restore_state(run_id: str, label: str, checkpoint: Path) -> TrainState:
    """Read a version that a run kept.

    Raises:
        DamagedError: the checkpoint is not what was written.
    """
    with working(run_id):
        state = read_checkpoint(checkpoint)
    receipts.attach({"version": state.version, "hash": state.weights_hash})
    return state
