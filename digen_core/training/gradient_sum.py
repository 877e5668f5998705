"""Gradients of packs and their sums, which stay on the device until they are reduced."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Final, Self

import torch
from torch import Tensor, nn

from digen_core.config.run import RunConfig
from digen_core.gang.members import ALONE, Gang
from digen_core.gang.parts import Part
from digen_core.gang.sharding import added_rows, held
from digen_core.gang.stage_parts import gradients_of_all
from digen_core.inputs.text import number_of
from digen_core.models.policy import Policy
from digen_core.models.trainable import trainable_parameters
from digen_core.training.gradient import PackMetrics, add_metrics, pack_loss, replay_failure
from digen_core.training.pairs import CleanPairs, Pairs, rows_of
from digen_core.transport.arrays import Weights
from digen_core.transport.fingerprint import Content, hash_of
from digen_core.transport.weighty import Weighty

_LOSS_SCALES: Final = tuple(2.0**power for power in (24, 20, 16, 12, 8, 4, 0))

Gradient = dict[str, Tensor]  # parameter name -> gradient, on any device
Trained = Mapping[str, nn.Parameter]  # what is trained, by name


@dataclass(frozen=True, slots=True)
class PackGradient:
    """The gradient of one pack. A parameter without gradient has no entry."""

    gradient: Gradient
    metrics: PackMetrics


class GradientSum(Part, Weighty):
    """The sum over some packs of an update, in float32 or better, where the packs were computed.

    It does not leave its device: others pull its rows. Packs are added in place, each once: one
    that is added again, as its task was run again, is left out.
    """

    def __init__(self) -> None:
        self.gradient: Gradient = {}
        self.metrics = PackMetrics()
        self.packs: frozenset[int] = frozenset()  # indices of those that are in

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
            if part.gradient:  # at once: a launch for each takes the host milliseconds
                sums = [held(self.gradient[name]) for name in part.gradient]
                torch._foreach_add_(sums, list(map(held, part.gradient.values())))
            self.metrics = add_metrics(self.metrics, part.metrics)
        self.packs |= {index}

    def rows(self, gang: Gang) -> Gradient:
        """Return this member's rows of the sum over the members of a gang (collective).

        This one stays as it is. Alone, they are this one's own tensors.
        """
        parts = gradients_of_all(self.gradient, gang)
        return {name: added_rows(value, gang) for name, value in parts}

    def metrics_of(self, gang: Gang) -> PackMetrics:
        """Return, on the leader, the metrics of all members (collective)."""
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

    def leave_out(self) -> None:
        """Let go of room for a pack that did not fit, which not all members of a gang made."""
        if not self.packs:
            self.gradient.clear()


@dataclass(frozen=True, slots=True)
class SharedSum:
    """What names a sum that another device pulls, as `PolicyVersion` names a version.

    It is that of the device that holds it, or of the devices of its site.
    """

    contents: Mapping[str, Content]
    metrics: PackMetrics
    packs: frozenset[int]
    failed: int = -1  # index of another device's sum that was to be added and was not to be had
    failure: str = ""  # why; then this is no sum

    @property
    def hash(self) -> str:
        """Of the whole sum."""
        return hash_of(self.contents)


@dataclass(eq=False)
class UpdateGradient(Part, Weighty):
    """The gradient of an update: of a gang each member has its rows, the leader the metrics."""

    gradient: Gradient = field(default_factory=dict)
    metrics: PackMetrics = field(default_factory=PackMetrics)
    packs: frozenset[int] = frozenset()
    failed: int = -1  # index of another device's sum that was not to be had
    failure: str = ""  # why; then this is no gradient

    @classmethod
    def of(cls, total: GradientSum, gang: Gang = ALONE) -> Self:
        """Return the rows of a device's own sum, which stays as it is (collective)."""
        return cls(total.rows(gang), total.metrics_of(gang), total.packs)

    @property
    def num_bytes(self) -> int:
        """Of this member's rows."""
        return _num_bytes(self.gradient)

    def add(self, other: SharedSum, rows: Weights) -> None:
        """Add the sum of another device, on the host.

        Sums stay as they are: a reduction is repeated if a device is lost meanwhile.

        Args:
            other: of packs that are not in this one.
            rows: this member's of it.

        Raises:
            ValueError: both hold the same pack.
        """
        if twice := self.packs & other.packs:
            raise ValueError(f"packs {sorted(twice)} are in two sums.")
        for name, value in rows.items():
            added = torch.from_numpy(value)
            if name in self.gradient:
                added = added + self.gradient[name].cpu()
            self.gradient[name] = added
        self.metrics = add_metrics(self.metrics, other.metrics)
        self.packs |= other.packs


def _num_bytes(gradient: Gradient) -> int:
    return sum(held(value).nbytes for value in gradient.values())


def _zeros(value: Tensor) -> Tensor:
    """Return what gradients like this are added to: of its own, as autograd may share one."""
    wide = torch.promote_types(value.dtype, torch.float32)
    return torch.zeros_like(value, dtype=wide, memory_format=torch.contiguous_format)


def pack_gradient(
    policy: Policy,
    pairs: Pairs | CleanPairs,
    config: RunConfig,
    gang: Gang = ALONE,
    parameters: Trained | None = None,
) -> PackGradient:
    """Return this member's part of the gradient of one pack, in the parameters' dtype.

    The parts of all members add up to the pack's gradient; a sharded one, which they have added up
    already, is this member's shard of it. Metrics are those of the member's own pairs, once.

    Args:
        policy: with the weights to train.
        pairs: of the pack, those of all members, on any device.
        config: of the run.
        gang: whose member this process is.
        parameters: that are trained, by name, if they are known: `trainable_parameters` looks
            through all modules for them, tens of milliseconds for which a GPU would wait.

    A gradient that is NaN or infinite is returned as it is, and named in the metrics.

    Raises:
        FloatingPointError: the replay of pairs that this version sampled differs from the rollout
            by more than ``train.max_replay_error``; where a gang computes together on all members.
    """
    num_pairs = len(pairs.advantage)
    computed = rows_of(pairs, gang.computed(num_pairs), policy.device)
    loss, read = pack_loss(policy, computed, config)
    if not gang.has_own(num_pairs):
        loss = 0 * loss
    trained = trainable_parameters(policy) if parameters is None else parameters
    gradient = _gradients(loss, trained, policy.dtype, gang)
    metrics = read()
    _check_replay(metrics, config, gang)
    nonfinite = metrics.nonfinite
    if not (nonfinite or _is_finite(gradient)):
        nonfinite = f"the gradient of {number_of(metrics.num_pairs, 'pair')} is NaN or infinite"
    if not gang.counts(num_pairs):
        metrics = PackMetrics()
    return PackGradient(gradient, replace(metrics, nonfinite=nonfinite))


def _check_replay(metrics: PackMetrics, config: RunConfig, gang: Gang) -> None:
    """Check the replay after the backward pass, in which other members wait for this one."""
    own = "" if metrics.nonfinite else replay_failure(metrics, config)
    for failure in gang.everyone(own) if gang.computes_together else [own]:
        if failure:
            raise FloatingPointError(failure)


def _is_finite(gradient: Gradient) -> bool:
    found = [part for part in map(held, gradient.values()) if part.numel()]  # a shard may be empty
    return math.isfinite(float(nn.utils.get_total_norm(found, norm_type=math.inf)))


def _gradients(loss: Tensor, trained: Trained, dtype: torch.dtype, gang: Gang) -> Gradient:
    """Return the gradient of each parameter; none if it reaches no output, as in a last block.

    A pair's share of the loss is so small that float16 would round it to 0 on the way back: there
    the loss is scaled up by as much as keeps all gradients finite, and they are scaled back, in
    float32.
    """
    if dtype != torch.float16:
        return _differentiated(loss, trained, gang)
    gradient: Gradient = {}
    for scale in _LOSS_SCALES:
        scaled = _differentiated(loss * scale, trained, gang, retain_graph=True)
        gradient = {name: value.float() / scale for name, value in scaled.items()}
        overflows = not _is_finite(gradient)
        if not (gang.any(overflows) if gang.computes_together else overflows):
            break
    return gradient


def _differentiated(
    loss: Tensor, trained: Trained, gang: Gang, *, retain_graph: bool = False
) -> Gradient:
    if gang.shards_weights:  # only a whole backward pass shards their gradients
        loss.backward(retain_graph=retain_graph)
        found = tuple(parameter.grad for parameter in trained.values())
        for parameter in trained.values():
            parameter.grad = None
    else:
        found = torch.autograd.grad(
            loss, list(trained.values()), allow_unused=True, retain_graph=retain_graph
        )
    named = zip(trained, found, strict=True)
    return {name: gradient for name, gradient in named if gradient is not None}
