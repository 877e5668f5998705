"""A pipeline of stages: how long a pack of samples takes there and back, and a denoising step.

The schedule is that of `digen_core/gang/stages.py`. A batch is cut into portions, which go through
all stages one after the other; a stage computes the next while one is under way. Then the last
stage sends the velocities to all, and portions go back in the opposite order. There is a formula,
and a simulation of the events.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from digen_core.planning.stages.chain import Chain, Numbers
from digen_core.planning.stages.codecs import Codec
from digen_core.planning.stages.network import Network
from digen_core.planning.stages.placement import Stage
from digen_core.sim.clock import Clock

PORTIONS_PER_STAGE = 4
"""As in `digen_core/gang/stages.py`, which takes torch to import; a test compares them."""


@dataclass(frozen=True)
class Way:
    """One way through k stages; seconds of a sample but for the latency."""

    heads: Numbers  # [k] what a stage computes while it waits for what crosses
    work: Numbers  # [k] what it computes then
    links: Numbers  # [k - 1] what crosses
    latency: Numbers  # [k - 1] seconds of any portion

    def seconds(self, portions: Sequence[float]) -> float:
        """Return the formula's seconds for portions of so many samples."""
        mean = float(np.mean(portions))
        slowest = np.concatenate([self.heads + self.work, self.links]).max()
        once = self.heads[0] + self.work.sum() + self.links.sum()
        return float(mean * (once + (len(portions) - 1) * slowest) + self.latency.sum())


@dataclass(frozen=True)
class Pipeline:
    """Stages on devices."""

    there: Way
    back: Way
    velocities: tuple[tuple[float, float], ...]  # latency, seconds of a sample: to each other stage
    num_rows: int

    def portions(self, num_samples: int) -> list[float]:
        """Return how many samples, or parts of one, each portion has."""
        rows = num_samples * self.num_rows
        count = min(rows, PORTIONS_PER_STAGE * len(self.there.work))
        edges = [place * rows // count for place in range(count + 1)]
        return list(np.diff(edges) / self.num_rows)

    def step_seconds(self, num_samples: int) -> float:
        """Return the formula's seconds of a denoising step."""
        return self.there.seconds(self.portions(num_samples)) + self._sending(num_samples)

    def pack_seconds(self, num_samples: int) -> float:
        """Return the formula's seconds of forward and backward."""
        back = self.back.seconds(self.portions(num_samples))
        return self.step_seconds(num_samples) + back

    def simulated_step(self, num_samples: int) -> float:
        """Return the seconds of a denoising step, by simulation."""
        return simulate(self.there, self.portions(num_samples)) + self._sending(num_samples)

    def simulated_pack(self, num_samples: int) -> float:
        """Return the seconds of forward and backward, by simulation."""
        portions = self.portions(num_samples)
        return self.simulated_step(num_samples) + simulate(self.back, portions[::-1])

    def _sending(self, num_samples: int) -> float:
        """Return when all stages have the velocities that the last one has."""
        each = (latency + num_samples * seconds for latency, seconds in self.velocities)
        return max(each, default=0.0)


def pipeline_of(
    chain: Chain, network: Network, stages: Sequence[Stage], codecs: Sequence[Codec]
) -> Pipeline:
    """Return the pipeline of a placement.

    Args:
        chain: that is cut.
        network: of the devices.
        stages: of it.
        codecs: of each cut.
    """
    before, after = chain.before, chain.after
    rates = network.rates[[stage.device for stage in stages]]

    def blocks(field: str) -> Numbers:
        values = chain.of_blocks(field)
        return np.array([values[stage.first : stage.end].sum() for stage in stages])

    last = np.eye(len(stages))[-1]
    there = (blocks("forward_flops") + last * after.forward_flops) / rates
    back = (blocks("backward_flops") + last * after.backward_flops + before.backward_flops) / rates
    way = [stage.device for stage in stages[:-1]], [stage.device for stage in stages[1:]]
    cuts = chain.of_blocks("cut_bytes")[[stage.first for stage in stages[1:]]]
    sent = cuts / [codec.there for codec in codecs], cuts / [codec.back for codec in codecs]
    heads = before.forward_flops / rates
    forward = Way(heads, there, sent[0] / network.bandwidth[way], network.latency[way])
    opposite = way[::-1]
    backward = Way(
        np.zeros(len(stages)),
        back[::-1],
        (sent[1] / network.bandwidth[opposite])[::-1],
        network.latency[opposite][::-1],
    )
    end = stages[-1].device
    velocities = tuple(
        (float(network.latency[end, d]), chain.velocity_bytes / float(network.bandwidth[end, d]))
        for d in way[0]
    )
    return Pipeline(forward, backward, velocities, chain.num_rows)


def simulate(way: Way, portions: Sequence[float]) -> float:
    """Return when the last stage is done with the last of some portions."""
    run = _Run(way, portions)
    while run.clock.advance():
        pass
    return run.clock.now


class _Run:
    """Portions on their way; links keep their order, each carries one at a time."""

    def __init__(self, way: Way, portions: Sequence[float]) -> None:
        self.clock = Clock()
        self._way, self._portions = way, portions
        num = len(way.work)
        self._done, self._is_ready = [0] * num, [False] * num
        self._arrived = [len(portions), *[0] * (num - 1)]
        self._free = [0.0] * num  # when the link behind a stage has sent all
        for stage in range(num):
            self._begin(stage)

    def _begin(self, stage: int) -> None:
        if self._done[stage] < len(self._portions):
            head = self._way.heads[stage] * self._portions[self._done[stage]]
            self.clock.after(head, lambda: self._ready(stage))

    def _ready(self, stage: int) -> None:
        self._is_ready[stage] = True
        self._work(stage)

    def _work(self, stage: int) -> None:
        if self._is_ready[stage] and self._arrived[stage] > self._done[stage]:
            self._is_ready[stage] = False
            seconds = self._way.work[stage] * self._portions[self._done[stage]]
            self.clock.after(seconds, lambda: self._end(stage))

    def _end(self, stage: int) -> None:
        samples = self._portions[self._done[stage]]
        self._done[stage] += 1
        if stage < len(self._way.links):
            begun = max(self.clock.now, self._free[stage])
            self._free[stage] = begun + self._way.links[stage] * samples
            arrival = self._free[stage] + self._way.latency[stage]
            self.clock.at(arrival, lambda: self._arrive(stage + 1))
        self._begin(stage)

    def _arrive(self, stage: int) -> None:
        self._arrived[stage] += 1
        self._work(stage)
