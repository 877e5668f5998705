"""The picture of a window of time: one lane per device, work coloured by kind, gaps by cause."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from digen_core.control.protocol import Device
from digen_core.inputs.text import short
from digen_core.records import Span
from digen_core.trace.gaps import Gap
from digen_core.trace.kinds import READYING
from digen_core.trace.style import IDLE_STYLES, KIND_COLOURS
from digen_core.trace.windows import Window

WIDTH: Final = 13.0  # inches, as all lengths here
LANES_WIDTH: Final = 10.2
LANE_HEIGHTS: Final = (0.26, 0.5)  # of many and of few devices
MARGIN_HEIGHT: Final = 1.65  # title, axis and legend
FONT_SIZE: Final = 7.0
CHARACTER_WIDTH: Final = 0.062
SAME_STRETCH: Final = 0.02  # of the window: shorter breaks do not split a label
MOSTLY: Final = 0.6  # a stretch with more breaks than this leaves gets no label
BORDERED_WIDTH: Final = 0.05  # a border would hide shorter work
DARK_LABELS: Final = ("encode", "reduce", "copy")  # on bright bars

_Item = TypeVar("_Item")
_Key = TypeVar("_Key")
_Timed = TypeVar("_Timed", Span, Gap)


def draw_timeline(
    spans: Sequence[Span], gaps: Sequence[Gap], devices: Sequence[Device], window: Window, name: str
) -> Figure:
    """Return the timeline of some devices. Bars are labelled where the label fits.

    ``g3`` is group 3, ``v2`` policy version 2; ``i5 g3`` names the iteration too, where the window
    holds work of several. Loads of a version are thin bars at the bottom of a lane, because they
    may run beside other work.

    Args:
        spans: those outside the window or on other devices are not drawn.
        gaps: idle gaps of the devices in the window.
        devices: lanes, from the top.
        window: what is shown; its start is second 0.
        name: of the window, such as "iteration 3".
    """
    lanes = {device.name: number for number, device in enumerate(devices)}
    lane_height = max(LANE_HEIGHTS[0], min(LANE_HEIGHTS[1], 6.0 / len(devices)))
    height = MARGIN_HEIGHT + lane_height * len(devices)
    figure = Figure(figsize=(WIDTH, height), dpi=110)
    left = 1.3 / WIDTH
    size = (LANES_WIDTH / WIDTH, lane_height * len(devices) / height)
    axes = figure.add_axes((left, 1.25 / height, *size))
    canvas = _Canvas(axes, window, lanes)
    shown = [span for span in spans if span.device in lanes and window.overlaps(span)]
    with matplotlib.rc_context({"hatch.linewidth": 0.4}):
        canvas.gaps(gaps)
        canvas.work([span for span in shown if span.kind not in READYING])
        canvas.loads([span for span in shown if span.kind == "push"])
        _finish(axes, devices, window)
        busy = _busy_shares(gaps, devices, window)
        _write_shares(axes, devices, busy)
        mean = sum(busy.values()) / len(busy)
        axes.set_title(f"{name}: {short(window.seconds)} s, devices busy {mean:.0%}", loc="left")
        _add_legend(figure, shown, gaps, height)
    return figure


@dataclass(frozen=True)
class _Canvas:
    axes: Axes
    window: Window
    lanes: dict[str, int]
    labels: dict[str, list[tuple[float, float]]] = field(default_factory=dict)  # from, to

    @property
    def _per_inch(self) -> float:
        """Seconds that an inch of a lane shows."""
        return self.window.seconds / LANES_WIDTH

    def gaps(self, gaps: Sequence[Gap]) -> None:
        """Draw gaps, and label them by their cause once per stretch of the same one."""
        found: list[tuple[Gap, float]] = []
        for (device, cause), own in _by(gaps, lambda gap: (gap.device, gap.cause)).items():
            style = IDLE_STYLES[cause]
            look = {"facecolor": style.colour, "edgecolor": "#A8A8A8", "hatch": style.hatch}
            self._bars(device, own, 0.84, linewidth=0.3, **look)
            found += self._stretches(own)
        # Stretches of two causes may interleave; the longer one keeps the place for its label.
        for first, ended in sorted(found, key=lambda stretch: stretch[0].started - stretch[1]):
            box = ("white", 0.75)
            self._label(first.device, first.started, ended, first.cause, "#333333", box)

    def work(self, spans: Sequence[Span]) -> None:
        """Draw work, and label it once per stretch of the same work."""
        several = len({span.iteration for span in spans}) > 1
        for (device, kind), own in _by(spans, lambda span: (span.device, span.kind)).items():
            self._bars(device, own, 0.84, facecolor=KIND_COLOURS[kind], linewidth=0)
            text_colour = "black" if kind in DARK_LABELS else "white"
            for same in _by(own, lambda span: (span.iteration, span.group, span.fragment)).values():
                for first, ended in self._stretches(same):
                    if ended - first.started > BORDERED_WIDTH * self._per_inch:
                        self._border(device, first.started)
                    text, box = _label_of(first, several), (KIND_COLOURS[kind], 1.0)
                    self._label(device, first.started, ended, text, text_colour, box)

    def loads(self, spans: Sequence[Span]) -> None:
        """Draw loads of versions at the bottom of their lanes."""
        look = {"facecolor": KIND_COLOURS["push"], "edgecolor": "white", "linewidth": 0.5}
        for device, own in _by(spans, lambda span: span.device).items():
            self._bars(device, own, 0.25, **look)

    def _bars(
        self, device: str, parts: Iterable[Span | Gap], thickness: float, **look: Any
    ) -> None:
        clipped = (self._clipped(part.started, part.ended) for part in parts)
        ranges = [(begin, end - begin) for begin, end in clipped]
        lane = self.lanes[device] + 0.42 - thickness
        self.axes.broken_barh(ranges, (lane, thickness), **look)

    def _border(self, device: str, started: float) -> None:
        """Set a stretch of work off from the one before it."""
        lane, second = self.lanes[device], started - self.window.started
        self.axes.vlines(second, lane - 0.42, lane + 0.42, colors="white", linewidth=0.6)

    def _label(
        self,
        device: str,
        started: float,
        ended: float,
        text: str,
        colour: str,
        box: tuple[str, float],
    ) -> None:
        """Write on a bar if the text fits; ``box`` is the colour and opacity behind it."""
        begin, end = self._clipped(started, ended)
        middle, half = (begin + end) / 2, CHARACTER_WIDTH * (len(text) + 1) * self._per_inch / 2
        if not text or end - begin < 2 * half:
            return
        labels = self.labels.setdefault(device, [])
        if any(middle - half < to and middle + half > start for start, to in labels):
            return
        labels.append((middle - half, middle + half))
        self.axes.text(
            middle,
            self.lanes[device],
            text,
            color=colour,
            fontsize=FONT_SIZE,
            ha="center",
            va="center_baseline",
            bbox={"facecolor": box[0], "alpha": box[1], "linewidth": 0, "pad": 0.6},
        )

    def _clipped(self, started: float, ended: float) -> tuple[float, float]:
        """Return where something begins and ends, in seconds of the window."""
        zero = self.window.started
        return max(started, zero) - zero, min(ended, self.window.ended) - zero

    def _stretches(self, parts: Iterable[_Timed]) -> list[tuple[_Timed, float]]:
        """Return the first part and the end of each stretch that parts fill, but for breaks."""
        longest = SAME_STRETCH * self.window.seconds
        stretches: list[list[_Timed]] = []
        ended = float("-inf")
        for part in sorted(parts, key=lambda part: part.started):
            if part.started - ended > longest:
                stretches.append([])
            stretches[-1].append(part)
            ended = max(ended, part.ended)
        found = []
        for own in stretches:
            filled, ended = sum(p.ended - p.started for p in own), max(p.ended for p in own)
            if filled > MOSTLY * (ended - own[0].started):
                found.append((own[0], ended))
        return found


def _by(items: Iterable[_Item], key: Callable[[_Item], _Key]) -> dict[_Key, list[_Item]]:
    groups: dict[_Key, list[_Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def _label_of(span: Span, with_iteration: bool) -> str:
    iteration = f"i{span.iteration + 1} " if with_iteration else ""
    if span.kind in ("step", "copy", "publish"):
        return f"{iteration}v{span.version}" if span.version >= 0 else ""
    return f"{iteration}g{span.group}" if span.group >= 0 else ""


def _busy_shares(
    gaps: Iterable[Gap], devices: Sequence[Device], window: Window
) -> dict[str, float]:
    idle = {device.name: 0.0 for device in devices}
    for gap in gaps:
        idle[gap.device] += gap.seconds
    return {name: 1 - seconds / window.seconds for name, seconds in idle.items()}


def _finish(axes: Axes, devices: Sequence[Device], window: Window) -> None:
    axes.set_xlim(0, window.seconds)
    axes.set_ylim(len(devices) - 0.5, -0.5)
    axes.set_yticks(range(len(devices)), [device.name for device in devices], fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("seconds", fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _write_shares(axes: Axes, devices: Sequence[Device], busy: dict[str, float]) -> None:
    """Write the busy share of each device at the right end of its lane."""
    place = axes.get_yaxis_transform()
    for lane, device in enumerate(devices):
        text = f"{busy[device.name]:.0%} busy"
        axes.text(1.01, lane, text, transform=place, va="center", fontsize=8, color="#444444")


def _add_legend(figure: Figure, spans: Iterable[Span], gaps: Iterable[Gap], height: float) -> None:
    """Explain the colours that occur: work in the first row, idleness in the second."""
    kinds, causes = {span.kind for span in spans}, {gap.cause for gap in gaps}
    work = [Patch(color=colour, label=k) for k, colour in KIND_COLOURS.items() if k in kinds]
    idle = [
        Patch(facecolor=s.colour, edgecolor="#A8A8A8", hatch=s.hatch, label=f"{c}: {s.meaning}")
        for c, s in IDLE_STYLES.items()
        if c in causes
    ]
    look: dict[str, Any] = {"loc": "upper left", "frameon": False, "fontsize": 8}
    rows = ((work, 0.72, 10), (idle, 0.5, 4))
    for patches, bottom, columns in rows:
        place = (1.2 / WIDTH, bottom / height)
        figure.legend(handles=patches, bbox_to_anchor=place, ncols=columns, **look)
