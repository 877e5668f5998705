"""Versions on their way: published by the trainer, and pulled by each device from another one.

A version that was stepped counts when it is pushed: until then its state may be lost with its
device, and it is made again.
"""

from collections import Counter
from collections.abc import Collection
from typing import Any, Final

from prefect.futures import PrefectFuture
from prefect_dask.task_runners import PrefectDaskFuture

from digen_core.control import protocol
from digen_core.control.protocol import Event
from digen_core.records import SpanKind
from flows.runtime.context import RunContext
from flows.runtime.fleet.joining import JoinFailed
from flows.runtime.fleet.task_set import TaskFailedError
from flows.runtime.iterations.open_iteration import OpenIteration
from flows.runtime.notify import notify
from flows.runtime.submission import Submitter, Work
from tasks.cluster.lineage import forget_lineage
from tasks.receipts import HeldVersion, Pushed, Receipt, Updated
from tasks.versions import copy_state, publish, push_weights

MOST_PUSHES: Final = 3
"""Of a version to a device, before the run ends with why they fail, or goes on without a device
that has joined it."""

OF_STATE: Final[tuple[SpanKind, ...]] = ("push", "copy")
"""Tasks on other devices that wait for what only the holder has."""


def sends_deltas(run: RunContext, devices: Collection[str]) -> bool:
    """Say whether some of these devices send others deltas of versions, as ``schedule.push`` says.

    Args:
        run: its context.
        devices: names of devices that took part.
    """
    push = run.config.schedule.push
    sites = {run.fleet.known[name].site for name in devices}
    return push == "delta" or (push == "auto" and len(sites) > 1)


class Versions:
    """The pushes of a run, and which devices hold a version."""

    def __init__(self, run: RunContext, submitter: Submitter, num_behind: int) -> None:
        """Prepare for a run.

        Args:
            run: its context.
            submitter: of its tasks.
            num_behind: versions between the newest one and the oldest that work may name.
        """
        self._run = run
        self._num_behind = num_behind
        self._stepped: tuple[OpenIteration, Updated] | None = None  # does not count yet
        self._submitter = submitter
        self._makers: dict[int, OpenIteration] = {}  # version -> the iteration that made it
        self._loaded: set[str] = set()
        self._num_failed = Counter[tuple[str, int]]()

    def is_loaded(self, device: str) -> bool:
        """Say whether a device holds a version."""
        return device in self._loaded

    def forget(self, devices: Collection[str]) -> None:
        """Note that devices are lost."""
        self._loaded.difference_update(devices)
        for at in [at for at in self._num_failed if at[0] in devices]:
            del self._num_failed[at]
        self._run.progress.lost(devices)

    def take_over(self, newest: OpenIteration) -> None:
        """Go on from the state that another device has now, with what was published of it.

        Args:
            newest: open iteration, in which that shows.
        """
        progress = self._run.progress
        self._stepped = None
        progress.unpublished()
        self._submitter.forget((), OF_STATE)
        for (device, version), state in sorted(progress.copies.items(), key=lambda own: own[0][1]):
            if device == progress.holder:
                self._publish(newest, device, version, state)

    def close(self, iteration: OpenIteration) -> None:
        """Show no push in an iteration any more, as it is over."""
        self._makers = {v: it for v, it in self._makers.items() if it is not iteration}

    def publish(self, it: OpenIteration, device: str, version: int) -> None:
        """Let the trainer take out of its state what a push moves."""
        self._publish(it, device, version, self._run.progress.state)

    def stepped(self, it: OpenIteration, update: Updated) -> None:
        """Note the version that the optimizer made in an iteration."""
        self._stepped = it, update

    def _count(self, version: int) -> None:
        """Count a version that was stepped, as its state cannot be lost with one device."""
        if self._stepped is None or self._stepped[1].version != version:
            return
        (it, update), self._stepped = self._stepped, None
        it.recorder.add_update(update)
        oldest, trained_from = version - self._num_behind, self._trained_from(version)
        self._run.progress.stepped(version, update.hash, oldest, trained_from)
        it.drop_sums()  # before a next sum begins: of all weights, two would not fit
        assert isinstance(self._run.progress.state, PrefectDaskFuture)
        forget_lineage(self._run.client, self._run.progress.state.wrapped_future)

    def copy(self, do: protocol.CopyState, newest: OpenIteration) -> None:
        """Have a device copy the state; arguments as in ``push``."""
        progress = self._run.progress

        def event_of(receipt: Receipt[HeldVersion]) -> Event:
            made = progress.hashes.get(do.version)
            if self._stepped is not None and self._stepped[1].version == do.version:
                made = self._stepped[1].hash
            if (receipt.facts.version, receipt.facts.hash) != (do.version, made):
                raise TaskFailedError(
                    f"{do.device} acknowledged the state of version {receipt.facts.version} "
                    f"({receipt.facts.hash}), but that of version {do.version} ({made}) was copied"
                )
            progress.copied(do.device, do.version, future)
            return protocol.StateCopied(do.device, do.version)

        work = Work(
            body=copy_state,
            label=f"copy state v{do.version} to {do.device}",
            device=do.device,
            kind="copy",
            about={"version": do.version},
            parameters={"state": progress.state, "trained_from": self._trained_from(do.version)},
            event_of=event_of,
        )
        future = self._submitter.submit(self._makers.get(do.version, newest), work)

    def _trained_from(self, version: int) -> int:
        """Return the version from which the iteration that made one stepped first."""
        maker = self._makers.get(version)
        found = None if maker is None else maker.trained_from
        return version - 1 if found is None else found

    def _publish(
        self, it: OpenIteration, device: str, version: int, state: PrefectFuture[Any] | None
    ) -> None:
        self._makers[version] = it

        def event_of(receipt: Receipt[HeldVersion]) -> None:
            # where the update is skipped, this is the version before once more
            self._run.progress.has_published(receipt.facts.version, receipt.facts.hash)

        work = Work(
            body=publish,
            label=f"publish v{version}",
            device=device,
            kind="publish",
            about={"version": version},
            parameters={"state": state},
            event_of=event_of,
        )
        self._run.progress.publishing(version, self._submitter.submit(it, work))

    def push(self, do: protocol.Push, newest: OpenIteration) -> None:
        """Have a device load a version.

        Args:
            do: the instruction.
            newest: open iteration, in which it shows if that of the version is over, as for a
                worker that joins.
        """
        is_there = do.source == do.device
        has_joined = newest.index >= 0 and do.device not in self._loaded
        self._count(do.version)

        def event_of(receipt: Receipt[Pushed]) -> Event | None:
            # a push begins when what it moves was published: that receipt came before
            held, pushed = receipt.facts, self._run.progress.published_hashes[do.version]
            if held.failure:
                return self._push_failed(do, held.failure, has_joined=has_joined)
            if (held.version, held.hash) != (do.version, pushed):
                raise TaskFailedError(
                    f"{do.device} acknowledged version {held.version} ({held.hash}), "
                    f"but version {do.version} ({pushed}) was pushed"
                )
            self._loaded.add(do.device)
            return protocol.VersionLoaded(do.device, do.version)

        work = Work(
            body=push_weights,
            label=f"push v{do.version} to {do.device}",
            device=do.device,
            kind="push",
            about={"version": do.version},
            parameters={
                "policy_version": self._run.progress.published[do.version],
                # none: it is there
                "source": () if is_there else self._run.fleet.workers_of(do.source),
                "needed": frozenset(self._run.progress.published),
                "by_delta": sends_deltas(self._run, (do.source, do.device)),
                "base": self._base_of(do.version),
            },
            event_of=event_of,
        )
        self._submitter.submit(self._makers.get(do.version, newest), work)

    def _base_of(self, version: int) -> int:
        """Return the version that deltas of one are of, to be kept for others; -1: there are none.

        Devices that only generate hold no version between two updates.
        """
        is_sent = sends_deltas(self._run, self._run.fleet.names)
        return self._trained_from(version) if is_sent else -1

    def _push_failed(self, do: protocol.Push, failure: str, *, has_joined: bool) -> Event | None:
        """Note that a push failed, which the controller has tried again.

        A device that has joined, and has no version yet, is left out if that was often enough: it
        may be that the others are not reached from there.

        Raises:
            TaskFailedError: it was tried often enough.
        """
        self._num_failed[do.device, do.version] += 1
        notify(self._run, "push-failed", f"push of v{do.version} to {do.device}: {failure}")
        if self._num_failed[do.device, do.version] < MOST_PUSHES:
            return protocol.PushFailed(do.device, do.version, do.source)
        error = TaskFailedError(f"version {do.version} cannot be pushed to {do.device}: {failure}")
        if not has_joined:
            raise error
        self._run.inbox.put(JoinFailed(do.device, self._run.fleet.addresses[do.device], error))
        return None
