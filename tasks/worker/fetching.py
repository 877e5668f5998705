"""What a device fetches from others: versions, averages and sums, and how its engine holds them."""

from collections.abc import Collection, Sequence

from digen_core.training.contents import differing
from digen_core.training.train_state import PolicyVersion
from digen_core.transport.arrays import Weights
from tasks.gang.together import together
from tasks.worker.engine import Engine, engine_of
from tasks.worker.pulling import Pulled, PullError, pull


@together
def load_version(
    run_id: str,
    pushed: PolicyVersion,
    source: Sequence[str],
    *,
    needed: Collection[int] = (),
    by_delta: bool = False,
    base: int = -1,
) -> str:
    """Hold a version on all members of the gang.

    Args:
        run_id: of the run.
        pushed: the version.
        source: addresses of the workers of a device that holds it, by rank.
        needed: other versions that work may name; all others are dropped.
        by_delta: have deltas sent, of a version that both devices hold.
        base: version that the iteration before ended with, to be served on: deltas are of it.

    Returns:
        Why it is not held, and nothing has changed; empty if it is.
    """
    engine = engine_of(run_id)
    with engine.needing_memory("load"):
        engine.drop_bases(pushed.version)
        rows, failure = fetch_rows(run_id, engine, pushed, source, by_delta=by_delta)
        if not failure:
            engine.load(pushed, rows, needed=needed, base=base)
    return failure


@together
def load_average(
    run_id: str, pushed: PolicyVersion, source: Sequence[str], *, by_delta: bool = False
) -> str:
    """Hold the weights that are evaluated on all members of the gang; as `load_version`."""
    engine = engine_of(run_id)
    if engine.average is not None and engine.average[0] == pushed.hash:
        return ""
    with engine.needing_memory("load"):
        rows, failure = fetch_rows(run_id, engine, pushed, source, by_delta=by_delta)
        if not failure:
            engine.average = pushed.hash, engine.held(rows)
    return failure


def fetch_rows(
    run_id: str, engine: Engine, what: Pulled, source: Sequence[str], *, by_delta: bool = False
) -> tuple[Weights, str]:
    """Return this member's rows of what a device holds, or why that is not to be had (collective).

    Args:
        run_id: of the run.
        engine: of this member.
        what: a version, or a sum; it may be here.
        source: addresses of the workers of the device that holds it, by rank.
        by_delta: have deltas sent, of a version that both devices hold.
    """
    here, gang = engine.shelf.rows(what.hash), engine.gang
    if not gang.any(here is None):
        return here or {}, ""  # what is on the shelf was fingerprinted before it was put there
    arrived, failure = None, ""
    try:
        arrived = pull(run_id, what, source, gang, engine.shelf.bases if by_delta else None)
    except PullError as error:
        failure = str(error)
    if gang.any(arrived is None) or arrived is None:
        return {}, failure or "another member of the gang could not pull it"
    damaged = differing(what.contents, arrived.fingerprints, gang)
    if damaged:
        return {}, f"it arrived damaged: {len(damaged)} parameters differ, e.g. {damaged[0]}"
    return arrived.rows, ""
