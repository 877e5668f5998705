"""What real workers do in tests of pulls."""

import time
from concurrent.futures import Future
from typing import Any

import numpy as np

from digen_core.gang.members import ALONE
from digen_core.training.contents import contents_of, differing
from digen_core.training.train_state import PolicyVersion
from tasks.gang.received import take_received
from tasks.worker import pulling
from tasks.worker.shelf import Shelf

RUN = "run"


def reach_nobody() -> None:
    """Have this worker reach no other one, as behind a firewall."""
    vars(pulling)["_ask"] = _unanswered


def _unanswered(*of: object) -> Future[Any]:
    answer = Future[Any]()
    answer.set_exception(TimeoutError())
    return answer


def answer_late(seconds: float) -> None:
    """Have this worker's pulls take longer, as over a slow link."""
    ask = vars(pulling)["_ask"]

    def asked_late(*of: object) -> Future[Any]:
        time.sleep(seconds)
        found: Future[Any] = ask(*of)
        return found

    vars(pulling)["_ask"] = asked_late


def weights_of(megabytes: int) -> dict[str, np.ndarray]:
    """Return weights in bfloat16."""
    rng = np.random.default_rng(megabytes)
    shape = (megabytes, 500_000)
    return {"a": rng.integers(0, 1 << 16, shape, np.uint16), "b": np.arange(7.0)}


def shelve(megabytes: int) -> PolicyVersion:
    """Serve a version from this worker."""
    shelf, weights = Shelf(), weights_of(megabytes)
    pushed = PolicyVersion(1, contents_of(weights, ALONE))
    shelf.put(1, pushed.hash, weights)
    pulling.serve_from(RUN, shelf)
    return pushed


def pull(pushed: PolicyVersion, address: str, seconds: float = 60.0) -> tuple[bool, float, int]:
    """Pull it from there; say whether it is the same, how long it took and its bytes."""
    pulling.BUCKET_SECONDS = seconds  # type: ignore[misc]  # in this process alone
    started = time.monotonic()
    arrived = pulling.pull(RUN, pushed, [address], ALONE)
    seconds = time.monotonic() - started
    is_same = contents_of(arrived.rows, ALONE) == pushed.contents
    is_same &= not differing(pushed.contents, arrived.fingerprints, ALONE)
    return is_same, seconds, sum(own.num_bytes for own in take_received())


def serve_slowly(seconds: float) -> None:
    """Take a while to answer each bucket."""
    import asyncio

    serve = pulling._serve

    async def slowly(**asked: Any) -> Any:
        await asyncio.sleep(seconds)
        return await serve(**asked)

    assert pulling._worker is not None
    pulling._worker.handlers["digen_pull"] = slowly


def busy(seconds: float) -> None:
    """Be at work, as a task that trains is."""
    time.sleep(seconds)
