"""What ``digen explain`` prints: what a run waits for, or the story of something in it."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from deployments.operation.asking import ask_run
from deployments.views.terminal import borderless, plain, terminal
from digen_core.control.protocol import Instruction
from digen_core.errors import UserError
from digen_core.eventlog.entries import Log
from digen_core.eventlog.file import read_log
from digen_core.eventlog.replay import Replayed, replay
from digen_core.eventlog.story import Line, devices_in, story_of
from digen_core.eventlog.topics import parse_topic
from digen_core.eventlog.under_way import after
from digen_core.eventlog.waiting import DeviceNow, Now, waiting
from digen_core.eventlog.words import event_text, instruction_text

WIDTH = 1000  # nothing is cut


def print_now(run_dir: Path, *, as_json: bool) -> None:
    """Print what a run waits for, and whether its log replays.

    Raises:
        UserError: there is no log, or it is damaged.
    """
    log, old = _read(run_dir)
    replayed = replay(log)
    now = waiting(replayed.end, list(after(log.segments[-1])))
    if as_json:
        _print_json(log, old, {"replay": replay_text(replayed), **asdict(now)})
        return
    console = terminal(WIDTH)
    console.print(plain(_head(log, old)))
    console.print(plain(replay_text(replayed)))
    _print_devices(console, now, log.written)
    for doing in now.elsewhere:
        console.print(plain(f"in the flow process: {doing.text}, since {_clock(doing.since)}"))
    for iteration in now.iterations:
        console.print(f"\niteration {iteration.number} still needs")
        for lack in iteration.lacks:
            console.print(plain(f"  {lack}"))


def print_story(run_dir: Path, what: Sequence[str], *, as_json: bool) -> None:
    """Print each event and instruction that concerns something.

    Raises:
        UserError: there is no log, or it is damaged, or knows nothing of that.
    """
    log, old = _read(run_dir)
    lines = story_of(log, parse_topic(what, devices_in(log)))
    if not lines:
        begins = _clock(log.segments[0].mark.time)
        raise UserError(
            f"the log of {run_dir}, which begins at {begins}, tells nothing of {' '.join(what)}"
        )
    if as_json:
        _print_json(log, old, {"story": [asdict(line) for line in lines]})
        return
    console = terminal(WIDTH)
    console.print(plain(_head(log, old)))
    table = _table("time", "device", "", "after")
    for line in lines:
        table.add_row(*map(plain, _cells(line)))
    console.print(table)


def replay_text(replayed: Replayed) -> str:
    """Return how a replay went, in a sentence."""
    found, number = replayed.difference, replayed.num_events
    if found is None:
        return f"replayed: a new controller says the same to all {number} events"
    if found.handled is None:
        return f"the replay differs: not what was said, but the state after {number} events"
    said = found.said if isinstance(found.said, str) else "; ".join(map(_order, found.said))
    recorded = found.handled.error or "; ".join(map(_order, found.handled.instructions))
    return (
        f"the replay differs at event {number + 1}, {_clock(found.handled.time)}: to "
        f"{event_text(found.handled.event)!r} the run's controller said {recorded or 'nothing'}, a "
        f"new one {said or 'nothing'}"
    )


def _order(do: Instruction) -> str:
    device = getattr(do, "device", None)
    return instruction_text(do) + (f" on {device}" if device else "")


def _read(run_dir: Path) -> tuple[Log, str]:
    """Return the newest log of a run, and why it may be old."""
    old = ask_run(run_dir)
    try:
        return read_log(run_dir), old
    except UserError as error:
        raise UserError(f"{error}; {old}" if old else str(error)) from error


def _head(log: Log, old: str) -> str:
    written = datetime.fromtimestamp(log.written)
    head = f"{log.run} at {written:%Y-%m-%d %H:%M:%S}: {log.why}"
    return f"{head}\n{old}" if old else head


def _print_devices(console: Console, now: Now, written: float) -> None:
    table = _table("device", "ready for", "holds", "was asked to", "since")
    for device in now.devices:
        holds = " ".join(f"v{version}" for version in device.versions) or "nothing"
        first, *others = _does(device, written)
        table.add_row(*map(plain, (device.name, device.mode, holds, *first)))
        for other in others:
            table.add_row("", "", "", *map(plain, other))
    console.print(table)


def _does(device: DeviceNow, written: float) -> list[tuple[str, str]]:
    if device.why_idle:
        return [(f"nothing: {device.why_idle}", "")]
    return [
        (doing.text, f"{_clock(doing.since)}, {written - doing.since:.0f} s")
        for doing in device.doing
    ]


def _cells(line: Line) -> tuple[str, str, str, str]:
    text = line.text if line.is_event else f"-> {line.text}"
    after_seconds = "" if line.seconds is None else f"{line.seconds:.3f} s"
    return _clock(line.time, exact=True), line.device, text, after_seconds


def _clock(time: float, *, exact: bool = False) -> str:
    """Return the time of day here."""
    moment = datetime.fromtimestamp(time)
    return f"{moment:%H:%M:%S}" + (f".{moment.microsecond // 1000:03d}" if exact else "")


def _print_json(log: Log, old: str, content: dict[str, object]) -> None:
    head = {"run": log.run, "written": log.written, "why": log.why, "old": old}
    sys.stdout.write(json.dumps({**head, **content}, indent=2) + "\n")


def _table(*columns: str) -> Table:
    table = borderless()
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table
