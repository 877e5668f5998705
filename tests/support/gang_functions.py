"""What the members of a gang do together in tests, by name, as task bodies of the project do."""

import hashlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist

from digen_core.checkpoints.manifest import DamagedError
from digen_core.config.run import RunConfig
from digen_core.errors import ConfigError, UserError
from digen_core.gang.members import Gang
from digen_core.gang.meshes import mesh_of
from digen_core.gang.parts import Part
from digen_core.gang.rows import own_rows
from digen_core.training.train_state import PolicyVersion
from digen_core.transport.arrays import Weights
from support.pull_source import version_of
from support.waiting import comes_to
from tasks import setup
from tasks.gang import following
from tasks.gang.together import together
from tasks.receipts import Plain, collecting
from tasks.worker.pulling import pull, serve_from
from tasks.worker.shelf import Shelf
from tasks.worker.span import span_on_receipt

RUN = "run"


class Held(Part):
    """A value of which each member holds its own."""

    def __init__(self, value: float) -> None:
        self.value = value


@together
def summed(value: float, seconds: float = 0.0, rounds: int = 3) -> float:
    """Return a value that every member has contributed to, ``rounds`` times."""
    found = _own_share(value)
    for _ in range(rounds):
        time.sleep(seconds / rounds)
        dist.all_reduce(found)
    return float(found)


@together
def make_mesh() -> None:
    """Make groups beside the default one, as members do that deal tokens or have stages."""
    mesh_of(_own_share(0.0).device, share=1, member=dist.get_world_size())


def rollouts_beside_an_old_card() -> None:
    """Check rollouts in float8 where the last member has a GPU that does not compute so."""
    _exchange_last_card()
    model, rollout = {"device": "cpu"}, {"precision": "float8"}
    tree = {"model": model, "rollout": rollout, "algorithm": {"correction": "recompute"}}
    setup.require_rollouts(RunConfig.model_validate(tree))


@together
def _exchange_last_card() -> None:
    def refuse(device: torch.device, key: str) -> None:
        raise ConfigError(f"{key} is 'float8', which this card does not have")

    if dist.get_rank() == dist.get_world_size() - 1:
        patch.object(setup, "require_float8", refuse).start()


@together
def process_ids() -> list[int]:
    """Return the process of each member."""
    found: list[int] = [0] * dist.get_world_size()
    dist.all_gather_object(found, os.getpid())
    return found


@together
def digests(array: np.ndarray) -> list[str]:
    """Return a digest of what each member was given."""
    found = [""] * dist.get_world_size()
    dist.all_gather_object(found, hashlib.sha256(array.tobytes()).hexdigest())
    return found


@together
def failing(kind: str, rank: int) -> None:
    """Fail on one member while the others wait for it."""
    if dist.get_rank() == rank:
        raise UserError("too small") if kind == "user" else ValueError("what went wrong")
    if kind != "early":
        dist.barrier()


@together
def failing_in_turn(kinds: Sequence[str], seconds: Sequence[float]) -> None:
    """Fail on each member after some seconds, as a kind says; of a member without one, do not."""
    rank = dist.get_rank()
    time.sleep(seconds[rank])
    match kinds[rank]:
        case "user":
            raise UserError(f"{rank} is too small")
        case "damaged":
            raise DamagedError(f"checkpoint {rank} is damaged")
        case "other":
            raise ValueError(f"what went wrong on {rank}")


@together
def failing_beside_a_busy_leader(loaded: Path) -> None:
    """Fail on the second member while the leader is at work, until there is a file."""
    if dist.get_rank() > 0:
        raise UserError("1 is too small")
    comes_to(loaded.exists)


def die_where_the_group_is_formed() -> None:
    """Let this follower end where it is to meet the others."""

    def die(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    patch.object(following, "form_group", die).start()


def fail_where_the_group_is_formed() -> None:
    """Let this follower not be able to meet the others."""
    error = ConnectionError("NCCL has no memory")
    patch.object(following, "form_group", side_effect=error).start()


@together
def own_part() -> Held:
    """Return a value of which each member has its own."""
    return Held(10.0 ** dist.get_rank())


@together
def sum_of_parts(part: Held) -> float:
    """Return the sum of the members' values."""
    found = torch.tensor([part.value])
    dist.all_reduce(found)
    return float(found)


def sum_of_parts_at_once() -> float:
    """Return it as a task of two commands does."""
    return sum_of_parts(own_part())


def sum_of_parts_between(made: Path, go_on: Path) -> float:
    """Return it as a task that pauses between two commands, from one file until another one."""
    part = own_part()
    made.touch()
    comes_to(go_on.exists)
    return sum_of_parts(part)


@together
def serve(versions: Sequence[Weights]) -> None:
    """Serve this member's rows of versions."""
    shelf = Shelf()
    for number, weights in enumerate(versions):
        shelf.put(number, version_of(weights, number).hash, _own(weights))
    serve_from(RUN, shelf)


@together
def pull_rows(what: PolicyVersion, source: Sequence[str], bases: Sequence[Weights]) -> None:
    """Pull this member's rows of a version, of others as deltas."""
    held = {version_of(base).hash: _own(base) for base in bases}
    pull(RUN, what, source, Gang(dist.get_rank(), dist.get_world_size()), held)


def receipt_of_pull(*arguments: Any) -> Plain:
    """Return what the receipt of a task that calls `pull_rows` says of where it ran."""
    with collecting() as receipt, span_on_receipt("gang"):
        pull_rows(*arguments)
    ran = receipt["ran"]
    assert isinstance(ran, dict)
    return ran


def _own(weights: Weights) -> Weights:
    gang = Gang(dist.get_rank(), dist.get_world_size())
    return {name: own_rows(value, gang) for name, value in weights.items()}


def _own_share(value: float) -> torch.Tensor:
    """Return what a member adds to a sum, where it computes: on its GPU, if it has one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.tensor([value * (dist.get_rank() + 1)], dtype=torch.float64, device=device)


def naive(value: float) -> float:
    """Sum as a task that every member is given by itself, which a gang must not be."""
    found = _own_share(value)
    for _ in range(3):
        dist.all_reduce(found)
    return float(found)
