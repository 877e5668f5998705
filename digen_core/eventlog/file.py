"""The file of an event log in a run's folder: a line of JSON for the head, each mark and entry."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Annotated, Final

from pydantic import ConfigDict, TypeAdapter, ValidationError

from digen_core.control.controller import Controller
from digen_core.control.snapshot import Snapshot
from digen_core.errors import UserError
from digen_core.eventlog.entries import Handled, Log, Mark, Segment, Time
from digen_core.eventlog.tagged import Tagged
from digen_core.inputs.reading import read_bytes, reason_of, shown
from digen_core.transport.files import inside, written_whole

EVENTS_OF_RUN: Final = "events.jsonl"
REQUEST_OF_RUN: Final = ".explain"
"""Is there while somebody asks a run for its log."""

MOST_BYTES: Final = 1 << 30
MOST_THINGS: Final = 1_000_000
"""Of a kind in an iteration: somebody else's file must not fill the memory."""

FORMAT: Final = 6


@dataclass(frozen=True, slots=True)
class Head:
    """What the file is; see :class:`Log`."""

    format: int
    run: str
    written: Time
    why: str


Line = Head | Mark | Handled
_LINE: TypeAdapter[Line] = TypeAdapter(
    Annotated[Line, Tagged()], config=ConfigDict(ser_json_inf_nan="constants")
)


def write_log(run_dir: Path, log: Log) -> Path:
    """Write a log into a run's folder, in place of the one before, and return its path."""
    path = inside(run_dir, EVENTS_OF_RUN)
    with written_whole(path) as unfinished, unfinished.open("wb") as file:
        head = Head(FORMAT, log.run, log.written, log.why)
        lines: list[Line] = [head]
        for segment in log.segments:
            lines += [segment.mark, *segment.handled]
        file.writelines(_LINE.dump_json(line) + b"\n" for line in lines)
    return path


def ask(run_dir: Path) -> Path:
    """Ask the process that trains a run for its log; the file that is returned goes when it did.

    Raises:
        OSError: one may not write there.
    """
    path = inside(run_dir, REQUEST_OF_RUN)
    path.touch()
    return path


@contextmanager
def answering(run_dir: Path) -> Iterator[bool]:
    """Yield whether somebody asks for a run's log; that one is answered when the body ends."""
    path = run_dir / REQUEST_OF_RUN
    is_asked = path.exists()
    yield is_asked
    if is_asked:
        path.unlink(missing_ok=True)


def read_log(run_dir: Path) -> Log:
    """Return the log in a run's folder.

    Raises:
        UserError: there is none, or it is damaged, or of another version of digen.
    """
    path = inside(run_dir, EVENTS_OF_RUN)
    if not path.exists():
        raise UserError(
            f"{run_dir} has no {EVENTS_OF_RUN}: a run writes it when it is asked while it trains, "
            "stands still, fails, is stopped, or ends"
        )
    head, *lines = _lines(path, read_bytes(path, "the event log", MOST_BYTES))
    if not isinstance(head, Head) or head.format != FORMAT:
        raise UserError(f"{path} is no event log of this version of digen: {shown(head)}")
    segments: list[Segment] = []
    for number, line in enumerate(lines, 2):
        if isinstance(line, Mark):
            segments.append(Segment(line, []))
        elif isinstance(line, Handled) and segments:
            segments[-1].handled.append(line)
        else:
            raise UserError(f"{path} is damaged: line {number} is out of place")
    _require_start(path, segments)
    return Log(head.run, head.written, head.why, tuple(segments))


def _lines(path: Path, content: bytes) -> list[Line]:
    lines: list[Line] = []
    for number, text in enumerate(content.splitlines(), 1):
        try:
            lines.append(_LINE.validate_json(text))
        except ValidationError as error:
            why = reason_of(error)
            raise UserError(f"{path} is damaged: line {number}: {why}") from error
    if not lines:
        raise UserError(f"{path} is damaged: it is empty")
    return lines


def _sizes(snapshot: Snapshot) -> Iterator[int]:
    """Yield the numbers of things that a controller counts up to."""
    yield from (int(size) for size in astuple(snapshot.workload) if isinstance(size, int))
    yield len(snapshot.workload.group_costs)
    yield len(snapshot.workload.group_steps)
    yield snapshot.workload.num_fragments
    yield snapshot.schedule.queue_depth


def _require_start(path: Path, segments: list[Segment]) -> None:
    """Check that a controller can be restored from the first mark."""
    if not segments:
        raise UserError(f"{path} is damaged: it has no mark to begin from")
    first = segments[0].mark.snapshot
    try:
        if max(_sizes(first)) > MOST_THINGS:
            raise ValueError("its workload is larger than any")
        Controller.restored(first)
    except Exception as error:  # whatever is wrong in it
        why = f"{type(error).__name__}: {error}"
        raise UserError(f"{path} is damaged: nothing begins from its first mark: {why}") from error
