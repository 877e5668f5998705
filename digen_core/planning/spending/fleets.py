"""Fleets: the devices of a job, or some of them, and what no plan on them is below."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product
from math import inf, prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from digen_core.control.protocol import Device
from digen_core.control.schedule import Workload
from digen_core.planning.job import Job
from digen_core.planning.spending.rates import Rate, Spending

Counts = tuple[int, ...]
"""Of a fleet: how many devices of each part it has."""

MAX_FLEETS: Final = 1024  # of more, parts are taken in larger portions
LEAST: Final = 2  # devices of a run


@dataclass(frozen=True, slots=True)
class Part:
    """Equal devices of a job."""

    devices: Sequence[Device]
    rate: Rate  # of each
    generation: float  # seconds in which one does an iteration's; infinite: it has no such role
    training: float  # likewise


@dataclass(frozen=True, slots=True)
class Fleets:
    """All fleets of a job."""

    whole: Job
    parts: Sequence[Part]
    scoring: Rate  # of devices that no fleet leaves out
    first: tuple[float, float]
    """Share of an iteration's generation that is done before the training that is not in this other
    share of it begins."""

    @classmethod
    def of(
        cls, job: Job, sized: Sequence[Job], spending: Spending, stale_share: float = 0.0
    ) -> "Fleets":
        """Return the fleets of a job.

        Args:
            job: on all its devices.
            sized: the same with all sizes that a plan may have.
            spending: of its devices.
            stale_share: most of an iteration's groups that a plan begins before the iteration.
        """
        equal = defaultdict[object, list[Device]](list)
        for device in job.fleet:
            rate = spending.devices[device.name]
            equal[device.kind, device.site, device.roles, rate].append(device)
        parts = [
            Part(own, spending.devices[own[0].name], *_least_work(own[0], sized))
            for own in equal.values()
        ]
        return cls(job, parts, spending.scoring, _first(job.workload, stale_share))

    def every(self) -> list[Counts]:
        """Return the fleets; if there are very many, those of some counts of each part."""
        levels = [len(part.devices) + 1 for part in self.parts]
        while prod(levels) > MAX_FLEETS:
            levels[levels.index(max(levels))] = max(levels) // 2
        counts = [
            sorted({round(len(part.devices) * (1 - step / max(1, num - 1))) for step in range(num)})
            for part, num in zip(self.parts, levels, strict=True)
        ]
        return [own for own in product(*counts) if sum(own) >= LEAST]

    def neighbours(self, counts: Counts) -> list[Counts]:
        """Return the fleets of a device more, or less, or of one in exchange for another."""
        places = range(len(counts))
        changes = [{place: by} for place in places for by in (1, -1)]
        changes += [{more: 1, less: -1} for more, less in permutations(places, 2)]
        moved = [
            tuple(own + change.get(place, 0) for place, own in enumerate(counts))
            for change in changes
        ]
        most = [len(part.devices) for part in self.parts]
        return [
            own
            for own in moved
            if sum(own) >= LEAST and all(0 <= n <= m for n, m in zip(own, most, strict=True))
        ]

    def job(self, counts: Counts) -> Job:
        """Return the job on a fleet, with its devices in their order."""
        used = {
            device.name
            for part, number in zip(self.parts, counts, strict=True)
            for device in part.devices[:number]
        }
        return replace(self.whole, fleet=tuple(d for d in self.whole.fleet if d.name in used))

    def floors(self, fleets: Sequence[Counts]) -> NDArray[np.float64]:
        """Return a row for each fleet: seconds and spending that no plan of it is below.

        The seconds are those of work that is divided at will, in the order that it has: all of it
        takes as long as if it overlapped, and what is first as long as that; then comes training
        alone, on all devices.
        """
        counts = np.array(fleets, dtype=float).reshape(-1, len(self.parts))
        generated, trained = self.first
        ordered = self._overlapped(counts, generated, trained)
        ordered += self._overlapped(counts, 0.0, 1 - trained)
        seconds = np.maximum(self._overlapped(counts, 1.0, 1.0), ordered)
        return np.stack([seconds, self.spent(counts, seconds)], axis=1)

    def _overlapped(
        self, counts: NDArray[np.float64], generated: float, trained: float
    ) -> NDArray[np.float64]:
        """Return the least seconds of shares of an iteration's generation and training.

        It is the least T in which devices of part k spend some of it on generation, 1 /
        ``generation`` of it a second, and some on training. By duality that is the largest (a + r
        b) / sum of n_k max(g_k, r t_k) for shares a and b, g_k and t_k the parts of a second, and
        the largest is at r = 0, at infinity or at one of the g_k / t_k.
        """
        generation = np.array([1 / part.generation for part in self.parts])
        training = np.array([1 / part.training for part in self.parts])
        ratios = [g / t for g, t in zip(generation, training, strict=True) if g and t]
        bounds = [np.zeros(len(counts))]
        with np.errstate(divide="ignore"):  # a fleet that cannot do one of both: infinite
            bounds += [generated / (counts @ generation)] if generated else []
            bounds += [trained / (counts @ training)] if trained else []
            bounds += [
                (generated + r * trained) / (counts @ np.maximum(generation, r * training))
                for r in ratios
            ]
        found: NDArray[np.float64] = np.max(bounds, axis=0)
        return found

    def spent(
        self, counts: NDArray[np.float64], seconds: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return about what fleets take in iterations of some seconds, and not more.

        All devices wait all the time, and the work is done by those that take the least for it.
        """
        waiting = counts @ np.array([part.rate.idle for part in self.parts]) + self.scoring.idle
        more = [part.rate.busy - part.rate.idle for part in self.parts]
        work = sum(
            min(own * rate for own, rate in zip(times, more, strict=True) if own < inf)
            for times in zip(
                *((part.generation, part.training) for part in self.parts), strict=True
            )
        )
        with np.errstate(invalid="ignore"):  # infinite seconds of free devices: no such plan
            found: NDArray[np.float64] = seconds * waiting + work
        return found


def _least_work(device: Device, sized: Sequence[Job]) -> tuple[float, float]:
    """Return the seconds of an iteration's generation, and training, on one device alone."""
    generation = training = inf
    for job in sized:
        costs = job.known_costs.kinds[device.kind]
        if "rollout" in device.roles:
            generation = min(generation, costs.generation(job.workload))
        if "trainer" in device.roles:
            own = costs.training(job.workload, job.trained_steps, job.workload.pack_size)
            training = min(training, own)
    return generation, training


def _first(work: Workload, stale_share: float) -> tuple[float, float]:
    """Return the shares of generation and training that come before the rest of training.

    Where advantages are scaled by all groups, no sample is trained before all are generated. Where
    samples of all groups are dealt to updates, a second update has to wait for the first one, and
    so for all groups of which that has a sample: of as many as are expected.
    """
    if work.advantages_need_all_groups:
        return 1 - stale_share, 0.0
    if work.num_updates == 1 or work.dealt_by == "groups":
        return 0.0, 1.0
    share = work.epochs / work.num_updates  # of an epoch's samples
    return (1 - stale_share) * (1 - (1 - share) ** work.trained_per_group), 1 / work.num_updates
