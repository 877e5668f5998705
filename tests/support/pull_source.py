"""A device of which others pull, in the process of a test."""

from concurrent.futures import Future

from digen_core.gang.members import ALONE, Gang
from digen_core.gang.rows import own_rows
from digen_core.training.contents import contents_of
from digen_core.training.optimizer import PolicyVersion
from tasks.worker import pulling
from tasks.worker.shelf import Shelf


def version_of(weights, number=1):
    """Name weights as a version."""
    return PolicyVersion(number, contents_of(weights, ALONE))


class Source:
    """A device that serves without a network, and counts what is under way."""

    def __init__(self, weights, size: int) -> None:
        self.pushed = version_of(weights)
        self.addresses = [f"member-{rank}" for rank in range(size)]
        self.buckets, self.answers, self.under_way, self.most = [], [], 0, 0
        self.change = lambda answer: answer  # on its way
        self.shelves = {address: Shelf() for address in self.addresses}
        self.hold(1, weights)

    def hold(self, number, weights):
        """Have it hold one more version."""
        for rank, shelf in enumerate(self.shelves.values()):
            gang = Gang(rank, len(self.shelves))
            rows = {name: own_rows(value, gang) for name, value in weights.items()}
            shelf.put(number, version_of(weights, number).hash, rows)

    @property
    def num_sent(self):
        """Bytes in all."""
        return sum(answer.num_bytes for answer in self.answers)

    def serve(self, patch, bucket=pulling.BUCKET_BYTES):
        """Have pulls of this process ask it, for buckets of so many bytes."""
        patch.setattr(pulling, "_ask", self.ask)
        patch.setattr(pulling, "BUCKET_BYTES", bucket)

    def ask(self, run_id, wanted, bucket, bases=()):
        source, future = self, Future()
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        self.buckets.append(bucket)
        answer = self.shelves[bucket.address].answer(wanted, bucket.pieces, bases)
        if answer is not None:
            self.answers.append(answer)
            answer = self.change(answer)
        future.set_result(answer)

        class Answer:
            def result(self):
                source.under_way -= 1
                return future.result()

            def cancel(self):
                source.under_way -= 1

        return Answer()
