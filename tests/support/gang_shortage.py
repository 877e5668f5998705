"""A gang that trains a pack while memory runs out on one of its members, once."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from digen_core.config.families import FAMILIES
from digen_core.config.run import RunConfig
from digen_core.gang.rows import gathered_weights
from digen_core.models.loading import load_trainable
from digen_core.models.policy import TRAINER_PARTS
from digen_core.models.trainable import initial_weights, set_weights
from digen_core.planning.profile import Measured
from digen_core.training.gradient_sum import GradientSum, UpdateGradient, pack_gradient
from digen_core.training.pairs import CleanPairs, Pairs
from digen_core.transport.arrays import to_arrays
from support.gang_cases import Case, pairs_of
from tasks.evaluate import clean_latents
from tasks.gang.together import together
from tasks.measure import measured_together
from tasks.setup import load_engine
from tasks.train import add_pack, empty_sum
from tasks.versions import first_state, shelved
from tasks.worker import room
from tasks.worker.engine import engine_of
from tasks.worker.fetching import load_average, load_version

RUN = "run"


def train_twice(
    folder: str, shares: dict[str, Any], rank: int, place: str
) -> tuple[str, str, UpdateGradient, GradientSum]:
    """Train a pack while memory runs out on a member, and again; and on one device.

    Returns:
        What came of it, both times; the sum; and the sum on one device.
    """
    config, alone = loaded(folder, shares)
    pairs = pairs_of(alone, config, 4)
    expected = GradientSum()
    expected.add(0, [pack_gradient(alone, pairs, config)])
    set_trap(rank, place)
    total = empty_sum(RUN)
    parts: list[tuple[int, Pairs | CleanPairs]] = [(0, pairs)]
    first = add_pack(RUN, 0, total, 0, 0, parts, 0)
    again = add_pack(RUN, 0, total, 0, 0, parts, 0)
    return first, again, whole_sum(total), expected


def reduced_without_packs(folder: str, rank: int, place: str) -> tuple[str, UpdateGradient]:
    """Train a pack while memory runs out on a member; return what came of it, and of its sum."""
    config, alone = loaded(folder, {})
    set_trap(rank, place)
    total = empty_sum(RUN)
    came = add_pack(RUN, 0, total, 0, 0, [(0, pairs_of(alone, config, 4))], 0)
    return came, whole_sum(total)


def loaded(folder: str, shares: dict[str, Any]) -> tuple[RunConfig, Any]:
    """Load a model on a gang, and return its config and the model on one device."""
    tree = Case("flux").config(folder).model_dump()
    config = RunConfig.model_validate({**tree, "parallel": shares})
    alone = load_trainable(config, TRAINER_PARTS)
    load_engine(RUN, config, "g0", ["trainer"])
    assert not load_version(RUN, shelved(RUN, first_state(RUN), False), ())
    set_weights(alone, initial_weights(alone, config.train.lora, seed=config.seed))
    return config, alone


def measured_once(folder: str, shares: dict[str, Any], rank: int, role: str) -> Measured:
    """Measure what the work of a role costs while memory runs out on a member."""
    config, alone = loaded(folder, shares)
    set_trap(rank, "forward")
    return measured_together(RUN, pairs_of(alone, config, 1).condition, [role])


def evaluated_once(folder: str, shares: dict[str, Any], rank: int) -> int:
    """Sample for an evaluation while memory runs out on a member; return the number of samples."""
    config, alone = loaded(folder, shares)
    assert not load_average(RUN, shelved(RUN, first_state(RUN), True), ())
    set_trap(rank, "forward")
    condition = to_arrays(pairs_of(alone, config, 4).condition)
    return sum(map(len, clean_latents(RUN, condition, [(0, number) for number in range(4)])))


@together
def whole_sum(total: GradientSum) -> UpdateGradient:
    """Return, on the leader, the sum over the members."""
    gang = engine_of(RUN).gang
    own = UpdateGradient.of(total, gang)
    rows = {name: value.numpy() for name, value in own.gradient.items()}
    whole = gathered_weights(rows, gang)
    return UpdateGradient(
        {name: torch.from_numpy(value) for name, value in whole.items()}, own.metrics, own.packs
    )


@together
def set_trap(rank: int, place: str) -> None:
    """Let memory run out once on a member."""
    if dist.get_rank() != rank:
        return
    transformer = engine_of(RUN).policy.transformer
    block = next(own for name in FAMILIES["flux"].blocks for own in getattr(transformer, name))
    is_set = [True]

    def spring(*_: Any) -> None:
        if is_set:
            is_set.clear()
            raise torch.OutOfMemoryError("there is no more")

    match place:
        case "forward":
            block.register_forward_pre_hook(spring)
        case "backward":
            block.register_full_backward_pre_hook(spring)
        case "sum":
            make_room = GradientSum.make_room

            def making_room(total: GradientSum, parts: Any) -> None:
                spring()
                make_room(total, parts)

            GradientSum.make_room = making_room  # type: ignore[method-assign, assignment]


def load_with_room(folder: str, shares: dict[str, Any], rooms: Sequence[int | None]) -> str:
    """Load a model on members that have so many bytes of memory, by rank.

    Returns:
        The hash of version 0, for which the members' group is needed.
    """
    tree = Case("flux").config(folder).model_dump()
    config = RunConfig.model_validate({**tree, "parallel": shares})
    set_rooms(rooms)
    load_engine(RUN, config, "g0", ["trainer"])
    return first_state(RUN).weights_hash


@together
def set_rooms(rooms: Sequence[int | None]) -> None:
    """Let each member have so many bytes of memory."""
    own = rooms[dist.get_rank()]
    room.bytes_of = lambda device: own
