"""Codecs of what crosses a cut: streams [B, tokens, channels], and their gradients.

What a codec makes of a row depends on that row alone, and always is the same: so rollout and
replay, which have other batches, see the same numbers, on whichever devices the blocks are. Where a
row holds NaN or Inf, so does what comes out.

The gradient of a coded stream is that of the stream (a straight-through estimator), coded in turn.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil, prod
from typing import Any, Final, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from digen_core.config.cuts import CutConfig

Sent = list[Tensor]
"""What is sent in place of a tensor."""


class Codec(Protocol):
    """What is sent in place of a tensor, and what is made of that."""

    def encode(self, x: Tensor) -> Sent:
        """Return what is sent in place of a tensor [B, ...]."""
        ...

    def empty(self, like: Tensor) -> Sent:
        """Return what can hold that which is sent in place of such a tensor."""
        ...

    def decode(self, sent: Sent, like: Tensor) -> Tensor:
        """Return a tensor of a shape and dtype from what was sent in its place."""
        ...


class Dense:
    """The tensor itself."""

    def encode(self, x: Tensor) -> Sent:
        """Return it."""
        return [x]

    def empty(self, like: Tensor) -> Sent:
        """Return its like."""
        return [torch.empty_like(like, memory_format=torch.contiguous_format)]

    def decode(self, sent: Sent, like: Tensor) -> Tensor:
        """Return it."""
        return sent[0]


class Rounded:
    """The tensor in bfloat16."""

    def encode(self, x: Tensor) -> Sent:
        """Round it."""
        return [x.bfloat16()]

    def empty(self, like: Tensor) -> Sent:
        """Return its like in bfloat16."""
        return [torch.empty(like.shape, dtype=torch.bfloat16, device=like.device)]

    def decode(self, sent: Sent, like: Tensor) -> Tensor:
        """Return it in the dtype of the stream."""
        return sent[0].to(like.dtype)


class Int8:
    """Integers of 8 bits, and a float32 scale for each token: the largest number is 127."""

    def encode(self, x: Tensor) -> Sent:
        """Divide each token by its scale, and round."""
        scale = x.abs().amax(-1, keepdim=True).float() / 127
        return [_divided(x, scale).to(torch.int8), scale]

    def empty(self, like: Tensor) -> Sent:
        """Return integers, and scales."""
        scales = torch.empty(*like.shape[:-1], 1, device=like.device)
        return [torch.empty(like.shape, dtype=torch.int8, device=like.device), scales]

    def decode(self, sent: Sent, like: Tensor) -> Tensor:
        """Multiply each token by its scale."""
        numbers, scale = sent
        return (numbers * scale).to(like.dtype)


class Int4:
    """Integers of 4 bits, two in a byte, and a bfloat16 scale for each 32 channels."""

    GROUP: Final = 32
    MOST: Final = 7

    def encode(self, x: Tensor) -> Sent:
        """Divide each group of channels by its scale, and round."""
        groups = pad(x, (0, -x.shape[-1] % self.GROUP)).unflatten(-1, (-1, self.GROUP))
        scale = (groups.abs().amax(-1, keepdim=True) / self.MOST).bfloat16()
        numbers = _divided(groups, scale).clamp(-self.MOST, self.MOST).to(torch.int16) + 8
        packed = numbers[..., ::2] + 16 * numbers[..., 1::2]
        return [packed.to(torch.uint8), scale]

    def empty(self, like: Tensor) -> Sent:
        """Return bytes, and scales."""
        shape = *like.shape[:-1], ceil(like.shape[-1] / self.GROUP)
        packed = torch.empty(*shape, self.GROUP // 2, dtype=torch.uint8, device=like.device)
        return [packed, torch.empty(*shape, 1, dtype=torch.bfloat16, device=like.device)]

    def decode(self, sent: Sent, like: Tensor) -> Tensor:
        """Multiply each group of channels by its scale."""
        packed, scale = sent
        numbers = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2).float() - 8
        return (numbers * scale).flatten(-2)[..., : like.shape[-1]].to(like.dtype)


@dataclass(frozen=True, slots=True)
class TopK:
    """The largest numbers of each sample in bfloat16, and where they are in it.

    Of each 65,536 numbers, whose places two bytes tell, as many are kept (FusionLLM,
    arXiv:2410.12707, calls it AdaTopK where each link has a ratio of its own).
    """

    ratio: float  # bytes of the sample in bfloat16 over those that are sent

    CHUNK = 1 << 16

    def encode(self, x: Tensor) -> Sent:
        """Choose the largest numbers."""
        chunks = self._chunks(x)
        places = chunks.abs().topk(self._kept(x), dim=-1).indices
        # a sample with NaN or Inf has it among its largest numbers
        numbers = chunks.gather(-1, places).bfloat16()
        return [(places - self.CHUNK // 2).to(torch.int16).view(torch.uint8), numbers]

    def empty(self, like: Tensor) -> Sent:
        """Return places, and numbers."""
        shape = len(like), self._num_chunks(like), self._kept(like)
        places = torch.empty(*shape[:-1], 2 * shape[-1], dtype=torch.uint8, device=like.device)
        return [places, torch.empty(shape, dtype=torch.bfloat16, device=like.device)]

    def decode(self, sent: Sent, like: Tensor) -> Tensor:
        """Put numbers in their places, and 0 elsewhere."""
        places = sent[0].view(torch.int16).long() + self.CHUNK // 2
        shape = len(like), self._num_chunks(like), self._chunk(like)
        chunks = torch.zeros(shape, dtype=like.dtype, device=like.device)
        chunks.scatter_(-1, places, sent[1].to(like.dtype))
        return chunks.flatten(1)[:, : prod(like.shape[1:])].reshape(like.shape)

    def _chunks(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        more = self._num_chunks(x) * self._chunk(x) - flat.shape[1]
        return pad(flat, (0, more)).reshape(len(x), -1, self._chunk(x))

    def _num_chunks(self, like: Tensor) -> int:
        return ceil(prod(like.shape[1:]) / self.CHUNK)

    def _chunk(self, like: Tensor) -> int:
        """Return the numbers of a chunk: the chunks of a sample are equal."""
        return ceil(prod(like.shape[1:]) / self._num_chunks(like))

    def _kept(self, like: Tensor) -> int:
        return max(1, int(self._chunk(like) / (2 * self.ratio)))  # each is as long as two numbers


def _divided(x: Tensor, scale: Tensor) -> Tensor:
    """Return numbers over their scale, rounded; where all are 0, 0."""
    wide = torch.promote_types(x.dtype, torch.float32)
    own = scale.to(wide)
    divided: Tensor = x.to(wide) / torch.where(own == 0, 1, own)
    return divided.round()


DENSE: Final = Dense()
_STATELESS: Final[Mapping[str, Codec]] = {
    "none": DENSE,
    "bf16": Rounded(),
    "int8": Int8(),
    "int4": Int4(),
}


@dataclass(frozen=True, slots=True)
class Codecs:
    """The codecs of a cut: of streams on the way there, and of their gradients on the way back."""

    there: Codec = DENSE
    back: Codec = DENSE

    @classmethod
    def of(cls, cut: CutConfig) -> "Codecs":
        """Return those that a config names."""
        back = TopK(cut.topk_ratio) if cut.backward == "topk" else _STATELESS[cut.backward]
        return cls(_STATELESS[cut.forward], back)

    def crossed(self, stream: Tensor) -> Tensor:
        """Return a stream as it is behind the cut, where both sides are on this device."""
        found: Tensor = _Crossed.apply(stream, self)  # type: ignore[no-untyped-call]
        return found


def through(codec: Codec, x: Tensor) -> Tensor:
    """Return what a tensor becomes that is sent and received."""
    return codec.decode(codec.encode(x), x)


class _Crossed(torch.autograd.Function):
    """A cut inside of a device."""

    @staticmethod
    def forward(ctx: Any, stream: Tensor, codecs: Codecs) -> Tensor:
        """Code a stream."""
        ctx.codecs = codecs
        return stream.view_as(stream) if codecs.there is DENSE else through(codecs.there, stream)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Code its gradient."""
        return through(ctx.codecs.back, gradients[0]), None


class CodedCuts:
    """The coded cuts of a policy, which can be left uncoded for a comparison."""

    def __init__(self, cuts: Sequence[CutConfig] = ()) -> None:
        self._codecs = {cut.block: Codecs.of(cut) for cut in cuts}
        self.blocks = frozenset(self._codecs)  # before which there is one
        self._are_coded = True

    def at(self, block: int) -> Codecs:
        """Return the codecs of the cut before a block."""
        return self._codecs.get(block, _NONE) if self._are_coded else _NONE

    @contextmanager
    def uncoded(self) -> Iterator[None]:
        """Let streams cross as they are while the body runs; on all members of a gang, if on one.

        A graph that is made in the body has to be differentiated there.
        """
        self._are_coded = False
        try:
            yield
        finally:
            self._are_coded = True


_NONE: Final = Codecs()
UNCODED: Final = CodedCuts()
"""Of a policy without coded cuts."""
