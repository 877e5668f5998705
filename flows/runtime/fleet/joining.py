"""Workers that come while a run works: each loads the model beside it, then takes part.

A worker that a nanny has started again, or one that is new to the cluster, gets a flow run of its
own in a thread of its own, so that nobody waits for it. When it has the model, and its work is
measured if its kind is new to the run, the conductor hears of it.
"""

from collections.abc import Mapping
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from threading import Event, Thread
from time import monotonic, sleep
from typing import Final

from prefect import State, flow
from prefect.exceptions import CancelledRun
from prefect.states import Cancelled

from digen_core.control.protocol import Device, Role
from digen_core.planning.profile import Measured
from flows.runtime.context import RunContext, context_of
from flows.runtime.fleet.loading import load_models, measure_costs
from flows.runtime.fleet.losses import is_left_out, look
from flows.runtime.fleet.task_set import TaskSet
from flows.runtime.fleet.waiting import Waiting
from flows.runtime.fleet.watch import LOOK_SECONDS
from flows.runtime.notify import notify
from flows.runtime.subflows import on_cluster
from flows.runtime.workload import layout_of
from tasks.body import ONCE
from tasks.cluster.calls import WorkerLostError
from tasks.cluster.presence import ROLES, Presence, devices_among
from tasks.runner.completions import Completions

END_SECONDS: Final = 5.0
"""How long the end of a run, or of a part of it, waits for all that are made ready."""
SEEN_SECONDS: Final = 10.0
"""How long it may take until a look has found a newcomer lost."""


class AbandonedError(Exception):
    """Nobody waits for a worker any more."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A worker is ready to take part."""

    device: Device
    address: str
    measured: Mapping[Device, Measured]


@dataclass(frozen=True, slots=True)
class JoinFailed:
    """A worker could not be made ready, or load a version; None: it was lost, which is known."""

    name: str
    address: str
    error: Exception | None


@dataclass(slots=True)
class Newcomer:
    """A worker that is being made ready."""

    worker: Presence
    roles: frozenset[Role]
    abandoned: Event = field(default_factory=Event)
    thread: Thread | None = None

    def check(self, run: RunContext, *, now: bool = False) -> None:
        """Raise AbandonedError if nobody waits for it; losses are the conductor's business.

        Args:
            run: its context.
            now: it may be lost, as a task of it has failed: whoever looks at the cluster, the
                conductor or an evaluation, is to see that first.
        """
        if now:
            run.watch.hasten()
            self.abandoned.wait(SEEN_SECONDS)
        if self.abandoned.is_set():
            raise AbandonedError


class Joining:
    """The workers that are being made ready."""

    def __init__(self, run: RunContext) -> None:
        self._run = run
        self._refused: set[str] = set()  # addresses of those that could not be made ready

    def take_in(self, workers: Mapping[str, Presence]) -> None:
        """Begin with those of the cluster's workers that the run does not know yet."""
        self._refused &= workers.keys()  # one that is started again may have the same address
        for worker in new_workers(self._run, workers):
            if worker.address in self._refused or is_left_out(self._run, worker.name):
                continue
            if roles := roles_for(self._run, worker):
                self._begin(worker, roles)
            else:
                self._refused.add(worker.address)

    def end(self, name: str, address: str) -> bool:
        """Note that a worker is ready or refused; say whether it is still waited for."""
        newcomer = self._run.fleet.joining.get(name)
        if newcomer is None or newcomer.worker.address != address:  # another one has its name now
            return False
        self._run.fleet.made_ready(name)
        return True

    def refuse(self, failed: JoinFailed) -> None:
        """Leave a worker out that could not be made ready."""
        if not self.end(failed.name, failed.address):
            return
        self._run.fleet.turned_away(failed.name)
        self._refused.add(failed.address)
        notify(
            self._run,
            "join-failed",
            f"worker {failed.name} ({failed.address}) could not join: {failed.error}; it is left "
            "out",
        )

    def stop(self) -> None:
        """End all threads; what one that ends later says nobody hears."""
        newcomers = list(self._run.fleet.joining.values())
        for newcomer in newcomers:
            self._run.fleet.abandon(newcomer.worker.name)
        deadline = monotonic() + END_SECONDS
        for newcomer in newcomers:
            if newcomer.thread is not None:
                newcomer.thread.join(max(0.0, deadline - monotonic()))
            if newcomer.worker.name in self._run.fleet.addresses:
                self._run.fleet.turned_away(newcomer.worker.name)

    def _begin(self, worker: Presence, roles: frozenset[Role]) -> None:
        newcomer = Newcomer(worker, roles)
        self._run.fleet.making_ready(newcomer)
        newcomer.thread = Thread(
            target=copy_context().run,
            args=(self._make_ready, newcomer),
            name=f"join-{worker.name}",
            daemon=True,
        )
        newcomer.thread.start()

    def _make_ready(self, newcomer: Newcomer) -> None:
        message: Joined | JoinFailed
        name, address = newcomer.worker.name, newcomer.worker.address
        try:
            message = on_cluster(self._run, join, name)
        except CancelledRun:
            message = JoinFailed(name, address, None)
        except Exception as error:
            message = JoinFailed(name, address, error)
        if not newcomer.abandoned.is_set():  # else the run may have gone back, and taken it in
            self._run.inbox.put(message)


@flow(**ONCE, name="join", flow_run_name="{run_id}-join-{name}", validate_parameters=False)
def join(run_id: str, name: str) -> Joined | State:
    """Load the model on a worker, and measure it if nothing is known of its kind."""
    run = context_of(run_id)
    newcomer = run.fleet.joining.get(name)
    try:
        if newcomer is None:  # it was lost before this flow run began
            raise AbandonedError
        return make_ready(run, newcomer)
    except AbandonedError:
        return Cancelled(message="the worker was lost, or the run has ended")


def make_ready(run: RunContext, newcomer: Newcomer) -> Joined:
    """Load the model on a worker, and measure it if nothing is known of its kind.

    Raises:
        AbandonedError: nobody waits for it any more, as where it was lost.
        WorkerLostError: it does not answer.
    """
    answering = devices_among(run.client, [newcomer.worker])
    newcomer.check(run)
    if not answering:
        raise WorkerLostError("it does not answer")
    found = answering[0]
    device, kind = replace(found, roles=newcomer.roles), found.kind
    address = newcomer.worker.address
    with (
        Completions() as completions,
        TaskSet(run, completions, newcomer.check) as task_set,
    ):
        load_models(run, task_set, [device])
        if kind in run.progress.known_costs.kinds:
            return Joined(device, address, {})
        return Joined(device, address, measure_costs(run, task_set, [device]))


def new_workers(run: RunContext, workers: Mapping[str, Presence]) -> list[Presence]:
    """Return the workers of a cluster that declare a role and that the run does not know yet.

    A gang's leader is one when all its members are there.
    """
    known = set(run.fleet.addresses.values())
    # A name that is known still belongs to a worker that is not seen to be gone yet.
    return [
        worker
        for address, worker in workers.items()
        if worker.roles
        and not (worker.lacks or worker.is_leaving)
        and address not in known
        and worker.name not in run.fleet.addresses
    ]


def roles_for(run: RunContext, worker: Presence) -> frozenset[Role]:
    """Return the roles that a new worker gets, none if the layout cannot use it.

    They are those that it had before it was lost, else what the split of the start lacks most.
    """
    known = run.fleet.known.get(worker.name)
    if known is not None and known.roles <= worker.roles:
        return known.roles
    if layout_of(run.config).colocated:
        if worker.roles.issuperset(ROLES):
            return worker.roles
        text = f"worker {worker.name} has one role only, but the layout needs both: it is not used"
        notify(run, "join-failed", text)
        return frozenset()
    if len(worker.roles) == 1:
        return worker.roles
    rollouts, total = len(run.fleet.rollout_devices()), len(run.fleet.devices)
    lacks = not rollouts or rollouts + 0.5 <= run.fleet.rollout_share * (total + 1)
    return frozenset({"rollout" if lacks else "trainer"})


def await_roles(run: RunContext) -> None:
    """Wait until there is a worker for each role, and take in those that came.

    Raises:
        WorkerLostError: none came in time.
        RunCancelledError: somebody stopped the run.
    """
    refused = set[str]()  # addresses: it is said once of each
    with Waiting(run) as waiting:
        while True:
            run.control.check()
            coming = new_workers(run, look(run).workers)
            new = {own.name: own for own in coming if own.address not in refused}
            for device in devices_among(run.client, new.values()):
                worker = new[device.name]
                if roles := roles_for(run, worker):
                    run.fleet.came(worker.name, worker.address)
                    run.fleet.join(replace(device, roles=roles))
                else:
                    refused.add(worker.address)
            missing = [r for r in ROLES if not any(r in d.roles for d in run.fleet.devices)]
            if not missing:
                return
            waiting.for_role(missing[0])
            sleep(LOOK_SECONDS)
