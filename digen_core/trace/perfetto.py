"""A trace that https://ui.perfetto.dev and chrome://tracing open.

Source: Trace Event Format, "JSON Object Format". One process per device; its threads are the kinds
of span, and "idle" with the cause of each gap. Events of one thread may nest but not cross, so a
span that overlaps another of its kind goes to a further thread of that kind.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from digen_core.control.protocol import Device
from digen_core.records import Span
from digen_core.trace.gaps import Gap
from digen_core.trace.kinds import SPAN_KINDS

TRACKS: Final = (*SPAN_KINDS, "idle")
"""Threads of a device, from the top."""
_TRACK_STRIDE: Final = 100  # numbers of the further threads of a kind
_ARGUMENTS: Final = (
    *("iteration", "group", "fragment", "first_step", "end_step"),
    *("version", "num_items", "num_bytes"),
)


def chrome_trace(
    spans: Sequence[Span], devices: Sequence[Device], gaps: Iterable[Gap] = ()
) -> dict[str, Any]:
    """Return the trace as an object for ``json.dump``.

    Args:
        spans: at least one; the first start is time 0.
        devices: in the order they are shown. Devices that only spans name come after them.
        gaps: idle gaps to show as well.
    """
    start = min(span.started for span in spans)
    names = [device.name for device in devices]
    names += sorted({span.device for span in spans} - set(names))
    pids = {name: number for number, name in enumerate(names, 1)}
    roles = {device.name: " ".join(sorted(device.roles)) for device in devices}
    tracks = _Tracks()
    events = []
    for span in sorted(spans, key=lambda span: span.started):
        arguments = {name: getattr(span, name) for name in _ARGUMENTS if getattr(span, name) >= 0}
        arguments["queued_seconds"] = span.started - span.queued
        if span.cost != 1:
            arguments["cost"] = span.cost
        if span.compile_seconds:
            arguments["compile_seconds"] = span.compile_seconds
        if span.beside:
            arguments["beside"] = [f"g{group} f{part}" for group, part in span.beside]
        tid = tracks.place(pids[span.device], span.kind, span.started, span.ended)
        event = _slice(span.task, span.kind, span.started - start, span.ended - start)
        events.append(event | {"pid": pids[span.device], "tid": tid, "args": arguments})
    for gap in gaps:
        tid = tracks.place(pids[gap.device], "idle", gap.started, gap.ended)
        event = _slice(gap.cause, "idle", gap.started - start, gap.ended - start)
        events.append(event | {"pid": pids[gap.device], "tid": tid, "args": {}})
    for name, pid in pids.items():
        events.append(_metadata("process_name", pid, 0, name=name))
        events.append(_metadata("process_labels", pid, 0, labels=roles.get(name, "")))
        events.append(_metadata("process_sort_index", pid, 0, sort_index=pid))
    return {"displayTimeUnit": "ms", "traceEvents": events + tracks.metadata()}


class _Tracks:
    """Threads of all processes, and until when each is taken."""

    def __init__(self) -> None:
        self._taken: dict[tuple[int, int], float] = {}

    def place(self, pid: int, kind: str, started: float, ended: float) -> int:
        """Return the first thread of a kind that is free, and take it."""
        tid = 1 + TRACKS.index(kind) * _TRACK_STRIDE
        while self._taken.get((pid, tid), started) > started:
            tid += 1
        self._taken[pid, tid] = ended
        return tid

    def metadata(self) -> list[dict[str, Any]]:
        """Return the names and the order of the threads."""
        events = []
        for pid, tid in sorted(self._taken):
            kind, further = divmod(tid - 1, _TRACK_STRIDE)
            name = TRACKS[kind] + (f" {further + 1}" if further else "")
            events.append(_metadata("thread_name", pid, tid, name=name))
            events.append(_metadata("thread_sort_index", pid, tid, sort_index=tid))
        return events


def _slice(name: str, category: str, started: float, ended: float) -> dict[str, Any]:
    """Return an event with a duration; the format counts microseconds."""
    first, last = round(started * 1e9), round(ended * 1e9)  # so that neighbours do not cross
    microseconds = {"ts": first / 1000, "dur": (last - first) / 1000}
    return {"name": name, "cat": category, "ph": "X", **microseconds}


def _metadata(event: str, pid: int, tid: int, /, **arguments: Any) -> dict[str, Any]:
    return {"name": event, "ph": "M", "pid": pid, "tid": tid, "args": arguments}
