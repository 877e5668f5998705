"""The pairs of a pack, put into one batch from what rollouts recorded."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any, Final, TypeVar

import numpy as np
import torch
from torch import Tensor

from digen_core.config.run import RunConfig
from digen_core.control.protocol import Pack, PairBlock
from digen_core.maths.forward_process import noised
from digen_core.models.policy import Condition
from digen_core.seeding import FORWARD_NOISE, NOISE, noise_of
from digen_core.transport.arrays import Arrays, to_array, to_tensor, viewed
from digen_core.transport.origin import Origin
from digen_core.transport.segment import Segment

_CONDITION: Final = "condition/"  # before the names of embeddings, beside those of fields


@dataclass(frozen=True, slots=True)
class Pairs:
    """b transitions, one per row."""

    x: Tensor  # [b, ...] latent before the step
    x_next: Tensor  # [b, ...] latent after it
    behaviour_logprob: Tensor  # [b] under the version that sampled
    advantage: Tensor  # [b]
    sigma: Tensor  # [b]
    sigma_next: Tensor  # [b]
    sigma_max: float  # the schedule's second noise level
    condition: Condition  # [b, ...] each, or fewer rows: see condition_of
    is_own: Tensor  # [b] bool, whether the version that is trained sampled it
    is_stale: Tensor  # [b] bool, whether an older one did than that with which its iteration began
    noise: Tensor | None = None  # [b, ...] that the step added, for algorithms that ask for it
    sampled_by: tuple[str, ...] = ()  # [b] devices; empty: they are not known
    start_velocity: Tensor | None = None  # as below, for algorithms that compare with it
    reference_velocity: Tensor | None = None  # as below
    weight: float = 1.0  # what each counts
    condition_of: tuple[int, ...] = ()  # as below


@dataclass(frozen=True, slots=True)
class CleanPairs:
    """b samples at a noise level each, one per row, for algorithms on the forward process."""

    x_0: Tensor  # [b, ...] clean latent
    noise: Tensor  # [b, ...] to mix it with
    advantage: Tensor  # [b]
    sigma: Tensor  # [b]
    condition: Condition  # [b, ...] each, or fewer rows: see condition_of
    start_velocity: Tensor | None = None
    """[b, ...] of what generated when the iteration began; None: the trained version did."""
    reference_velocity: Tensor | None = None
    """[b, ...] of the reference policy, if who generated the samples asked it."""

    weight: float = 1.0  # what each counts
    condition_of: tuple[int, ...] = ()
    """[b] rows of the condition, which pairs of a group share until `rows_of` takes them; empty:
    each has its own."""

    @property
    def x(self) -> Tensor:
        """The latents [b, ...] at their noise levels."""
        return noised(self.x_0, self.noise, self.sigma)


AnyPairs = TypeVar("AnyPairs", bound=Pairs | CleanPairs)
_Found = tuple[PairBlock, Segment, slice]


def to_kept(pairs: Pairs | CleanPairs) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Return the numbers and the arrays of a batch of pairs, to be kept: `from_kept` takes them."""
    pairs = rows_of(pairs, slice(None), torch.device("cpu"))
    values = {item.name: getattr(pairs, item.name) for item in fields(pairs)}
    arrays = {name: to_array(v) for name, v in values.items() if isinstance(v, Tensor)}
    arrays |= {f"{_CONDITION}{name}": to_array(v) for name, v in pairs.condition.items()}
    return {name: v for name, v in values.items() if isinstance(v, float)}, arrays


def from_kept(
    numbers: Mapping[str, float], arrays: Mapping[str, np.ndarray], device: torch.device
) -> Pairs | CleanPairs:
    """Return the batch of pairs of which `to_kept` gave these numbers and arrays."""
    values = {name: to_tensor(array, device) for name, array in arrays.items()}
    inner = {name for name in values if name.startswith(_CONDITION)}
    condition = {name.removeprefix(_CONDITION): values[name] for name in inner}
    own: dict[str, Any] = {n: v for n, v in values.items() if n not in inner} | dict(numbers)
    return (CleanPairs if "x_0" in own else Pairs)(**own, condition=condition)


def rows_of(pairs: AnyPairs, rows: slice, device: torch.device) -> AnyPairs:
    """Return some rows of a batch of pairs, on a device, each with a condition of its own."""
    values = {field.name: getattr(pairs, field.name) for field in fields(pairs)}
    taken: dict[str, Any] = {
        name: value[rows].to(device) for name, value in values.items() if isinstance(value, Tensor)
    }
    if isinstance(pairs, Pairs):
        taken["sampled_by"] = pairs.sampled_by[rows]
    return replace(pairs, **taken, condition=_conditions(pairs, rows, device), condition_of=())


def _conditions(pairs: Pairs | CleanPairs, rows: slice, device: torch.device) -> Condition:
    """Return the condition of some rows of a batch of pairs, on a device.

    What pairs share goes there once: embeddings of a pack's texts may have a hundred megabytes, for
    which a device would wait. They are contiguous, as in the rollout: on another layout matrix
    products round differently.
    """
    places = pairs.condition_of[rows]
    if not places:
        return {name: value[rows].to(device) for name, value in pairs.condition.items()}
    first, end = min(places), max(places) + 1
    own = torch.tensor(places, device=device) - first
    return {name: value[first:end].to(device)[own] for name, value in pairs.condition.items()}


def gather_pairs(
    pack: Pack,
    segments: Sequence[Segment],
    conditions: Mapping[int, Arrays],
    advantages: Mapping[int, np.ndarray],
    device: torch.device,
    config: RunConfig,
    *,
    version: int,
    trained_from: int,
    trained_steps: Sequence[int],
) -> Pairs | CleanPairs:
    """Put the pairs of a pack into one batch, in which those of a group share a condition.

    Args:
        pack: which pairs, of trajectories of one number of steps.
        segments: that cover its steps, or the last ones if clean latents are trained; in any order.
        conditions: of each group, and perhaps of others, one row.
        advantages: [G] of each group, or [G, K] where trained steps differ.
        device: where the batch goes.
        config: of the run.
        version: that is trained.
        trained_from: version with which the iteration began.
        trained_steps: of such trajectories, ascending: the columns of [G, K].
    """
    algorithm = config.algorithm
    found = list(_found(pack.blocks, segments, config))
    weight = config.pair_weight(len(found[0][1].sigmas) - 1)

    def batch(parts: Iterator[np.ndarray]) -> Tensor:
        return to_tensor(np.concatenate(list(parts)), device)

    advantage = batch(_advantages(block, advantages, trained_steps) for block, _, _ in found)

    def noise_level(after: int) -> Tensor:
        """Return [b] the schedule before each pair's step, or after it."""
        return batch(np.repeat(s.sigmas[b.step + after], b.num_rows) for b, s, _ in found)

    groups = list(dict.fromkeys(block.fragment.group for block, _, _ in found))
    condition = {
        name: torch.cat([viewed(conditions[group][name]) for group in groups]).to(device)
        for name in conditions[groups[0]]  # of others it may have other names
    }
    of_blocks = ([groups.index(b.fragment.group)] * b.num_rows for b, _, _ in found)
    condition_of = tuple(chain.from_iterable(of_blocks))
    reference = None
    if config.generates_reference:
        reference = batch(s.references[b.step][rows] for b, s, rows in found)
    if config.trains_clean:
        x_0 = batch(segment.x[rows] for _, segment, rows in found)
        if config.model.dtype == "float64":  # also of what was stored in half precision
            x_0 = x_0.double()
        noise = _noise(found, x_0, config, FORWARD_NOISE)
        return CleanPairs(
            x_0,
            noise,
            advantage,
            noise_level(0),
            condition,
            reference_velocity=reference,
            weight=weight,
            condition_of=condition_of,
        )
    x_next = batch(segment.after(block.step)[rows] for block, segment, rows in found)
    versions = torch.tensor([s.version for b, s, _ in found for _ in range(b.num_rows)])
    return Pairs(
        x=batch(segment.before(block.step)[rows] for block, segment, rows in found),
        x_next=x_next,
        behaviour_logprob=batch(s.logprobs[b.step][rows] for b, s, rows in found),
        advantage=advantage,
        sigma=noise_level(0),
        sigma_next=noise_level(1),
        sigma_max=float(found[0][1].sigmas[1]),
        condition=condition,
        is_own=(versions == version).to(device),
        is_stale=(versions < trained_from).to(device),
        noise=_noise(found, x_next, config, NOISE) if algorithm.needs_noise else None,
        sampled_by=tuple(s.device for block, s, _ in found for _ in range(block.num_rows)),
        reference_velocity=reference,
        weight=weight,
        condition_of=condition_of,
    )


def _found(
    blocks: Sequence[PairBlock], segments: Sequence[Segment], config: RunConfig
) -> Iterator[_Found]:
    """Yield each block with the segment that holds it and its rows there."""
    for block in blocks:
        own = [s for s in segments if s.fragment == block.fragment]
        step = len(own[0].sigmas) - 2 if config.trains_clean else block.step
        segment = next(s for s in own if s.covers(step))
        yield block, segment, slice(block.first_row, block.first_row + block.num_rows)


def _advantages(
    block: PairBlock, advantages: Mapping[int, np.ndarray], trained: Sequence[int]
) -> np.ndarray:
    rows = advantages[block.fragment.group][block.samples.start : block.samples.stop]
    return rows if rows.ndim == 1 else rows[:, trained.index(block.step)]


def _noise(found: Sequence[_Found], like: Tensor, config: RunConfig, purpose: int) -> Tensor:
    """Draw the noise [b, ...] of pairs again: a step's own, or that of the forward process.

    A step's is that of the samples' origin, as in their rollout.
    """
    parts = []
    for block, segment, rows in found:
        own = Origin((block.fragment.iteration, block.fragment.group), block.samples)
        if purpose == NOISE and segment.origin is not None:
            own = segment.origin.part(rows)
        parts.append(
            noise_of(
                like.shape[1:],
                seed=config.seed,
                purpose=purpose,
                group=own.group,
                samples=own.samples,
                step=block.step + 1,
                shared=purpose == FORWARD_NOISE and config.algorithm.shares_noise,
            )
        )
    return torch.cat(parts).to(like.device, like.dtype)
