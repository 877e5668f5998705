"""Stories: what is done to a run once something has happened, and what it said."""

import os
import signal
from collections.abc import Callable
from typing import Any

from support.runs import Watch


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


def signal_to(*names: str, number: int = signal.SIGKILL) -> Callable[[Story], None]:
    def send(story: Story) -> None:
        for pid in [story.pid_of(name) for name in names]:
            os.kill(pid, number)

    return send
