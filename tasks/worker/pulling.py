"""Pulls: a device gets a version or a sum from another one that holds it, member from member.

Each member pulls its rows from the members that keep them, in buckets, over the connections of
Dask's workers: encrypted where the cluster uses TLS. A worker serves from its event loop, whatever
its task computes meanwhile: no pull waits for a task.
Two buckets are under way while a third is put in its place and fingerprinted there. Where bytes
decide, a receiver says which versions it holds: of the newest that its source holds, too, it is
sent deltas, each checked as what it stands for is.
"""

import asyncio
import pickle
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from itertools import zip_longest
from time import time
from typing import Any, Final, Protocol, Self

import numpy as np
import torch
from distributed import Worker
from distributed.core import ConnectionPool, send_recv
from distributed.protocol import to_serialize

from digen_core.gang.members import Gang
from digen_core.gang.rows import overlaps, rows_of
from digen_core.transport.arrays import Weights, room_of
from digen_core.transport.delta import unpacked
from digen_core.transport.fingerprint import Content, fingerprint, total_of
from tasks.gang.received import note_received
from tasks.receipts import Received
from tasks.worker.shelf import Answer, Piece, Shelf

BUCKET_BYTES: Final = 16 << 20
UNDER_WAY: Final = 2  # buckets
CONNECT_SECONDS: Final = 10.0
"""In which a source has to answer at all: Dask would try for longer where nobody listens."""
BUCKET_SECONDS: Final = 60.0
"""In which a bucket has to arrive: a source that is frozen does not close its connection."""

_SERVE: Final = "digen_pull"  # name of the handler

_worker: Worker | None = None
_shelves: dict[str, Shelf] = {}  # by run


class PullError(RuntimeError):
    """A source is gone, or does not hold any more what it is asked for."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a piece goes: rows of a parameter, as the receiver counts them."""

    name: str
    first: int
    end: int
    first_row: int  # of the whole parameter


@dataclass(frozen=True, slots=True)
class Bucket:
    """What is asked of a source's member at once."""

    address: str
    pieces: tuple[Piece, ...]  # as the source counts rows
    places: tuple[Place, ...]  # of each


def serve_on(worker: Worker) -> None:
    """Let other workers pull from this one."""
    global _worker
    _worker = worker
    worker.handlers[_SERVE] = _serve


def serve_from(run_id: str, shelf: Shelf) -> None:
    """Serve what is on a shelf of a run, and nothing of another run."""
    serve_nothing()
    _shelves[run_id] = shelf


def serve_nothing() -> None:
    """Let go of what is served."""
    _shelves.clear()


class Pulled(Protocol):
    """What names something that a device holds by rows: a version, or a sum."""

    @property
    def contents(self) -> Mapping[str, Content]:
        """Of each parameter."""
        ...

    @property
    def hash(self) -> str:
        """Of all of them."""
        ...


@dataclass(frozen=True, slots=True)
class Arrived:
    """This member's rows of what it pulled, and the fingerprints of what lies there now."""

    rows: Weights
    fingerprints: dict[str, int]  # of the rows of each parameter, as they count in the whole one

    @classmethod
    def none_of(cls, contents: Mapping[str, Content], gang: Gang) -> Self:
        """Return room for the rows, none of which is there yet."""
        rows = {name: _room(content, gang) for name, content in contents.items()}
        return cls(rows, dict.fromkeys(contents, 0))

    def put(self, place: Place, value: np.ndarray) -> None:
        """Put some rows in their place, and add what they hold there."""
        rows = np.atleast_1d(self.rows[place.name])[place.first : place.end]
        rows[...] = value
        found = self.fingerprints[place.name], fingerprint(rows, place.first_row)
        self.fingerprints[place.name] = total_of(found)


def pull(
    run_id: str,
    what: Pulled,
    source: Sequence[str],
    gang: Gang,
    bases: Mapping[str, Weights] | None = None,
) -> Arrived:
    """Return this member's rows of what another device holds.

    Args:
        run_id: of the run.
        what: is pulled.
        source: addresses of the workers of the device that holds it, by rank.
        gang: whose member this process is.
        bases: this member's rows of versions of which deltas may be sent, by hash, best first.

    Raises:
        PullError: the source is gone, does not hold it any more, or sent what is no delta.
    """
    arrived = Arrived.none_of(what.contents, gang)
    asked = deque(_buckets(what.contents, arrived.rows, source, gang))
    under_way: deque[tuple[Bucket, Future[Any]]] = deque()
    started, num_bytes, known = time(), Counter[str](), bases or {}
    try:
        while asked or under_way:
            while asked and len(under_way) < UNDER_WAY:
                bucket = asked.popleft()
                under_way.append((bucket, _ask(run_id, what.hash, bucket, tuple(known))))
            bucket, future = under_way.popleft()
            answer = _answered(bucket, future)
            num_bytes[bucket.address] += answer.num_bytes
            for place, value in zip(bucket.places, _values(bucket, answer, known), strict=True):
                arrived.put(place, value)
    finally:
        for _, future in under_way:  # of a source that failed
            future.cancel()
    ended = time()
    note_received(Received(at, sent, started, ended) for at, sent in num_bytes.items())
    return arrived


def _answered(bucket: Bucket, answer: "Future[Any]") -> Answer:
    """Wait for the rows of a bucket.

    Raises:
        PullError: the source is gone, or does not hold them any more.
    """
    try:
        found = answer.result()
    except (OSError, TimeoutError, CancelledError) as error:
        reason = type(error).__name__
        raise PullError(f"{bucket.address} does not answer ({reason})") from error
    if found is None:
        raise PullError(f"{bucket.address} does not hold it any more")
    return Answer(*found)


def _values(bucket: Bucket, answer: Answer, bases: Mapping[str, Weights]) -> Iterator[np.ndarray]:
    """Yield the rows of a bucket, those that came as a delta, too.

    Raises:
        PullError: one is no delta, or of something that is not here.
    """
    for place, value in zip(bucket.places, answer.values, strict=True):
        if isinstance(value, np.ndarray):
            yield value
            continue
        try:
            base = np.atleast_1d(bases[answer.base][place.name])
            yield unpacked(value, base[place.first : place.end])
        except (KeyError, ValueError) as error:
            raise PullError(f"{bucket.address} sent {place.name} damaged: {error}") from error


async def _serve(run_id: str, wanted: str, pieces: bytes, bases: Sequence[str]) -> Any:
    """Answer another worker; deltas are made beside the event loop, as each takes a while."""
    shelf, asked = _shelves.get(run_id), pickle.loads(pieces)
    if shelf is None:
        return None
    if bases:
        found = await asyncio.to_thread(shelf.answer, wanted, asked, bases)
    else:
        found = shelf.answer(wanted, asked)
    return None if found is None else ([to_serialize(own) for own in found.values], found.base)


def _ask(run_id: str, wanted: str, bucket: Bucket, bases: Sequence[str]) -> "Future[Any]":
    """Ask a source's member for a bucket, and return the future of its answer."""
    if _worker is None:
        raise RuntimeError("nothing is pulled outside of a worker")
    pieces = pickle.dumps(bucket.pieces)
    asked = {"run_id": run_id, "wanted": wanted, "pieces": pieces, "bases": bases}
    loop: Any = _worker.loop  # of tornado, on asyncio
    asking = _asked(_worker.rpc, bucket.address, asked)
    return asyncio.run_coroutine_threadsafe(asking, loop.asyncio_loop)


async def _asked(pool: ConnectionPool, address: str, asked: dict[str, Any]) -> Any:
    """Return a bucket's answer, over a connection of the worker's pool; None: it is not there."""
    comm = await asyncio.wait_for(pool.connect(address), CONNECT_SECONDS)
    try:
        return await asyncio.wait_for(send_recv(comm, op=_SERVE, **asked), BUCKET_SECONDS)
    finally:
        pool.reuse(address, comm)


def _room(content: Content, gang: Gang) -> np.ndarray:
    """Return an array for this member's rows of a parameter."""
    dtype = getattr(torch, content.dtype.removeprefix("torch."))
    if gang.size == 1:
        return room_of(content.shape, dtype)
    own = rows_of(content.shape[0], gang.rank, gang.size)
    return room_of((own.stop - own.start, *content.shape[1:]), dtype)


def _buckets(
    contents: Mapping[str, Content], rows: Weights, source: Sequence[str], gang: Gang
) -> Iterator[Bucket]:
    """Yield what is asked of the members of a source, one after the other in turn."""
    by_member: list[list[Bucket]] = [[] for _ in source]
    sizes = [BUCKET_BYTES] * len(source)  # of the last bucket of each: none is open yet
    for name, content in contents.items():
        length = content.shape[0] if content.shape else 1
        own = rows_of(length, gang.rank, gang.size)
        row_bytes = rows[name].nbytes // max(own.stop - own.start, 1)
        for member, part in overlaps(own, length, len(source)):
            kept = rows_of(length, member, len(source)).start
            at_once = max(1, BUCKET_BYTES // max(row_bytes, 1))
            for first in range(part.start, part.stop, at_once):
                end = min(first + at_once, part.stop)
                piece = Piece(name, first - kept, end - kept)
                place = Place(name, first - own.start, end - own.start, first)
                num_bytes = (end - first) * row_bytes
                if sizes[member] + num_bytes > BUCKET_BYTES or not by_member[member]:
                    by_member[member].append(Bucket(source[member], (), ()))
                    sizes[member] = 0
                sizes[member] += num_bytes
                last = by_member[member][-1]
                by_member[member][-1] = Bucket(
                    last.address, (*last.pieces, piece), (*last.places, place)
                )
    for turn in zip_longest(*by_member):
        yield from (bucket for bucket in turn if bucket is not None)
