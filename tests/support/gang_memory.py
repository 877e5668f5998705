"""What the CPU's allocator gives out while a model computes, alone or as a member of a gang."""

import gc
from collections.abc import Callable
from itertools import accumulate
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from digen_core.config.run import RunConfig
from digen_core.gang.members import Gang
from digen_core.gang.sharding import held
from digen_core.models.loading import load_trainable
from digen_core.models.pipeline.policy import PipelinePolicy
from digen_core.models.policy import TRAINER_PARTS
from digen_core.models.trainable import trainable_parameters
from digen_core.planning.allocations import fused_rms_norm
from digen_core.training.gradient_sum import _differentiated


def allocated(work: Callable[..., Any], *arguments: Any) -> int:
    """Return the most bytes that this CPU's allocator gave out at once while work was done.

    torch's RMS norm is what it is on a GPU, one kernel; its numbers are of no use then.
    """
    gc.collect()  # of models of other tests, which would count as memory that this one lets go of
    gc.disable()
    try:
        with (
            patch.object(nn.functional, "rms_norm", fused_rms_norm),
            profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled,
        ):
            work(*arguments)
    finally:
        gc.enable()
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    sizes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return int(max(accumulate(sizes)))


def _range(beside: int, work: Callable[..., Any], *arguments: Any) -> tuple[int, int]:
    """Return the least and the most of some measurements, which gloo's threads make vary."""
    found = [allocated(work, *arguments) + beside for _ in range(3)]
    return min(found), max(found)


def peaks(trees: list[dict[str, Any]], counts: list[int]) -> list[dict[str, Any]]:
    """Return the bytes of this member's weights, and of steps and packs of some samples.

    The buffer is a block's bytes: gloo copies what members gather or add up, and its threads let go
    of what they exchange a little later.
    """
    return [_peaks(RunConfig.model_validate(tree), counts) for tree in trees]


def _peaks(config: RunConfig, counts: list[int]) -> dict[str, Any]:
    gang = Gang.of(config.parallel)
    policy = load_trainable(config, TRAINER_PARTS, gang)
    assert isinstance(policy, PipelinePolicy)
    weights = sum(held(parameter).nbytes for parameter in policy.transformer.parameters())
    children = (own for each in policy.transformers for own in each.children())
    blocks = [own for own in children if isinstance(own, nn.ModuleList)]
    sizes = [4 * sum(p.numel() for p in block.parameters()) for each in blocks for block in each]
    trained = sum(held(p).nbytes for p in trainable_parameters(policy).values())

    def velocity(condition: Any, count: int) -> torch.Tensor:
        x = torch.randn(count, *policy.latent_shape)
        return policy.velocity(x, 0.8 * torch.rand(count), condition)

    def pack(condition: Any, count: int) -> None:
        _differentiated(velocity(condition, count).sum(), trainable_parameters(policy), gang)

    steps, packs = [], []
    for count in counts:
        condition = {
            name: torch.ones_like(value) for name, value in policy.blank_condition(count).items()
        }
        beside = sum(value.nbytes for value in condition.values())  # there already
        with torch.no_grad():
            steps.append(_range(beside, velocity, condition, count))
        packs.append(_range(beside, pack, condition, count))
    found = {
        "weights": weights,
        "trained": trained,
        "buffer": max(sizes),
    }
    return found | {"steps": steps, "packs": packs}
