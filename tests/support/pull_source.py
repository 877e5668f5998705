"""A device of which others pull, in the process of a test."""

from concurrent.futures import Future

from digen_core.gang.members import ALONE, Gang
from digen_core.gang.rows import own_rows
from digen_core.training.contents import contents_of
from digen_core.training.optimizer import PolicyVersion
from tasks.worker.shelf import Shelf


def version_of(weights, number=1):
    """Name weights as a version."""
    return PolicyVersion(number, contents_of(weights, ALONE))


class Source:
    """A device that serves without a network, and counts what is under way."""

    def __init__(self, weights, size: int) -> None:
        self.pushed = version_of(weights)
        self.addresses = [f"member-{rank}" for rank in range(size)]
        self.buckets, self.under_way, self.most = [], 0, 0
        self.shelves = {}
        for rank, address in enumerate(self.addresses):
            rows = {name: own_rows(value, Gang(rank, size)) for name, value in weights.items()}
            self.shelves[address] = Shelf()
            self.shelves[address].put(1, self.pushed.hash, rows)

    def ask(self, run_id, wanted, bucket, bases=()):
        source, future = self, Future()
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        self.buckets.append(bucket)
        future.set_result(self.shelves[bucket.address].answer(wanted, bucket.pieces, bases))

        class Answer:
            def result(self):
                source.under_way -= 1
                return future.result()

            def cancel(self):
                source.under_way -= 1

        return Answer()
