"""The stages of a share compute as one: samples flow through them in portions, there and back.

Every member of a share asks for the same velocities, and all of them get them: from the last stage,
when all portions are through. So what is made of velocities, losses and next latents, each member
computes for itself, and it is the same. On the way back a stage is given the gradients of the
streams that it sent, in the opposite order of portions, and computes those of its own parameters.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from digen_core.gang.codecs import Codec, CodedCuts, Sent
from digen_core.gang.cutting import Crossing
from digen_core.gang.members import Gang
from digen_core.gang.meshes import mesh_of

PORTIONS_PER_STAGE: Final = 4
"""Of k stages with m portions (k - 1) / (k - 1 + m) of the time is spent waiting, a fifth at most
where there are as many samples."""

Predict = Callable[[slice], Tensor]
"""The velocities of some of a batch's samples, where the whole forward pass is done."""


@dataclass(frozen=True, slots=True)
class Passed:
    """A portion of a batch that has passed a stage; its graph leads from what came to what left."""

    came: list[Tensor]  # decoded; nothing on the first stage
    left: list[Tensor]  # before it is coded; on the last stage, the velocities
    rows: slice


class Stage:
    """A member's place among the stages of its share.

    All members of the share call `velocity`, and differentiate its results, in the same order.
    """

    def __init__(
        self,
        gang: Gang,
        device: torch.device,
        streams: Sequence[str],
        run: range,
        cuts: CodedCuts,
        *,
        keeps_graphs: bool,
    ) -> None:
        """Meet the other stages (collective).

        Args:
            gang: whose member this process is.
            device: where it computes.
            streams: what crosses cuts, as the parameters of blocks are called.
            run: numbers of its blocks.
            cuts: that are coded.
            keeps_graphs: whether a loss is differentiated more than once.
        """
        mesh = mesh_of(device, share=gang.num_shares, stage=gang.stages)
        self._group = mesh.get_group("stage")
        self._place, self._last = gang.stage, gang.stages - 1
        self._streams, self._run, self._cuts = streams, run, cuts
        self._sent: list[tuple[Any, Tensor]] = []  # that may be under way
        self.keeps_graphs = keeps_graphs

    def velocity(
        self, predict: Predict, like: Tensor, parameters: Sequence[nn.Parameter]
    ) -> Tensor:
        """Return the velocities of a batch (collective over the share).

        Args:
            predict: the transformer's forward pass.
            like: of the velocities' shape [B, ...] and dtype.
            parameters: of this stage that are trained.
        """
        if torch.is_grad_enabled():
            apply: Callable[..., Tensor] = _ThereAndBack.apply
            return apply(self, predict, like, *parameters)
        return self.pass_on(predict, like)[1]

    def pass_on(self, predict: Predict, like: Tensor) -> tuple[list[Passed], Tensor]:
        """Have a batch pass all stages; return its portions here, and its velocities."""
        before, after = (self._cuts.at(block).there for block in (self._run.start, self._run.stop))
        receive = partial(self._receive, codec=before, place=self._place - 1)
        portions = []
        for rows in self._portions(len(like)):
            crossing = Crossing(self._streams, receive)
            with crossing.under_way():
                crossing.left = [predict(rows)]
            portions.append(Passed(crossing.came, crossing.left, rows))
            if self._place < self._last:
                self._send(crossing.left, after, self._place + 1)
        velocity = torch.empty_like(like, memory_format=torch.contiguous_format)
        if self._place == self._last:
            torch.cat([portion.left[0].detach() for portion in portions], out=velocity)
        self.settle()  # all portions are through before anything else is sent in this group
        self.share(velocity)
        return portions, velocity

    def share(self, velocity: Tensor) -> None:
        """Give all stages the velocities of the last one (collective over the share)."""
        dist.broadcast(velocity, group=self._group, group_src=self._last)

    def pass_back(
        self, portion: Passed, gradient: Tensor, parameters: Sequence[nn.Parameter]
    ) -> Sequence[Tensor | None]:
        """Return what a portion adds to the gradients of parameters.

        Args:
            portion: the last one that has not passed back.
            gradient: of the whole batch's velocities.
            parameters: of this stage that are trained.
        """
        before, after = (self._cuts.at(block).back for block in (self._run.start, self._run.stop))
        gradients = [gradient[portion.rows]]
        if self._place < self._last:
            gradients = self._receive(portion.left, after, self._place + 1)
        reached = [own for own in zip(portion.left, gradients, strict=True) if own[0].requires_grad]
        wanted = [*portion.came, *parameters]
        found: Sequence[Tensor | None] = [None] * len(wanted)
        if reached:
            left, gradients = map(list, zip(*reached, strict=True))
            found = torch.autograd.grad(
                left, wanted, gradients, allow_unused=True, retain_graph=self.keeps_graphs
            )
        of_streams, of_parameters = found[: len(portion.came)], found[len(portion.came) :]
        if portion.came:
            back = zip(portion.came, of_streams, strict=True)
            self._send(
                [torch.zeros_like(came) if own is None else own for came, own in back],
                before,
                self._place - 1,
            )
        return of_parameters

    def _portions(self, num_rows: int) -> Iterator[slice]:
        """Yield the samples of each portion: of one at least."""
        count = min(num_rows, PORTIONS_PER_STAGE * (self._last + 1))
        for portion in range(count):
            yield slice(portion * num_rows // count, (portion + 1) * num_rows // count)

    def _send(self, tensors: Sequence[Tensor], codec: Codec, place: int) -> None:
        """Begin to send tensors to another stage; whoever computes goes on."""
        for tensor in tensors:
            self._post([part.contiguous() for part in codec.encode(tensor.detach())], place)

    def _post(self, sent: Sent, place: int) -> None:
        """Begin to send what a codec made of a tensor."""
        for own in sent:
            self._sent.append((dist.isend(own, group=self._group, group_dst=place), own))

    def _receive(self, like: Sequence[Tensor], codec: Codec, place: int) -> list[Tensor]:
        """Wait for tensors from another stage."""
        found = [codec.empty(own) for own in like]
        awaited: list[Any] = [
            dist.irecv(part, group=self._group, group_src=place) for sent in found for part in sent
        ]
        for work in awaited:
            work.wait()
        return [codec.decode(sent, own) for sent, own in zip(found, like, strict=True)]

    def settle(self) -> None:
        """Wait until everything that was sent has arrived."""
        for work, _ in self._sent:
            work.wait()
        self._sent.clear()


class _ThereAndBack(torch.autograd.Function):
    """A batch's way through this stage, of which autograd sees the ends.

    What is between is differentiated here, portion by portion, so that the order is that of the
    other stages, and a portion's gradients are under way while the next one is computed.
    """

    @staticmethod
    def forward(
        ctx: Any, stage: Stage, predict: Predict, like: Tensor, *parameters: nn.Parameter
    ) -> Tensor:
        """Return the velocities [B, ...]."""
        with torch.enable_grad():
            ctx.portions, velocity = stage.pass_on(predict, like)
        ctx.stage, ctx.parameters = stage, parameters
        return velocity

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the parameters, summed in float32 or better."""
        (gradient,), stage, parameters = gradients, ctx.stage, ctx.parameters
        portions = list(ctx.portions) if stage.keeps_graphs else ctx.portions
        assert portions, "its graphs are gone"
        total: list[Tensor | None] = [None] * len(parameters)
        while portions:
            found = stage.pass_back(portions.pop(), gradient, parameters)
            for place, own in enumerate(found):
                total[place] = _sum(total[place], own)
        stage.settle()
        pairs = zip(total, parameters, strict=True)
        own = (None if value is None else value.to(like.dtype) for value, like in pairs)
        return None, None, None, *own


def _sum(total: Tensor | None, own: Tensor | None) -> Tensor | None:
    if own is None:
        return total
    wide = own.to(torch.promote_types(own.dtype, torch.float32))
    return wide if total is None else total + wide
