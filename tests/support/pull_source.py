"""A device of which others pull, in the process of a test."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import pytest

from digen_core.gang.members import ALONE, Gang
from digen_core.gang.rows import own_rows
from digen_core.training.contents import contents_of
from digen_core.training.train_state import PolicyVersion
from digen_core.transport.arrays import Weights
from tasks.worker import pulling, shelf
from tasks.worker.shelf import Shelf


def version_of(weights: Weights, number: int = 1) -> PolicyVersion:
    """Name weights as a version."""
    return PolicyVersion(number, contents_of(weights, ALONE))


class Source:
    """A device that serves without a network, and counts what is under way."""

    def __init__(self, weights: Weights, size: int) -> None:
        self.pushed = version_of(weights)
        self.addresses = [f"member-{rank}" for rank in range(size)]
        self.buckets: list[pulling.Bucket] = []
        self.answers: list[shelf.Answer] = []
        self.under_way = self.most = 0
        self.change: Callable[[shelf.Answer], shelf.Answer] = lambda answer: answer  # on its way
        self.shelves = {address: Shelf() for address in self.addresses}
        self.hold(1, weights)

    def hold(self, number: int, weights: Weights) -> None:
        """Have it hold one more version."""
        for rank, own in enumerate(self.shelves.values()):
            gang = Gang(rank, len(self.shelves))
            rows = {name: own_rows(value, gang) for name, value in weights.items()}
            own.put(number, version_of(weights, number).hash, rows)

    @property
    def num_sent(self) -> int:
        """Bytes in all."""
        return sum(answer.num_bytes for answer in self.answers)

    def serve(self, patch: pytest.MonkeyPatch, bucket: int = pulling.BUCKET_BYTES) -> None:
        """Have pulls of this process ask it, for buckets of so many bytes."""
        patch.setattr(pulling, "_ask", self.ask)
        patch.setattr(pulling, "BUCKET_BYTES", bucket)

    def ask(
        self, run_id: str, wanted: str, bucket: pulling.Bucket, bases: Sequence[str] = ()
    ) -> "Answering":
        future: Future[shelf.Answer | None] = Future()
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        self.buckets.append(bucket)
        answer = self.shelves[bucket.address].answer(wanted, bucket.pieces, bases)
        if answer is not None:
            self.answers.append(answer)
            answer = self.change(answer)
        future.set_result(answer)

        return Answering(self, future)


@dataclass
class Answering:
    """What stands for the future of an answer."""

    source: Source
    future: "Future[shelf.Answer | None]"

    def result(self) -> shelf.Answer | None:
        self.source.under_way -= 1
        return self.future.result()

    def cancel(self) -> None:
        self.source.under_way -= 1
