"""The order in which members ask for what they compute together: of NCCL, one after the other.

gloo does at once what does not wait for each other. What NCCL is asked for is in a stream of the
device, where a send ends when its receiver has come as far, too: what two members ask for in
different orders arrives over gloo, and hangs over NCCL.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Kind = tuple[str, int]
"""Dtype and number of elements of a tensor."""

SEND, RECEIVE = "send", "recv"


@dataclass(frozen=True, slots=True)
class Asked:
    """One thing that a member asks of a group."""

    what: str
    group: str
    members: tuple[int, ...]  # of the group, as ranks of the gang
    kinds: tuple[Kind, ...] = ()  # of the tensors, where they are alike on all members
    peer: int | None = None  # to whom it is sent, or from whom it comes


def stuck(asked: Sequence[Sequence[Asked]]) -> dict[int, Asked]:
    """Return what members would wait for for ever, by rank; nothing if all can be done.

    Args:
        asked: what each member asks for, in its order.
    """
    places = dict.fromkeys(range(len(asked)), 0)
    while waiting := {
        rank: asked[rank][at] for rank, at in places.items() if at < len(asked[rank])
    }:
        ready = {rank for rank, own in waiting.items() if _can_begin(rank, own, waiting)}
        if not ready:
            return waiting
        for rank in ready:
            places[rank] += 1
    return {}


def _can_begin(rank: int, own: Asked, waiting: Mapping[int, Asked]) -> bool:
    """Say whether all whom this takes have come as far."""
    if own.peer is None:
        return all(waiting.get(other) == own for other in own.members)
    what = RECEIVE if own.what == SEND else SEND
    return waiting.get(own.peer) == Asked(what, own.group, own.members, own.kinds, rank)
