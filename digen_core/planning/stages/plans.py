"""Plans: placements with a codec for each cut, and how long an iteration takes with them."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil

from digen_core.planning.stages.chain import Chain
from digen_core.planning.stages.codecs import NONE, Codec
from digen_core.planning.stages.network import Network
from digen_core.planning.stages.pipeline import Pipeline, pipeline_of
from digen_core.planning.stages.placement import Stage


@dataclass(frozen=True, slots=True)
class Work:
    """An iteration: samples that are generated, and trained at some of their steps."""

    num_samples: int
    num_steps: int
    pairs_per_sample: int
    batch: int  # samples that are denoised together, pairs of a pack

    def of(self, num_samples: int) -> "Work":
        """Return the same work on another number of samples."""
        return replace(self, num_samples=num_samples)

    @property
    def num_pairs(self) -> int:
        """Number of pairs (sample, trained step)."""
        return self.num_samples * self.pairs_per_sample

    def in_batches(self, count: int, seconds: Callable[[int], float]) -> float:
        """Return the seconds of samples or pairs, of which batches take so long."""
        num = ceil(count / self.batch)
        sizes = Counter(count * (n + 1) // num - count * n // num for n in range(num))
        return sum(times * seconds(size) for size, times in sizes.items())


@dataclass(frozen=True)
class Plan:
    """Stages on devices, with the codecs of their cuts."""

    stages: tuple[Stage, ...]
    codecs: tuple[Codec, ...]
    pipeline: Pipeline

    def generation(self, work: Work) -> float:
        """Return the simulated seconds of generating."""
        step = self.pipeline.simulated_step
        return work.num_steps * work.in_batches(work.num_samples, step)

    def training(self, work: Work) -> float:
        """Return the simulated seconds of forward and backward."""
        return work.in_batches(work.num_pairs, self.pipeline.simulated_pack)

    def seconds(self, work: Work) -> float:
        """Return the simulated seconds of one after the other."""
        return self.generation(work) + self.training(work)

    def estimate(self, work: Work) -> float:
        """Return what the formulas say of them."""
        step, pack = self.pipeline.step_seconds, self.pipeline.pack_seconds
        generation = work.num_steps * work.in_batches(work.num_samples, step)
        return generation + work.in_batches(work.num_pairs, pack)


def plan_of(
    chain: Chain, network: Network, stages: Sequence[Stage], codecs: Sequence[Codec] = (NONE,)
) -> Plan:
    """Return a plan in which each cut has the mildest codec that is enough.

    Enough is what makes the link as fast as the slowest stage, each way; else it is the last.

    Args:
        chain: that is cut.
        network: of the devices.
        stages: of the chain.
        codecs: that there are, the mildest first.
    """
    plain = pipeline_of(chain, network, stages, [NONE] * (len(stages) - 1))
    slowest = max(plain.there.heads + plain.there.work), max(plain.back.work)

    def is_enough(codec: Codec, there: float, back: float) -> bool:
        return bool(there / codec.there <= slowest[0] and back / codec.back <= slowest[1])

    chosen = tuple(
        next((codec for codec in codecs if is_enough(codec, *link)), codecs[-1])
        for link in zip(plain.there.links, plain.back.links[::-1], strict=True)
    )
    return Plan(tuple(stages), chosen, pipeline_of(chain, network, stages, chosen))


def fastest(plans: Iterable[Plan], work: Work) -> Plan | None:
    """Return the plan that takes the fewest seconds by the formulas; None if there is none."""
    return min(plans, key=lambda plan: plan.estimate(work), default=None)
