"""Losses: take lost workers out of a run, and give up where they are lost again and again."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import chain
from time import monotonic
from typing import Final

from digen_core.errors import UserError
from flows.runtime.context import RunContext
from flows.runtime.fleet.watch import Seen
from flows.runtime.notify import notify
from flows.runtime.observers import say
from tasks.cluster.calls import WorkerLostError
from tasks.cluster.presence import Presence, dismiss
from tasks.gang.forming import told_by

MAX_LOSSES: Final = 3
"""Losses of one worker without progress of the run between them: more, and the run ends, or goes on
without a newcomer that is lost as it is made ready."""


class StateLostError(WorkerLostError):
    """The run cannot continue from where it is, but it can be resumed from its last checkpoint."""


def use_copy(run: RunContext) -> None:
    """Go on from the copy of the optimizer's state, where the device that had it is gone.

    Raises:
        StateLostError: nobody that is left has a copy.
    """
    gone, trainers = run.progress.holder, run.fleet.trainer_devices()
    if not (trainers and run.progress.takes_over(trainers[0])):
        raise StateLostError(f"the optimizer's state was lost with worker {gone}")


def take_over(run: RunContext) -> None:
    """Go on from the copy as ``use_copy`` does, and say that the holder was lost."""
    lost = run.progress.holder
    use_copy(run)
    notify(
        run,
        "state-kept",
        f"worker {lost} was lost, which had the optimizer's state; that goes on from its copy on "
        f"{run.progress.holder}",
    )


class DevicesLostError(Exception):
    """Devices were lost that a phase of the run had given tasks to; the others can take over."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(f"lost {', '.join(sorted(names))}")
        self.names = frozenset(names)


def look_if_due(run: RunContext) -> Seen | None:
    """Look at the cluster as ``look`` does, but only every few seconds; None: it was not time."""
    return look(run) if run.watch.is_due else None


def look(run: RunContext) -> Seen:
    """Look at the cluster, and take out of the run the workers that are lost.

    Raises:
        UserError: a gang is lost as one of its members found what a user has to change.
        WorkerLostError: workers are lost again and again, or nobody can score for too long.
        SchedulerLostError: the scheduler does not answer.
    """
    seen = run.watch.look(run.fleet.addresses, run.fleet.pools, run.fleet.followers)
    for text in seen.slow:
        notify(run, "task-slow", text)
    if seen.lost:
        _take_out(run, seen)
        left = {at: worker for at, worker in seen.workers.items() if worker.name not in seen.lost}
        seen = replace(seen, workers=left)  # those that were dismissed are not to be taken in
    _require_pool_workers(run, seen.workers)
    return seen


def is_left_out(run: RunContext, name: str) -> bool:
    """Say whether a newcomer was lost too often to be made ready again, until there is progress."""
    return run.fleet.lost_joining[name] >= MAX_LOSSES


def _take_out(run: RunContext, seen: Seen) -> None:
    present = {worker.name: address for address, worker in seen.workers.items()}
    addresses = {name: run.fleet.addresses.get(name) or present[name] for name in seen.lost}
    followers = [run.fleet.followers.get(name, {}).values() for name in seen.lost]
    for address in chain(addresses.values(), *followers):  # a gang is lost whole
        if address in seen.workers:
            dismiss(run.client, address)
    _require_no_culprit(run, seen.lost)
    run.fleet.lose([name for name in seen.lost if name in run.fleet.addresses])
    texts = [f"worker {name} ({addresses[name]}) {why}" for name, why in seen.lost.items()]
    _require_progress(run, "; ".join(texts))
    left = ", ".join(device.name for device in run.fleet.devices) or "nobody"
    notify(
        run,
        "worker-lost",
        f"{'; '.join(texts)}; left: {left}. What only it had is recomputed. See its log, and the "
        "memory of its machine",
    )
    for name in seen.lost:
        if is_left_out(run, name):
            notify(
                run,
                "join-failed",
                f"worker {name} could not join: it was lost {MAX_LOSSES} times as it was made "
                "ready; it is left out until the run has finished something",
            )


def _require_no_culprit(run: RunContext, lost: Collection[str]) -> None:
    """Check that no gang of the run is lost as one of its members found what a user has to change.

    Of one that is made ready that is no end of the run.

    Raises:
        UserError: one is.
    """
    gangs = [run.fleet.followers.get(name, {}) for name in run.fleet.names.intersection(lost)]
    followers = {address for gang in gangs for address in gang.values()}
    if followers and (told := told_by(run.client, followers)):
        raise UserError(told)


def _require_progress(run: RunContext, text: str) -> None:
    """Give up where workers are lost as often as they come: each costs what was under way.

    Raises:
        WorkerLostError: one was lost too often since something was finished, or all were.
    """
    losses = run.fleet.losses
    name, times = losses.most_common(1)[0] if losses else ("", 0)
    if times >= MAX_LOSSES or losses.total() >= MAX_LOSSES * run.fleet.num_most:
        raise WorkerLostError(
            f"{text}; {name} was lost {times} times, and {losses.total()} workers in all, "
            "since the run last finished something: see their logs, and the memory of their "
            "machines"
        )


def _require_pool_workers(run: RunContext, workers: Mapping[str, Presence]) -> None:
    """Check that every pool has workers; one that has none is waited for, as the last of a role is.

    A run that is paused needs none: it waits once it goes on.

    Raises:
        WorkerLostError: one has had none for ``cluster.rejoin_timeout`` seconds.
    """
    filled = {resource for worker in workers.values() for resource in worker.resources}
    needed = () if run.control.held else run.fleet.pools
    empty = [pool for pool in needed if pool not in filled]
    for pool in empty:
        if pool not in run.fleet.empty_since:
            say(f"waiting for a worker of the pool {pool!r}: none is left")
    run.fleet.pools_are_empty(empty, monotonic())
    for pool, since in run.fleet.empty_since.items():
        limit = run.config.cluster.rejoin_timeout
        if monotonic() - since > limit:
            names = ", ".join(run.fleet.pools[pool])
            raise WorkerLostError(
                f"no worker of the pool {pool!r} came back in {limit:.0f} s "
                f"(cluster.rejoin_timeout), {names} were lost: see their logs, and the memory of "
                "their machines; start one, and resume the run"
            )
