"""The story of one thing: each event and instruction of a log that concerns it."""

from dataclasses import dataclass, replace

from digen_core.control.protocol import DevicesLost
from digen_core.eventlog.entries import Asked, Handled, Log
from digen_core.eventlog.topics import Topic, topics_of
from digen_core.eventlog.under_way import UnderWay
from digen_core.eventlog.words import event_text, instruction_text


@dataclass(frozen=True, slots=True)
class Line:
    """Something that happened, or that was asked for."""

    time: float  # seconds since the epoch
    device: str  # empty: none, or several
    text: str
    is_event: bool
    seconds: float | None = None  # since it was asked for


def story_of(log: Log, asked: Topic) -> list[Line]:
    """Return what a log tells of something, the first first."""
    lines: list[Line] = []
    for one in log.segments[0].mark.under_way:
        lines += _ordered(one, asked)
    under_way = UnderWay(log.segments[0].mark)
    for segment in log.segments:
        for handled in segment.handled:
            lines += _happened(handled, under_way.take(handled), asked)
            for do in handled.instructions:
                lines += _ordered(Asked(handled.time, do), asked)
    return lines


def devices_in(log: Log) -> set[str]:
    """Return the devices that a log tells of."""
    devices = {
        state.name for segment in log.segments for state in segment.mark.snapshot.fleet.devices
    }
    words = (handled.event for segment in log.segments for handled in segment.handled)
    return devices | {
        topic.device for word in words for topic in topics_of(word) if topic.device is not None
    }


def _happened(handled: Handled, ended: list[Asked], asked: Topic) -> list[Line]:
    """Return an event if it concerns something, or what it took of that with lost devices."""
    text = event_text(handled.event)
    if isinstance(handled.event, DevicesLost):
        lost = [
            replace(line, time=handled.time, text=f"{text}, which was to {line.text}")
            for one in ended
            for line in _ordered(one, asked)
        ]
        is_own = any(topic.concerns(asked) for topic in topics_of(handled.event))
        return lost or [Line(handled.time, asked.device or "", text, is_event=True)] * is_own
    by = {topic.device for one in ended[:1] for topic in topics_of(one.instruction)} or {None}
    own = [replace(t, device=t.device or name) for t in topics_of(handled.event) for name in by]
    if not any(topic.concerns(asked) for topic in own):
        return []
    if handled.error:
        text += f"; the controller failed: {handled.error}"
    seconds = handled.time - ended[0].time if ended else None
    device = getattr(ended[0].instruction, "device", "") if ended else own[0].device or ""
    return [Line(handled.time, device, text, is_event=True, seconds=seconds)]


def _ordered(one: Asked, asked: Topic) -> list[Line]:
    """Return an instruction if it concerns something."""
    do = one.instruction
    if not any(topic.concerns(asked) for topic in topics_of(do)):
        return []
    return [Line(one.time, getattr(do, "device", ""), instruction_text(do), is_event=False)]
