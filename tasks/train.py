"""Training tasks: the gradient of a pack, the sum of a device, and the sum of all."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from digen_core.config.run import RunConfig
from digen_core.control.protocol import Pack, PairBlock
from digen_core.errors import UserError
from digen_core.models.out_of_memory import is_out_of_memory
from digen_core.rollout.conditions import shape_of
from digen_core.rollout.steps import steps_of_iteration
from digen_core.training.coded import check_agreement
from digen_core.training.contents import contents_of
from digen_core.training.gradient_sum import (
    GradientSum,
    SharedSum,
    UpdateGradient,
)
from digen_core.training.pairs import CleanPairs, Pairs, gather_pairs, to_kept
from digen_core.transport.arrays import Arrays
from digen_core.transport.kept_inputs import KeptInput
from digen_core.transport.segment import Segment, Segments
from tasks.body import body
from tasks.gang.together import together
from tasks.receipts import NOT_SHARED, Reduced, Trained
from tasks.worker.engine import Engine, engine_of, working
from tasks.worker.fetching import fetch_rows
from tasks.worker.fitting import no_memory
from tasks.worker.gradients import compared_gradient, part_gradient, with_start
from tasks.worker.nonfinite import keep_or_fail
from tasks.worker.profiling import profiled
from tasks.worker.shelf import SUM

Outcome = Literal["added", "too large", "nonfinite"]


@body("train", Trained)
def train_pack(
    run_id: str,
    label: str,
    *,
    pack: Pack,
    version: int,
    segments: list[Segments],
    conditions: list[dict[str, Arrays]],
    keys: dict[int, str],
    advantages: dict[int, np.ndarray],
    previous: GradientSum | None,
    trained_from: int,
    run_dir: Path,
) -> tuple[GradientSum, Trained]:
    """Add the gradient of a pack to what this device summed before it.

    A pack that does not fit into the device's memory adds nothing. Its iteration began with
    ``trained_from``.

    Raises:
        FloatingPointError: its loss or gradient is NaN or infinite, and that ends the run.
    """
    with (
        working(run_id, version=version) as engine,
        profiled(engine, "train", pack.iteration, run_dir),
    ):
        by_key = {key: row for part in conditions for key, row in part.items()}
        own = {group: by_key[key] for group, key in keys.items()}
        total = empty_sum(run_id) if previous is None else previous
        made = [segment for part in segments for segment in part]
        if pack.index in total.packs:  # this task is run again
            return total, Trained(too_large=False)
        parts = [
            (
                part.blocks[0].fragment.group,
                _pairs(engine, part, (version, trained_from), made, own, advantages),
            )
            for part in _alike(pack, engine.config, own, partial(_part_of, engine, made))
        ]
        outcome = add_pack(run_id, version, total, pack.iteration, pack.index, parts, trained_from)
        if outcome == "nonfinite":
            _keep_or_fail(engine, total.metrics.nonfinite, pack, version, parts, run_dir)
        if outcome != "too large":
            return total, Trained(too_large=False)
        if pack.num_pairs == 1:
            size = engine.config.size_of(pack.iteration, pack.blocks[0].fragment.group)
            raise UserError(no_memory(engine.device_name, "train", size))
    return total, Trained(too_large=True)


def _keep_or_fail(
    engine: Engine,
    found: str,
    pack: Pack,
    version: int,
    parts: Sequence[tuple[int, Pairs | CleanPairs]],
    run_dir: Path,
) -> None:
    """Keep a pack that is NaN or infinite; raise FloatingPointError if that ends the run."""
    found = found or "the loss or gradient of another member is NaN or infinite"
    for place, (group, pairs) in enumerate(parts):
        numbers, arrays = to_kept(pairs)
        kept = KeptInput(
            name=f"p{pack.index:03d}-train-{place}",
            kind="train",
            found=f"iteration {pack.iteration + 1}, pack {pack.index}: {found}",
            iteration=pack.iteration,
            group=group,
            version=version,
            about=dict(numbers),
            arrays=arrays,
        )
        keep_or_fail(run_dir, kept, engine.config.numerics.updates)


@together
def empty_sum(run_id: str) -> GradientSum:
    """Return a sum over no packs; in a gang each member has a part of it.

    Sums that are on the shelf are of an update before: one that was skipped, as after any other a
    version came, for which they were let go.
    """
    engine_of(run_id).shelf.drop_sums()
    return GradientSum()


@together
def add_pack(
    run_id: str,
    version: int,
    total: GradientSum,
    iteration: int,
    index: int,
    parts: list[tuple[int, Pairs | CleanPairs]],
    trained_from: int,
) -> Outcome:
    """Add the gradient of a pack to a sum; of a gang, each member that of its share of the pairs.

    Args:
        run_id: of the run.
        version: that is trained.
        total: what the members summed before.
        iteration: of the pack.
        index: of the pack.
        parts: the pack's pairs, on the CPU: of one size of samples and of their condition, and of
            one expert and scale of guidance each, and with a group whose samples have that size.
        trained_from: version with which the iteration began.

    Returns:
        What came of it on all members. One that is NaN or infinite on any of them was added.

    Raises:
        UserError: it does not fit, and the gang computes together: the others wait for what this
            member did not do. Or coded cuts make another gradient of a run's first pack.
    """
    engine = engine_of(run_id)
    engine.activate(version)
    fits, gradients = True, []
    # Of a run's first update alone: ratios of later ones are not 1.
    is_first = iteration == 0 and version == trained_from and not total.packs
    is_compared = is_first and bool(engine.config.model.cuts)
    part_of = compared_gradient if is_compared else part_gradient
    try:
        gradients = [
            part_of(
                engine, iteration, group, with_start(engine, iteration, group, own, trained_from)
            )
            for group, own in parts
        ]
        total.make_room(gradients)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        if engine.gang.computes_together:
            size, number = engine.config.size_of(iteration, parts[0][0]), len(parts[0][1].advantage)
            raise UserError(no_memory(engine.device_name, "train", size, number)) from error
        fits = False
    if engine.gang.any(not fits):
        total.leave_out()
        return "too large"
    nonfinite = engine.gang.any(any(part.metrics.nonfinite for part in gradients))
    if is_compared and not nonfinite:
        check_agreement((part.metrics for part in gradients), engine.config, engine.gang)
    total.add(index, gradients)
    return "nonfinite" if nonfinite else "added"


def _part_of(engine: Engine, segments: Sequence[Segment], block: PairBlock) -> int:
    """Return which part of a batch a pack's block belongs to: of which expert, guided how."""
    segment = next(own for own in segments if own.fragment == block.fragment)
    return engine.policy.in_training().part_at(float(segment.sigmas[block.step]))


def _alike(
    pack: Pack,
    config: RunConfig,
    conditions: Mapping[int, Arrays],
    part_of: Callable[[PairBlock], int],
) -> list[Pack]:
    """Split a pack into those of one size of samples and of their condition, and of one part.

    Their trajectories have one number of steps, so one schedule of noise levels.
    The gradient is a sum over pairs. With texts of several lengths there would be a mask, and with
    another kernel of attention than the rollout's, ratios would not be 1 where they should be.
    Prompts with more source images than others have larger conditions. With
    pairs of two experts, or guided and not, the members of a gang would not all compute the same.
    """
    blocks: dict[tuple[object, ...], list[PairBlock]] = {}
    for block in pack.blocks:
        group = block.fragment.group
        shape, size = shape_of(conditions[group]), config.size_of(block.fragment.iteration, group)
        key = size, block.fragment.num_steps, shape, part_of(block)
        blocks.setdefault(key, []).append(block)
    return [Pack(pack.iteration, pack.index, tuple(own)) for own in blocks.values()]


def _pairs(
    engine: Engine,
    pack: Pack,
    versions: tuple[int, int],
    segments: list[Segment],
    conditions: dict[int, Arrays],
    advantages: dict[int, np.ndarray],
) -> Pairs | CleanPairs:
    """Return the pairs of a pack whose samples are alike, of one part of the policy.

    Its versions are the one that is trained, and that with which the iteration began.
    """
    num_steps = pack.blocks[0].fragment.num_steps
    return gather_pairs(
        pack,
        segments,
        conditions,
        advantages,
        torch.device("cpu"),
        engine.config,
        version=versions[0],
        trained_from=versions[1],
        trained_steps=steps_of_iteration(engine.config, pack.iteration, num_steps).trained,
    )


@body("share sum", Reduced)
def share_sum(
    run_id: str,
    label: str,
    total: GradientSum,
    others: Sequence[SharedSum] = (),
    sources: Sequence[tuple[str, ...]] = (),
) -> tuple[SharedSum, Reduced]:
    """Keep what this device summed where another one pulls it from, and return its name.

    Args:
        run_id: of the run.
        label: of the task run.
        total: sum of this device.
        others: sums of other devices of its site, which are added.
        sources: addresses of the workers of each of those, by rank.
    """
    with working(run_id):
        shared = shelved_sum(run_id, total, others, sources)
    return shared, Reduced(shared.failed, shared.failure)


@together
def shelved_sum(
    run_id: str,
    total: GradientSum,
    others: Sequence[SharedSum],
    sources: Sequence[tuple[str, ...]],
) -> SharedSum:
    """Keep this member's rows of the sum over the members of a gang, or of a site, for others.

    Raises:
        UserError: it does not fit into memory.
    """
    engine = engine_of(run_id)
    with engine.needing_memory("sum"):
        found = _added(run_id, engine, total, others, sources)
        copies = {
            name: value.detach().to("cpu", copy=True) for name, value in found.gradient.items()
        }
    if found.failure:
        return SharedSum({}, found.metrics, frozenset(), found.failed, found.failure)
    rows = {name: value.numpy() for name, value in copies.items()}
    shared = SharedSum(contents_of(rows, engine.gang), found.metrics, found.packs)
    engine.shelf.put(f"{SUM} {shared.hash}", shared.hash, rows)
    return shared


@body("reduce", Reduced)
def reduce(
    run_id: str,
    label: str,
    own: GradientSum | None,
    others: Sequence[SharedSum] = (),
    sources: Sequence[tuple[str, ...]] = (),
) -> tuple[UpdateGradient, Reduced]:
    """Add up the sums of all trainer devices, or of all of their sites.

    Args:
        run_id: of the run.
        label: of the task run.
        own: sum of this device, if it has one.
        others: sums of other devices, or sites.
        sources: addresses of the workers of each of those, by rank.
    """
    with working(run_id):
        total = update_gradient(run_id, own, others, sources)
    return total, Reduced(total.failed, total.failure)


@together
def update_gradient(
    run_id: str,
    own: GradientSum | None,
    others: Sequence[SharedSum],
    sources: Sequence[tuple[str, ...]],
) -> UpdateGradient:
    """Return the gradient of an update, or which sum is not to be had and why.

    Raises:
        UserError: it does not fit into memory.
    """
    engine = engine_of(run_id)
    with engine.needing_memory("sum"):
        return _added(run_id, engine, own, others, sources)


def _added(
    run_id: str,
    engine: Engine,
    own: GradientSum | None,
    others: Sequence[SharedSum],
    sources: Sequence[tuple[str, ...]],
) -> UpdateGradient:
    """Return this member's rows of a device's sum and others (collective)."""
    total = UpdateGradient() if own is None else UpdateGradient.of(own, engine.gang)
    for index, (shared, source) in enumerate(zip(others, sources, strict=True)):
        if shared.failure:
            return UpdateGradient(failed=index, failure=NOT_SHARED)
        rows, failure = fetch_rows(run_id, engine, shared, source)
        if failure:
            return UpdateGradient(failed=index, failure=failure)
        total.add(shared, rows)
    return total
