"""What the members of a gang do together: functions that all of them call when their leader does.

A task goes to the leader only. What the members compute together is a function marked ``together``:
called on the leader it is called on every member, in the leader's order, and its result is the
leader's. (Were the same tasks given to each member, Dask would order them by what is there first on
each: sums would be wrong, without an error.)

Commands and answers go over a channel to each follower, so an idle gang waits without a timeout;
only what the members compute with goes over their process group. A gang lives and dies whole: where
one member fails, no other can go on.
"""

import tempfile
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from distributed import Worker
from distributed.comm import get_address_host
from distributed.worker import thread_state

from tasks.gang.following import Following
from tasks.gang.leading import Leading
from tasks.gang.meeting import Place
from tasks.gang.messages import FAILED, GangBrokenError

P = ParamSpec("P")
R = TypeVar("R")

_leading: Leading | None = None
_following: Following | None = None
_tasks_before: frozenset[object] = frozenset()
"""Keys of the tasks that were executed here when this process became a member: of another run."""
_is_together: Final = ContextVar("is_together", default=False)
"""Whether all members are in a call of this thread's task."""


def lead(addresses: Sequence[str], key: bytes, dask_worker: Worker) -> None:
    """Make this process the leader of a gang, in place of what it was.

    Args:
        addresses: of the followers, as ``await_leader`` returned them.
        key: that they were given, too.
        dask_worker: of this process.
    """
    global _leading
    _leave(dask_worker)
    folder = tempfile.mkdtemp(prefix="gang-", dir=dask_worker.local_directory)
    _leading = Leading(Path(folder), Place.of(dask_worker), addresses, key)


def await_leader(leader: str, key: bytes, dask_worker: Worker) -> str:
    """Make this process a follower that waits for a leader, and return where that is to call.

    Args:
        leader: address of its worker.
        key: that it will prove to know.
        dask_worker: of this process.
    """
    global _following
    before = _leave(dask_worker)

    def tell(text: str) -> None:
        dask_worker.log_event(FAILED, {"address": dask_worker.address, "text": text})

    _following = Following(Place.of(dask_worker), get_address_host(leader), key, before, tell)
    return _following.address


def _leave(dask_worker: Worker) -> "Following | None":
    global _leading, _following, _tasks_before
    with dask_worker.active_threads_lock:
        _tasks_before = frozenset(dask_worker.active_threads.values())
    before, _following = _following, None
    if before is not None:
        before.stop()
    if _leading is not None:
        _leading.end()
        _leading = None
    return before


def together(function: Callable[P, R]) -> Callable[P, R]:
    """Have all members of the gang call a function of a module whenever its leader does.

    The leader's call returns what the function returned there. Arguments are pickled for the
    others, but for results of such functions of which each member has a part of its own: there
    every member is given its own part, see `digen_core.gang.parts`.

    Raises:
        GangBrokenError: (the function made) another member failed or is gone, or this process is
            in another gang than when its task began, as that of the next run.
    """

    @wraps(function)
    def call(*arguments: P.args, **parameters: P.kwargs) -> R:
        if _is_together.get():
            return function(*arguments, **parameters)
        if getattr(thread_state, "key", None) in _tasks_before:
            raise GangBrokenError("the gang was formed anew")
        if _leading is None or _leading.is_calling:
            return function(*arguments, **parameters)
        token = _is_together.set(True)
        try:
            return _leading.call(call, *arguments, **parameters)
        finally:
            _is_together.reset(token)

    return call
