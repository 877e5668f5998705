"""Gradients of packs and their sums, which stay on the device until they are reduced."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

import torch
from torch import Tensor

from digen_core.config.run import RunConfig
from digen_core.gang.members import ALONE, Gang
from digen_core.gang.parts import Part
from digen_core.gang.rows import own_rows
from digen_core.gang.sharding import added_rows, added_up, held
from digen_core.models.policy import Policy
from digen_core.models.trainable import trainable_parameters
from digen_core.training.gradient import PackMetrics, add_metrics, pack_loss
from digen_core.training.pairs import CleanPairs, Pairs, rows_of
from digen_core.transport.arrays import Arrays, to_arrays, to_tensors

_LOSS_SCALES: Final = tuple(2.0**power for power in (24, 20, 16, 12, 8, 4, 0))

Gradient = dict[str, Tensor]  # parameter name -> gradient, on any device


@dataclass(frozen=True, slots=True)
class PackGradient:
    """The gradient of one pack. A parameter without gradient has no entry."""

    gradient: Gradient
    metrics: PackMetrics


class GradientSum(Part):
    """The sum over some packs of an update, in float32 or better, where the packs were computed.

    Only when it leaves the process, for another worker to reduce, is it copied to the host. Packs
    are added in place, each once: one that is added again, as its task was run again, is left out.
    """

    def __init__(self) -> None:
        self.gradient: Gradient = {}
        self.metrics = PackMetrics()
        self.packs: frozenset[int] = frozenset()  # indices of those that are in
        self.is_whole = False  # it came from another device, whose members' parts it adds up

    def __reduce__(self) -> tuple[object, ...]:
        return _received, (to_arrays(self.gradient), self.metrics, self.packs)

    @property
    def num_bytes(self) -> int:
        """Of the sum where it is."""
        return _num_bytes(self.gradient)

    def add(self, index: int, parts: Sequence[PackGradient]) -> None:
        """Add a pack, whose samples of each size are a part.

        Raises:
            torch.OutOfMemoryError: the sum does not fit beside it; nothing has changed.
        """
        if index in self.packs:
            return
        self.make_room(parts)
        for part in parts:
            for name, value in part.gradient.items():
                self.gradient[name].add_(value)
            self.metrics = add_metrics(self.metrics, part.metrics)
        self.packs |= {index}

    def gathered(self, gang: Gang) -> "GradientSum":
        """Return the sum over the members of a gang, on the leader's host (collective).

        Followers get an empty one. This one stays as it is; of a gang of one it is the sum.
        """
        if gang.size == 1:
            return self
        total = GradientSum()
        for name, value in self.gradient.items():
            added = added_up(value, gang)
            if gang.is_leader:
                total.gradient[name] = added.cpu()
        metrics = self.metrics_of(gang)
        if gang.is_leader:
            total.metrics, total.packs = metrics, self.packs
        return total

    def rows(self, gang: Gang) -> Gradient:
        """Return this member's rows of the sum over the members of a gang (collective).

        This one stays as it is.
        """
        if self.is_whole:
            return {name: own_rows(value, gang) for name, value in self.gradient.items()}
        return {name: added_rows(value, gang) for name, value in self.gradient.items()}

    def metrics_of(self, gang: Gang) -> PackMetrics:
        """Return, on the leader, the metrics of all members (collective)."""
        if self.is_whole:
            return self.metrics
        return reduce(add_metrics, gang.gather([self.metrics]), PackMetrics())

    def make_room(self, parts: Sequence[PackGradient]) -> None:
        """Allocate what adding a pack needs: after this, ``add`` cannot fail.

        Raises:
            torch.OutOfMemoryError: the sum does not fit beside it; nothing has changed.
        """
        self.gradient |= {
            name: _zeros(value)
            for part in parts
            for name, value in part.gradient.items()
            if name not in self.gradient
        }


@dataclass(eq=False)
class UpdateGradient(Part):
    """The gradient of an update: of a gang each member has its rows, the leader the metrics."""

    gradient: Gradient
    metrics: PackMetrics

    @property
    def num_bytes(self) -> int:
        """Of this member's rows."""
        return _num_bytes(self.gradient)


def _num_bytes(gradient: Gradient) -> int:
    return sum(held(value).nbytes for value in gradient.values())


def reduced(sums: Sequence[GradientSum], gang: Gang = ALONE) -> UpdateGradient:
    """Return the sum of sums over disjoint packs, on the host if they are several (collective).

    They stay as they are: a reduction is repeated if a device is lost meanwhile.

    Args:
        sums: of devices; that of this gang's own is its member's part.
        gang: whose member this process is.

    Raises:
        ValueError: two of them hold the same pack.
    """
    seen: set[int] = set()
    for part in sums:
        if seen & part.packs:
            raise ValueError(f"packs {sorted(seen & part.packs)} are in two sums.")
        seen |= part.packs
    metrics = reduce(add_metrics, (part.metrics_of(gang) for part in sums))
    if len(sums) == 1:
        return UpdateGradient(sums[0].rows(gang), metrics)
    total: Gradient = {}
    for part in sums:
        for name, value in part.rows(gang).items():
            own = value.cpu()
            total[name] = total[name].add_(own) if name in total else _zeros(own).add_(own)
    return UpdateGradient(total, metrics)


def _zeros(value: Tensor) -> Tensor:
    """Return what gradients like this are added to: of its own, as autograd may share one."""
    wide = torch.promote_types(value.dtype, torch.float32)
    return torch.zeros_like(value, dtype=wide, memory_format=torch.contiguous_format)


def _received(gradient: Arrays, metrics: PackMetrics, packs: frozenset[int]) -> GradientSum:
    """Return a sum that came from another worker, on the host."""
    total = GradientSum()
    total.gradient = to_tensors(gradient, torch.device("cpu"))
    total.metrics, total.packs, total.is_whole = metrics, packs, True
    return total


def pack_gradient(
    policy: Policy, pairs: Pairs | CleanPairs, config: RunConfig, gang: Gang = ALONE
) -> PackGradient:
    """Return this member's part of the gradient of one pack, in the parameters' dtype.

    The parts of all members add up to the pack's gradient; a sharded one, which they have added up
    already, is this member's shard of it. Metrics are those of the member's own pairs, once.

    Args:
        policy: with the weights to train.
        pairs: of the pack, those of all members, on any device.
        config: of the run.
        gang: whose member this process is.

    Raises:
        FloatingPointError: as ``pack_loss``, for the pairs that this member computes.
    """
    num_pairs = len(pairs.advantage)
    computed = rows_of(pairs, gang.computed(num_pairs), policy.device)
    loss, metrics = pack_loss(policy, computed, config)
    if not gang.has_own(num_pairs):
        loss = 0 * loss
    gradient = _gradients(loss, policy, gang)
    return PackGradient(gradient, metrics if gang.counts(num_pairs) else PackMetrics())


def _gradients(loss: Tensor, policy: Policy, gang: Gang) -> Gradient:
    """Return the gradient of each parameter; none if it reaches no output, as in a last block.

    A pair's share of the loss is so small that float16 would round it to 0 on the way back: there
    the loss is scaled up by as much as keeps all gradients finite, and they are scaled back, in
    float32.
    """
    if policy.dtype != torch.float16:
        return _differentiated(loss, policy, gang)
    gradient: Gradient = {}
    for scale in _LOSS_SCALES:
        scaled = _differentiated(loss * scale, policy, gang, retain_graph=True)
        gradient = {name: value.float() / scale for name, value in scaled.items()}
        overflows = not all(bool(held(value).isfinite().all()) for value in gradient.values())
        if not (gang.any(overflows) if gang.computes_together else overflows):
            break
    return gradient  # what is not finite even so is refused by the optimizer step


def _differentiated(
    loss: Tensor, policy: Policy, gang: Gang, *, retain_graph: bool = False
) -> Gradient:
    parameters = trainable_parameters(policy)
    if gang.shards_weights:  # only a whole backward pass shards their gradients
        loss.backward(retain_graph=retain_graph)
        found = tuple(parameter.grad for parameter in parameters.values())
        for parameter in parameters.values():
            parameter.grad = None
    else:
        found = torch.autograd.grad(
            loss, list(parameters.values()), allow_unused=True, retain_graph=retain_graph
        )
    named = zip(parameters, found, strict=True)
    return {name: gradient for name, gradient in named if gradient is not None}
