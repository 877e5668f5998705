"""Stories: what is done to a run once something has happened, and what it said."""

import os
import signal
from collections.abc import Callable
from itertools import count
from typing import Any

from distributed import Nanny

from digen_core.control import protocol as p
from support.runs import Watch

WORK = (
    *(p.BatchGenerated, p.FragmentScored, p.PackTrained, p.GradientReduced),
    *(p.Stepped, p.StateCopied, p.VersionLoaded),
)


class Story(Watch):
    """Something that is done to a run once, when something has happened; and what the run said."""

    def __init__(self, when: Callable[[object], bool], do: Callable[["Story"], None]) -> None:
        super().__init__()
        self.when, self.do = when, do
        self.is_done = False
        self.phases: list[str] = []
        self.run_context: Any = None

    def see(self, what: object) -> None:
        if not self.is_done and self.when(what):
            self.is_done = True
            self.do(self)

    def on_phase(self, text: str) -> None:
        self.phases.append(text)
        self.see(text)

    def said(self, *words: str) -> bool:
        return any(all(word in text for word in words) for text in self.warnings + self.phases)

    def pid_of(self, name: str) -> int:
        from tasks.cluster.calls import on_worker

        fleet = self.run_context.fleet
        followers = {name: at for own in fleet.followers.values() for name, at in own.items()}
        address = {**fleet.addresses, **followers}[name]
        pid: int = on_worker(self.run_context.client, address, os.getpid)
        return pid


class Addition(Story):
    """A worker or gang comes; the run is held while it loads the model, however long that takes."""

    def __init__(
        self,
        when: Callable[[object], bool],
        resources: dict[str, int] | None = None,
        num_members: int = 1,
    ) -> None:
        super().__init__(when, self.add)
        self.resources = resources or {"rollout": 1}
        self.num_members = num_members
        self.nannies: list[Nanny] = []  # keeps it alive

    def add(self, story: Story) -> None:
        from tasks.cluster.cluster import worker_process
        from tasks.cluster.spares import MEMBER, MEMBERS

        leading = {MEMBERS: self.num_members} if self.num_members > 1 else {}
        members = {"rollout-9": self.resources | leading}
        members |= {f"rollout-9.{i}": {MEMBER: 1} for i in range(1, self.num_members)}

        async def start() -> None:
            for name, resources in members.items():
                options = worker_process(resources)["options"]
                self.nannies.append(await Nanny(self.run_context.address, name=name, **options))

        self.run_context.client.sync(start)

    def see(self, what: object) -> None:
        super().see(what)
        if self.nannies and "rollout-9" in self.run_context.fleet.joining:
            self.hold(self.run_context.fleet.joining["rollout-9"])

    def hold(self, newcomer: Any) -> None:
        newcomer.thread.join(200)
        assert not newcomer.thread.is_alive(), "the worker was not made ready"


def signal_to(*names: str, number: int = signal.SIGKILL) -> Callable[[Story], None]:
    def send(story: Story) -> None:
        for pid in [story.pid_of(name) for name in names]:
            os.kill(pid, number)

    return send


def nth_of_work(place: int) -> Callable[[object], bool]:
    """Return what is true at an event of a run's work, as they are counted."""
    counter = count(1)
    return lambda what: isinstance(what, WORK) and next(counter) == place
