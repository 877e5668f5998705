"""Spares: idle workers, one of which takes the place of a follower that its gang has lost.

Who has which place is decided where the scheduler is, from what workers declare and who has which
place already, so that all who look at a cluster see the same. The leader's place nobody takes: it
has the roles, and what only leaders hold.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Final, Self

from distributed import Client, Scheduler
from distributed.metrics import time
from distributed.scheduler import WorkerState

from digen_core.control.protocol import followers_of
from tasks.cluster.calls import on_scheduler

MEMBERS: Final = "members"
"""Dask resource that the leader of a gang declares beside its roles: workers of the gang."""
MEMBER: Final = "member"
"""Dask resource that its followers declare, in place of roles."""
SPARE: Final = "spare:"
"""Begins the Dask resources of a spare: each names a gang, or one of its followers."""
LEAVING: Final = "digen-leaving"
"""Key of what the scheduler knows of a worker that was asked to leave."""
PLACE: Final = "digen-place"
"""Key of what the scheduler knows of a spare: the name of the follower whose place it has."""
UNFIT: Final = "digen-unfit"
"""Key of what the scheduler knows of a spare: the names of gangs of which it cannot be a member."""
RESTART_SECONDS: Final = 30.0
"""How long a place stays free for its own worker, which a nanny may be starting again."""
SILENT_SECONDS: Final = 10.0
"""After which a spare is given no place: workers are heard of every 0.5 to 2 seconds."""

_ABSENT: Final = "digen-absent"  # in the scheduler's metadata


@dataclass(frozen=True, slots=True)
class Declared:
    """What the scheduler knows of a worker, as far as places are concerned."""

    name: str
    start: str
    """Of whoever starts the worker, the same as long as it starts it again: its nanny."""
    size: int = 1
    """Workers of the gang that it leads."""
    is_member: bool = False
    """It is a follower itself."""
    spare_for: frozenset[str] = frozenset()
    """Gangs, and followers, whose place it may take as a spare."""
    unfit_for: frozenset[str] = frozenset()
    """Gangs among them, or of these followers, of which it was found that it cannot be a member."""
    place: str = ""
    """That it has as a spare."""
    is_leaving: bool = False
    is_silent: bool = False
    """Nothing was heard of it for some time: it may be frozen."""

    @property
    def is_idle(self) -> bool:
        """Whether it is a spare that may take a place."""
        return bool(self.idle_for) and not (self.place or self.is_leaving or self.is_silent)

    @property
    def idle_for(self) -> frozenset[str]:
        """Gangs, and followers, whose place it may take and for which it is not unfit."""
        return frozenset(
            name
            for name in self.spare_for
            if self.unfit_for.isdisjoint((name, name.rpartition(".")[0]))
        )

    @classmethod
    def of(cls, worker: WorkerState) -> Self:
        """Return what the scheduler knows of a worker."""
        return cls(
            str(worker.name),
            worker.nanny or worker.address,
            int(worker.resources.get(MEMBERS, 1)),
            MEMBER in worker.resources,
            places_in(worker.resources),
            worker.extra.get(UNFIT, frozenset()),
            worker.extra.get(PLACE, ""),
            LEAVING in worker.extra,
            time() - worker.last_seen > SILENT_SECONDS,
        )


@dataclass(frozen=True, slots=True)
class Absence:
    """That a follower is not there, though its leader was."""

    leader: str
    """What starts the leader: where another one does, its gang is on the way anew."""
    since: float
    """When that was seen first."""


def places_in(resources: Iterable[str]) -> frozenset[str]:
    """Return which gangs and followers a worker declares to be a spare for."""
    return frozenset(own.removeprefix(SPARE) for own in resources if own.startswith(SPARE))


def spare_resources(names: Iterable[str]) -> set[str]:
    """Return what a spare for some gangs and followers declares."""
    return {SPARE + name for name in names}


def may_take(spare_for: Collection[str], place: str) -> bool:
    """Say whether a spare for some gangs and followers may take a follower's place."""
    return place in spare_for or place.rpartition(".")[0] in spare_for


def absences(
    workers: Sequence[Declared], before: Mapping[str, Absence], now: float
) -> dict[str, Absence]:
    """Return which followers are not there, by name.

    Where their leader is started again, as all members of a lost gang are, their time goes on.

    Args:
        workers: that are there.
        before: what was found when one looked the last time.
        now: in seconds.
    """
    there = {own.name for own in workers if own.is_member}
    found = {name: absence for name, absence in before.items() if name not in there}
    for leader in workers:
        for name in followers_of(leader.name, leader.size):
            known = found.get(name)
            if name not in there and (known is None or known.leader != leader.start):
                found[name] = Absence(leader.start, now)
    return found


def assign(
    workers: Sequence[Declared],
    absent: Mapping[str, Absence],
    now: float,
    patience: float = RESTART_SECONDS,
) -> dict[str, str]:
    """Return the places that idle spares take now: name of the spare -> the place.

    Free is the place of a follower that is not there, though its leader is, and that no spare has;
    that of a gang which is to leave is not. Gangs are filled in the order of how many they lack,
    then of their names, each place by the spare that may take the fewest places, of several the
    first by name; a gang that would not be whole then is given none.

    Args:
        workers: that are there.
        absent: followers that are not, since when.
        now: in seconds.
        patience: how long a place stays free for its own worker.
    """
    held = {own.place for own in workers if own.place}
    leaders = sorted((own for own in workers if not own.is_leaving), key=lambda own: own.name)
    lacking = [
        [p for p in followers_of(own.name, own.size) if p in absent and p not in held]
        for own in leaders
    ]
    waited = {p for places in lacking for p in places if now - absent[p].since >= patience}
    idle = [own for own in workers if own.is_idle]
    choices = {own.name: sum(may_take(own.idle_for, place) for place in waited) for own in idle}
    idle.sort(key=lambda own: (choices[own.name], own.name))
    taken: dict[str, str] = {}
    for places in sorted(lacking, key=len):
        left = {own.name: own.idle_for for own in idle if own.name not in taken}
        found = matched(places, left)
        if len(found) == len(places) and waited.issuperset(places):
            taken |= found
    return taken


def matched(places: Sequence[str], idle: Mapping[str, Collection[str]]) -> dict[str, str]:
    """Return a spare for as many places as there can be: its name -> the place.

    Earlier spares are preferred; one that has a place gives way to a place that no other may take
    if there is another place for it (augmenting paths).

    Args:
        places: that are free.
        idle: spares -> the gangs and followers that they are for.
    """
    found: dict[str, str] = {}

    def fill(place: str, asked: set[str]) -> bool:
        fitting = [name for name, own in idle.items() if may_take(own, place) and name not in asked]
        for name in sorted(fitting, key=found.__contains__):  # first those that have none
            asked.add(name)
            if name not in found or fill(found[name], asked):
                found[name] = place
                return True
        return False

    for place in places:
        fill(place, set())
    return found


def take_places(scheduler: Scheduler, patience: float) -> None:
    """Let spares take the places that are free, and remember which followers are not there."""
    now, workers = monotonic(), scheduler.workers.values()
    declared = [Declared.of(worker) for worker in workers]
    absent = absences(declared, scheduler.get_metadata([_ABSENT], {}), now)
    scheduler.set_metadata([_ABSENT], absent)
    places = assign(declared, absent, now, patience)
    for worker in workers:
        if place := places.get(str(worker.name)):
            worker.extra[PLACE] = place


def take_out(client: Client, spare: str, gang: str) -> None:
    """Take a spare's place from it, as it cannot be a member of the gang; others may have it.

    Until the spare is started again it is given no place of that gang.

    Args:
        client: of the cluster.
        spare: its address.
        gang: name of the gang.

    Raises:
        SchedulerLostError: the scheduler does not answer.
    """
    on_scheduler(client, _take_out, spare=spare, gang=gang)


def _take_out(spare: str, gang: str, dask_scheduler: Scheduler) -> None:
    if worker := dask_scheduler.workers.get(spare):
        worker.extra.pop(PLACE, None)
        worker.extra[UNFIT] = worker.extra.get(UNFIT, frozenset()) | {gang}
