"""Sums of gradients over packs, and the assembly of a pack from what rollouts recorded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from digen_core.config import FlowGrpoConfig, RolloutConfig
from digen_core.control.protocol import Pack
from digen_core.models.policy import Policy
from digen_core.models.trainable import trainable_parameters
from digen_core.training.gradient import PackMetrics, Pairs, pack_loss
from digen_core.transport.arrays import Arrays, Weights, to_arrays, to_tensor
from digen_core.transport.segment import Segment


@dataclass(frozen=True, slots=True)
class GradientSum:
    """The sum over some packs of an update. A parameter without gradient has no entry."""

    gradient: Weights
    metrics: PackMetrics


def add(left: GradientSum, right: GradientSum) -> GradientSum:
    """Return the sum of two sums over disjoint packs."""
    gradient = dict(left.gradient)
    for name, value in right.gradient.items():
        gradient[name] = gradient[name] + value if name in gradient else value
    totals = {
        item.name: getattr(left.metrics, item.name) + getattr(right.metrics, item.name)
        for item in fields(PackMetrics)
    }
    totals["max_log_ratio"] = max(left.metrics.max_log_ratio, right.metrics.max_log_ratio)
    return GradientSum(gradient, PackMetrics(**totals))


def gather_pairs(
    pack: Pack,
    segments: Sequence[Segment],
    conditions: Mapping[int, Arrays],
    advantages: Mapping[int, np.ndarray],
    sigmas: Tensor,
    device: torch.device,
) -> Pairs:
    """Put the pairs of a pack into one batch.

    Args:
        pack: which pairs.
        segments: that cover its steps, in any order.
        conditions: of each group, one row.
        advantages: [G] of each group.
        sigmas: [T+1] schedule.
        device: where the batch goes.
    """
    columns: dict[str, list[np.ndarray]] = {
        name: [] for name in ("x", "x_next", "behaviour_logprob", "advantage")
    }
    rows_of: dict[str, list[np.ndarray]] = {name: [] for name in next(iter(conditions.values()))}
    steps = []
    for block in pack.blocks:
        fragment, step = block.fragment, block.step
        segment = next(s for s in segments if s.fragment == fragment and s.covers(step))
        rows = slice(block.first_row, block.first_row + block.num_rows)
        offset = step - segment.first_step
        columns["x"].append(segment.latents[offset, rows])
        columns["x_next"].append(segment.latents[offset + 1, rows])
        columns["behaviour_logprob"].append(segment.logprobs[step][rows])
        own = advantages[fragment.group][fragment.first_sample :]
        columns["advantage"].append(own[rows])
        for name, value in conditions[fragment.group].items():
            # Not broadcast_to: concatenate would put the rows last in memory, and then matrix
            # products round differently than in the rollout.
            rows_of[name].append(np.repeat(value, block.num_rows, axis=0))
        steps += [step] * block.num_rows
    index = torch.tensor(steps)
    batch = {name: to_tensor(np.concatenate(parts), device) for name, parts in columns.items()}
    return Pairs(
        sigma=sigmas[index].to(device),
        sigma_next=sigmas[index + 1].to(device),
        condition={
            name: to_tensor(np.concatenate(parts), device) for name, parts in rows_of.items()
        },
        **batch,
    )


def pack_gradient(
    policy: Policy,
    pairs: Pairs,
    *,
    rollout: RolloutConfig,
    algorithm: FlowGrpoConfig,
    sigma_max: float,
    num_pairs_of_update: int,
) -> GradientSum:
    """Return the gradient of one pack; arguments as in ``pack_loss``."""
    loss, metrics = pack_loss(
        policy,
        pairs,
        rollout=rollout,
        algorithm=algorithm,
        sigma_max=sigma_max,
        num_pairs_of_update=num_pairs_of_update,
    )
    parameters = trainable_parameters(policy)
    # Some parameters of a last block reach no output: they have no gradient, and that is right.
    gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    found = {
        name: gradient
        for name, gradient in zip(parameters, gradients, strict=True)
        if gradient is not None
    }
    return GradientSum(to_arrays(found), metrics)
