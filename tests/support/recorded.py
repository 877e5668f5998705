"""Controllers that are recorded while a random cluster runs them."""

from contextlib import suppress
from itertools import count
from random import Random
from typing import Any

from digen_core.control import protocol as p
from digen_core.control.controller import Controller
from digen_core.control.layout import LAYOUTS, LayoutName
from digen_core.control.schedule import Schedule
from digen_core.eventlog.recorder import Recorder
from digen_core.eventlog.under_way import after
from support.random_cluster import RandomCluster, make_costs, make_devices, make_workload


class EnoughError(Exception):
    """As many events as were wanted."""


class Recorded(Recorder):
    """A recorder whose clock counts, from 1000 on, and that may end in the middle of a run."""

    def __init__(self, controller: Controller, most: int = 10**9, most_events: int = 10**9) -> None:
        ticks = count(1000)
        super().__init__(controller, lambda: float(next(ticks)), most_events)
        self.most = most

    def validate(self) -> None:
        self._controller.validate()

    @property
    def under_way(self) -> list[p.Instruction]:
        return [one.instruction for one in after(self._segments[-1])]


class RecordedCluster(RandomCluster):
    """Checks after each event that what is under way is what its devices have not done."""

    def tell(self, event: p.Event) -> None:
        super().tell(event)
        if isinstance(event, p.ReduceFailed):
            return  # a device is gone, which is told next
        own = [do for queue in self.queues.values() for do in queue] + self.others
        others = [do for do in self.it.under_way if not isinstance(do, p.Pause)]
        assert sorted(map(repr, others)) == sorted(map(repr, own))
        self.it.most -= 1
        if not self.it.most:
            raise EnoughError


def recorded(
    layout: LayoutName = "tcss",
    seed: int = 0,
    num_iterations: int = 3,
    most: int = 10**9,
    most_events: int = 10**9,
    **options: Any,
) -> Recorded:
    """Return a recorder of a controller that ran so many iterations, or events."""
    workload = make_workload(num_groups=3)
    share = 0.5 if layout == "tcss" else 0.0
    schedule = Schedule(LAYOUTS[layout], max_stale_share=share, copies_state=True)
    devices = make_devices(layout, 3, 2)
    it = Recorded(Controller(devices, workload, schedule, make_costs(0.3)), most, most_events)
    cluster = RecordedCluster(
        it, workload, schedule, devices, random=Random(seed), skipped={(1, 0), (1, 1)}, refill=1
    )
    with suppress(EnoughError):
        cluster.run(num_iterations, **{"pause_odds": 0.1, "losses": 2, "joins": True, **options})
    return it
