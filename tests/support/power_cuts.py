"""What a power cut leaves of a folder, by what POSIX promises and no more.

A file has the content of its last sync; of what was written since, some, none, or zeros. A folder
has the names of its last sync; of the changes since, any. A change that renames is one: journals
keep it whole. That a file is synced says nothing of its name, nor a folder of its own.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import Random
from typing import Literal

from support.disk_recorder import Entry, Step

Survives = Literal["what is synced", "and all names", "some of the rest", "all"]
"""What survives a cut: nothing that is not synced; also all names, but no content; a part that dice
choose; all, as when only the processes are killed."""

SURVIVES: tuple[Survives, ...] = ("what is synced", "and all names", "all", "some of the rest")


@dataclass
class File:
    """A file: hashes of its content now, and at its last sync."""

    content: str
    durable: str | None = None

    def synced(self) -> None:
        """Take note of a sync."""
        self.durable = self.content

    def left(self, survives: Survives, dice: Random, contents: Path) -> bytes:
        """Return what is left of its content."""
        now = (contents / self.content).read_bytes()
        if survives == "all" or self.content == self.durable:
            return now
        kept = (contents / self.durable).read_bytes() if self.durable else b""
        is_longer = now.startswith(kept)
        if survives != "some of the rest":
            return kept if is_longer else b""
        length = dice.randint(len(kept) if is_longer else 0, len(now))
        torn = now[:length]
        return dice.choice([kept, torn, torn + bytes(len(now) - length), now])


@dataclass
class Folder:
    """A folder: its names now, those at its last sync, and the changes since."""

    names: dict[str, int] = field(default_factory=dict)
    durable: dict[str, int] = field(default_factory=dict)
    changes: list[dict[str, int | None]] = field(default_factory=list)

    def becomes(self, names: dict[str, int]) -> None:
        """Take note of what is in it now."""
        changed = {
            n: names.get(n) for n in (*self.names, *names) if names.get(n) != self.names.get(n)
        }
        renamed = {self.names[n] for n in changed if n in self.names}.intersection(names.values())
        for one in renamed:
            own = [n for n in changed if one in (self.names.get(n), changed[n])]
            self.changes.append({n: changed.pop(n) for n in own})
        self.changes += [{name: one} for name, one in changed.items()]
        self.names = names

    def synced(self) -> None:
        """Take note of a sync."""
        self.durable, self.changes = self.names, []

    def left(self, survives: Survives, dice: Random) -> dict[str, int]:
        """Return what is left of its names."""
        if survives in ("and all names", "all"):
            return self.names
        left = dict(self.durable)
        odds = dice.choice([0.2, 0.5, 0.9]) if survives == "some of the rest" else 0.0
        for change in self.changes:
            if dice.random() < odds:
                left.update(change)  # type: ignore[arg-type]
        return {name: one for name, one in left.items() if one is not None}


class Disk:
    """The state of a recorded folder after some of the steps."""

    def __init__(self, contents: Path) -> None:
        self.promised: int | None = None
        self.database: str | None = None
        self._contents = contents
        self._things: list[File | Folder] = []  # the first is the folder itself
        self._numbers: dict[str, int] = {}  # of things that are there, by name

    def after(self, step: Step) -> "Disk":
        """Take a step, and return the disk."""
        if step.synced in self._numbers:
            self._things[self._numbers[step.synced]].synced()
        self._see(step.tree)
        self.promised = self.promised if step.promised is None else step.promised
        self.database = step.database or self.database
        return self

    def _see(self, tree: dict[str, Entry]) -> None:
        """Take note of a new tree."""
        before, self._numbers = self._numbers, {}
        inside: dict[str, dict[str, int]] = {}
        for path, (thing, content) in tree.items():
            number = self._numbers.get(thing, before.get(thing))
            if number is None:  # what comes again after it was gone is another thing
                number = len(self._things)
                self._things.append(Folder() if content is None else File(content))
            self._numbers[thing] = number
            parent, _, name = path.rpartition("/")
            if path:
                inside[parent][name] = number
            if content is None:
                inside[path] = {}
            else:
                self._file(number).content = content
        for path, names in inside.items():
            self._folder(self._numbers[tree[path][0]]).becomes(names)

    def _file(self, number: int) -> File:
        thing = self._things[number]
        assert isinstance(thing, File)
        return thing

    def _folder(self, number: int) -> Folder:
        thing = self._things[number]
        assert isinstance(thing, Folder)
        return thing

    def cut(self, folder: Path, survives: Survives, dice: Random) -> None:
        """Write what a power cut now leaves into a folder."""
        for path, content in self._left(0, survives, dice):
            if content is None:
                (folder / path).mkdir(parents=True)
            else:
                (folder / path).write_bytes(content)

    def _left(
        self, number: int, survives: Survives, dice: Random
    ) -> Iterator[tuple[str, bytes | None]]:
        for name, own in self._folder(number).left(survives, dice).items():
            thing = self._things[own]
            if isinstance(thing, File):
                yield name, thing.left(survives, dice, self._contents)
            else:
                yield name, None
                for path, content in self._left(own, survives, dice):
                    yield f"{name}/{path}", content


def disks(steps: Iterable[Step], contents: Path, at: Iterable[int]) -> Iterator[Disk]:
    """Yield the disk after each of some steps, in order; it is good until the next."""
    disk, wanted = Disk(contents), set(at)
    for number, step in enumerate(islice(steps, max(wanted) + 1)):
        disk.after(step)
        if number in wanted:
            yield disk
