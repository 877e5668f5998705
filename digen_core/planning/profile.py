"""The profile of a run: costs of its work, learnt from its spans while it runs.

For each kind of device and each operation a line, seconds = fixed + n per_item, by least squares in
which older iterations weigh less and less. A span counts from when its device was free for it and
it was asked for, so what orchestration adds is a part of the cost.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from pydantic import ValidationError

from digen_core.control.costs import Costs, DeviceCosts, Linear, Link, Sent
from digen_core.control.protocol import Device
from digen_core.errors import UserError
from digen_core.inputs.reading import JSON_BYTES, UnreadableError, read_bytes, reason_of
from digen_core.records import GENERATING, Crossing, Span
from digen_core.sim.links import busy_periods
from digen_core.strict import Strict
from digen_core.transport.files import replace_text

PROFILE_OF_RUN = "profile.json"  # in the folder of a run
DECAY = 0.6  # of the weight of what was seen, from one iteration to the next
FORGOTTEN = 1e-100  # weight of what costs are not learnt anew from: much smaller ones are rounded
MIN_SPREAD = 0.01  # variance of n over its mean squared, else both parts cannot be told apart

OPERATIONS = {"denoise": "step", "samples": "step", "score": "decode", "train": "pack"}
"""Kind of span -> operation in ``DeviceCosts``."""

Key = TypeVar("Key")


@dataclass(slots=True)
class LineFit:
    """Sums of a weighted least-squares fit of seconds over items."""

    weight: float = 0.0
    n: float = 0.0
    n2: float = 0.0
    seconds: float = 0.0
    n_seconds: float = 0.0

    def add(self, num_items: float, seconds: float, weight: float = 1.0) -> None:
        """Take an observation in."""
        self.weight += weight
        self.n += weight * num_items
        self.n2 += weight * num_items**2
        self.seconds += weight * seconds
        self.n_seconds += weight * num_items * seconds

    def fade(self) -> None:
        """Let what was seen weigh less than what comes."""
        self.weight *= DECAY
        self.n *= DECAY
        self.n2 *= DECAY
        self.seconds *= DECAY
        self.n_seconds *= DECAY

    def line(self, present: Linear) -> Linear:
        """Return the line, with no negative part.

        Args:
            present: scaled to what was seen, if that is nothing or of one size only.
        """
        if not self.weight:
            return present
        n, seconds = self.n / self.weight, self.seconds / self.weight
        variance = self.n2 / self.weight - n**2
        if variance < MIN_SPREAD * n**2:
            # of the mean, which is no whole number of items, not even where all were so many
            known = present.fixed + n / present.shares * present.per_item
            return present.times(seconds / known) if known else Linear(per_item=seconds / n)
        slope = (self.n_seconds / self.weight - n * seconds) / variance
        if slope <= 0:
            return Linear(fixed=seconds)
        if seconds < slope * n:
            return Linear(per_item=self.n_seconds / self.n2)
        return Linear(fixed=seconds - slope * n, per_item=slope)


class Measured(Strict):
    """What one device was seen to need; null is unknown."""

    step: Linear | None = None
    decode: Linear | None = None
    pack: Linear | None = None

    def of_mean_size(self, cost: float) -> "Measured":
        """Return it for samples of the mean size, if those measured cost so many of them."""
        return Measured(
            **{
                name: line and line.model_copy(update={"per_item": line.per_item / cost})
                for name, line in self
            }
        )


def costs_of(measured: Mapping[Device, Measured]) -> Costs:
    """Return the mean costs of each kind of device; what is unknown of one is as of all."""
    kinds = {device.kind for device in measured}
    return Costs(
        kinds={
            kind: DeviceCosts(
                **{operation: _mean(measured, operation, kind) for operation in OPERATIONS.values()}
            )
            for kind in sorted(kinds)
        }
    )


def _mean(measured: Mapping[Device, Measured], operation: str, kind: str) -> Linear:
    known = [(d.kind, line) for d, m in measured.items() if (line := getattr(m, operation))]
    own = [line for k, line in known if k == kind] or [line for _, line in known]
    if not own:
        return Linear()
    return Linear(
        fixed=fmean(line.fixed for line in own), per_item=fmean(line.per_item for line in own)
    )


def with_kinds(costs: Costs, devices: Iterable[Device]) -> Costs:
    """Return costs in which each device's kind has its own; an unknown one's are the first's."""
    first = next(iter(costs.kinds.values()), DeviceCosts(step=Linear(), pack=Linear()))
    kinds = {device.kind: costs.kinds.get(device.kind, first) for device in devices}
    return costs.model_copy(update={"kinds": kinds})


@dataclass
class Profile:
    """The costs of a run, and what they are learnt from."""

    costs: Costs
    devices: Sequence[Device]
    _lines: dict[tuple[str, str], LineFit] = field(default_factory=dict)  # (kind, operation) ->
    _scalars: dict[str, LineFit] = field(default_factory=dict)  # optimizer_step, push
    _links: dict[frozenset[str], LineFit] = field(default_factory=dict)  # by sites; of bytes
    _pools: dict[str, LineFit] = field(default_factory=dict)  # of workers that only score
    _pool_workers: dict[str, int] = field(default_factory=dict)  # that scored lately
    _version_bytes: LineFit = field(default_factory=LineFit)  # that crossed a link

    def add(self, device: Device, measured: Mapping[Device, Measured]) -> Costs:
        """Take in a device that joined; return the costs, in which its kind is now known.

        Args:
            device: of any kind.
            measured: what it was seen to need, if its kind was not known.
        """
        self.devices = [*self.devices, device]
        if device.kind not in self.costs.kinds:
            own = costs_of(measured) if measured else self.costs
            kinds = {**self.costs.kinds, **with_kinds(own, [device]).kinds}
            self.costs = self.costs.model_copy(update={"kinds": kinds})
        return self.costs

    def learn(self, spans: Sequence[Span], crossings: Sequence[Crossing] = ()) -> Costs:
        """Take in the spans of an iteration, and what crossed links; return the costs."""
        fits = (self._lines, self._scalars, self._links, self._pools)
        for fit in (self._version_bytes, *chain.from_iterable(own.values() for own in fits)):
            fit.fade()
        for own in fits:
            _forget(own)
        for busy in busy_periods(crossings):
            _see(self._links, busy.sites, busy.num_bytes, busy.ended - busy.started)
        learnt = {"links": self._learnt_links(), "sent": self._learnt_sent(crossings)}
        self.costs = self.costs.model_copy(update=learnt)
        kinds = {device.name: device.kind for device in self.devices}
        for span, operation, seconds in _observed(spans):
            if span.device in kinds:
                key = kinds[span.device], operation
                _see(self._lines, key, span.num_items * span.cost, seconds)
        self._see_pools([span for span in spans if span.device not in kinds])
        for name, seconds in _updates(spans, self._crossing):
            _see(self._scalars, name, 1, seconds)
        self.costs = self._learnt()
        return self.costs

    def save(self, run_dir: Path) -> None:
        """Keep the costs in the folder of the run, for later runs to begin with."""
        replace_text(run_dir / PROFILE_OF_RUN, self.costs.model_dump_json(indent=2))

    def _see_pools(self, spans: Iterable[Span]) -> None:
        """Take in what workers that only score needed; the last word of a task names their pool.

        From when they began: before, they wait for the samples.
        """
        workers: dict[str, set[str]] = {}
        for span in spans:
            if span.kind == "score" and span.num_items > 0:
                pool = span.task.split()[-1]
                workers.setdefault(pool, set()).add(span.device)
                _see(self._pools, pool, span.num_items, span.ended - span.started)
        self._pool_workers |= {pool: len(own) for pool, own in workers.items()}

    def _learnt_rewards(self) -> dict[str, float | int]:
        """Return what a sample takes in the pool that is waited for, and by how many at a time."""
        seconds = {pool: fit.seconds / fit.n for pool, fit in self._pools.items()}
        if not seconds:
            return {}
        pool = max(seconds, key=lambda own: seconds[own] / self._pool_workers[own])
        return {"reward": seconds[pool], "reward_servers": self._pool_workers[pool]}

    def _learnt_links(self) -> tuple[Link, ...]:
        """Return the links that were used as they are now, and the others as they were."""
        found = {link.sites: link for link in self.costs.links}
        for sites, fit in self._links.items():
            line = fit.line(Linear())
            if line.per_item:
                first, second = sorted(sites)
                found[sites] = Link(
                    between=(first, second), bytes_per_second=1 / line.per_item, latency=line.fixed
                )
        return tuple(found.values())

    def _learnt_sent(self, crossings: Iterable[Crossing]) -> Sent:
        """Return what is sent, with the bytes of versions that crossed a link: often deltas.

        A version crosses a link once, though it may come from several members of a gang.
        """
        found = Counter[tuple[int, frozenset[str]]]()
        for own in crossings:
            if own.version is not None:
                found[own.version, own.sites] += round(own.num_bytes)
        for num_bytes in found.values():
            self._version_bytes.add(num_bytes, 0.0)
        if not self._version_bytes.weight:
            return self.costs.sent
        mean = self._version_bytes.n / self._version_bytes.weight
        return self.costs.sent.model_copy(update={"delta": mean})

    def _crossing(self, source: str, device: str) -> float:
        """Return the seconds that a version takes from a device to another one's site."""
        sites = {own.site for own in self.devices if own.name in (source, device)}
        return self.costs.crossing(sites)

    def _learnt(self) -> Costs:
        kinds = dict(self.costs.kinds)
        for (kind, operation), fit in self._lines.items():
            own = kinds.get(kind) or DeviceCosts(step=Linear(), pack=Linear())
            kinds[kind] = own.model_copy(update={operation: fit.line(getattr(own, operation))})
        scalars = {name: fit.seconds / fit.weight for name, fit in self._scalars.items()}
        learnt = {"kinds": kinds, **scalars, **self._learnt_rewards()}
        return self.costs.model_copy(update=learnt)


def _see(fits: dict[Key, LineFit], key: Key, num_items: float, seconds: float) -> None:
    """Take an observation in, unless it took less than no time: a clock was set back meanwhile."""
    if seconds >= 0:
        fits.setdefault(key, LineFit()).add(num_items, seconds)


def _forget(fits: dict[Any, LineFit]) -> None:
    """Leave out what was seen too long ago: what it told stays in the costs as it is."""
    for key in [key for key, fit in fits.items() if fit.weight < FORGOTTEN]:
        del fits[key]


def load_profile(path: str | Path) -> Costs:
    """Read the costs that a run kept.

    Raises:
        UserError: there is no such file, or it holds no costs.
    """
    try:
        return Costs.model_validate_json(read_bytes(Path(path), "the profile", JSON_BYTES))
    except UnreadableError as error:
        raise UserError(f"{error}; give the {PROFILE_OF_RUN} of a run") from error
    except ValidationError as error:
        raise UserError(f"{path} is no profile of a run: {reason_of(error)}") from error


def _observed(spans: Sequence[Span]) -> Iterator[tuple[Span, str, float]]:
    """Yield spans with their operation and seconds: of a step, not of a task of several.

    What torch.compile took part of is left out, as it is not taken again, and so are packs that did
    not fit into memory: they have no items.
    """
    encoding: dict[tuple[str, int], float] = {}  # (device, group) -> seconds
    for span, seconds in _occupied(spans):
        if span.kind == "encode":
            encoding[span.device, span.group] = seconds
        if span.kind not in OPERATIONS or span.compile_seconds or not span.num_items:
            continue
        if span.kind in GENERATING:
            seconds /= span.end_step - span.first_step
        if span.kind == "score":
            seconds += encoding.pop((span.device, span.group), 0.0)
        yield span, OPERATIONS[span.kind], seconds


def _occupied(spans: Iterable[Span]) -> Iterator[tuple[Span, float]]:
    """Yield spans with the seconds from when their device was free for them until they ended."""
    free: dict[str, float] = {}
    for span in sorted(spans, key=lambda span: span.started):
        free_since = max(span.queued, free.get(span.device, span.queued))
        yield span, span.ended - min(span.started, free_since)
        free[span.device] = max(span.ended, free.get(span.device, span.ended))


def _updates(
    spans: Sequence[Span], crossing: Callable[[str, str], float]
) -> Iterator[tuple[str, float]]:
    """Yield the seconds from the last pack to the optimizer step's end, and on to each push's.

    What ``crossing`` says of a push from a device to another one is its link's part. A push that
    was made again is left out: what failed before is in its seconds, too.
    """
    stepped = {span.version: span for span in spans if span.kind == "step"}
    trained: dict[int, float] = {}  # iteration -> when its last pack was
    for span in spans:
        if span.kind == "train":
            trained[span.iteration] = max(span.ended, trained.get(span.iteration, span.ended))
    for span in spans:
        if span.kind == "step":
            yield "optimizer_step", span.ended - trained.get(span.iteration, span.started)
    pushes = [span for span in spans if span.kind == "push" and span.version in stepped]
    tries = Counter((span.device, span.version) for span in pushes)
    for span in pushes:
        if tries[span.device, span.version] == 1:
            made = stepped[span.version]
            yield "push", max(0.0, span.ended - made.ended - crossing(made.device, span.device))
