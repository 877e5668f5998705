"""What the members of a gang make of a train state that is dealt over them."""

from copy import copy
from dataclasses import fields
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import DTypeLike

from digen_core.checkpoints.manifest import Position
from digen_core.checkpoints.tensors import begin, finish, read_checkpoint, write_rows
from digen_core.config.train import TrainConfig
from digen_core.gang.members import ALONE, Gang
from digen_core.gang.rows import own_rows, whole_weights
from digen_core.training.contents import contents_of
from digen_core.training.optimizer import optimizer_step
from digen_core.training.train_state import TrainState, initial_state
from digen_core.transport.fingerprint import Content

SHAPES = {"a": (7, 3), "b": (2,), "c": (9, 2, 2), "d": (1, 5), "idle": (4,)}
PARTS = ("weights", "exp_avg", "exp_avg_sq", "ema", "old")
CONFIG = TrainConfig(learning_rate=1e-2, weight_decay=0.1, ema_decay=0.9, ema_every=2)
RATE, OLD_DECAY = 1e-2, 0.25


def numbers(seed: int, scale: float = 1.0, dtype: DTypeLike = np.float64) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        name: (scale * rng.standard_normal(shape)).astype(dtype) for name, shape in SHAPES.items()
    }


def steps(gang: Gang, scale: float, dtype: DTypeLike = np.float64) -> TrainState:
    """Return the state of version 3, as this member has it."""
    weights = {name: own_rows(value, gang) for name, value in numbers(0, dtype=dtype).items()}
    state = initial_state(weights, keeps_old=True, gang=gang)
    for seed in range(1, 4):
        gradient = numbers(seed, scale, dtype)
        del gradient["idle"]
        rows = {name: torch.from_numpy(own_rows(v, gang).copy()) for name, v in gradient.items()}
        state = optimizer_step(
            state, rows, CONFIG, learning_rate=RATE, old_decay=OLD_DECAY, gang=gang
        )
    return state


def dealt(state: TrainState, gang: Gang) -> TrainState:
    """Return a member's rows of a whole state."""
    own = copy(state)
    for part in PARTS:
        if (whole := getattr(state, part)) is not None:
            setattr(own, part, {name: own_rows(value, gang) for name, value in whole.items()})
    if state.ema is state.weights:
        own.ema = own.weights
    return own


def written(folder: Path, size: int, state: TrainState, position: Position) -> Path:
    """Write a whole state as the members of a gang would, and return the checkpoint."""
    begin(folder, state.version)
    members = []
    for rank in range(size):
        gang = Gang(rank, size)
        members.append(write_rows(folder, dealt(state, gang), gang))
    return finish(folder, state.version, state.weights_hash, position, members)


def here() -> Gang:
    return Gang(dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else ALONE


def stepped(scale: float) -> tuple[TrainState, dict[str, dict[str, np.ndarray]]]:
    """Return a member's state of version 3 and the whole parts."""
    gang = here()
    state = steps(gang, scale)
    return state, {part: whole_weights(getattr(state, part), gang) for part in PARTS}


def contents(dtypes: list[str]) -> list[dict[str, Content]]:
    """Return the contents of parameters of each dtype, of which this member has its rows."""
    gang = here()
    rows = {name: own_rows(value, gang) for name, value in numbers(5, 50).items()}
    return [contents_of({n: v.astype(t) for n, v in rows.items()}, gang) for t in dtypes]


def read(checkpoints: list[Path]) -> list[TrainState]:
    """Return this member's rows of states on disk."""
    return [read_checkpoint(path, here()) for path in checkpoints]


def refused(checkpoint: Path) -> str:
    """Return why this member does not read a checkpoint."""
    try:
        read_checkpoint(checkpoint, here())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def assert_rows(found: TrainState, whole: TrainState, gang: Gang) -> None:
    """Check that a state is a member's rows of a whole one, to the last bit."""
    for field in fields(TrainState):
        left, right = getattr(found, field.name), getattr(whole, field.name)
        if field.name in PARTS:
            assert left.keys() == right.keys()
            for name, value in right.items():
                own = own_rows(value, gang)
                assert (left[name].dtype, left[name].shape) == (own.dtype, own.shape), name
                assert left[name].tobytes() == np.ascontiguousarray(own).tobytes(), name
        elif field.name != "grad_norm":
            assert left == right, field.name
