"""What each operation costs on each kind of device: a fixed part and a part per item.

The numbers come from a scenario, from a profile file, or from the spans of the run itself.
"""

from collections.abc import Collection
from math import ceil
from typing import Final, NamedTuple

from pydantic import Field

from digen_core.config.schedule import Asker
from digen_core.control.schedule import Workload
from digen_core.strict import Duration, Strict

LEAST_SECONDS: Final = 1e-9
"""Of a step or a pack: with less than any device takes predictions would not be finite."""


class Linear(Strict):
    """Seconds of an operation on n items: ``fixed + ceil(n / shares) * cost * per_item``."""

    fixed: float = Field(0.0, ge=0)
    per_item: float = Field(0.0, ge=0)
    shares: int = Field(1, ge=1)
    """In which a gang deals the items, computed side by side: the largest counts."""

    def __call__(self, num_items: float, cost: float = 1.0) -> float:
        """Return the seconds.

        Args:
            num_items: samples or pairs.
            cost: of each, in those of the mean size.
        """
        return self.fixed + ceil(num_items / self.shares) * cost * self.per_item

    def times(self, factor: float) -> "Linear":
        """Return the seconds of the operation done that many times."""
        longer = {"fixed": factor * self.fixed, "per_item": factor * self.per_item}
        return self.model_copy(update=longer)

    def plus(self, other: "Linear", times: float = 1.0) -> "Linear":
        """Return the seconds of another operation on the same items more, or less; never below 0.

        Args:
            other: the operation.
            times: how often it is done.
        """
        fixed = max(0.0, self.fixed + times * other.fixed)
        per_item = max(0.0, self.per_item + times * other.per_item)
        return self.model_copy(update={"fixed": fixed, "per_item": per_item})


class Asks(NamedTuple):
    """Velocities that a denoising step asks for, by who asks the reference policy."""

    training: float
    generation: float


class DeviceCosts(Strict):
    """What a device of one kind needs, in seconds."""

    step: Linear
    """One denoising step of a batch, by samples (d0, d1)."""

    decode: Linear = Linear()
    """Text encoding and VAE decoding of a fragment, by samples."""

    pack: Linear
    """Forward and backward of a pack, by pairs (a, c)."""

    def times(self, factor: float) -> "DeviceCosts":
        """Return what a device needs that takes so many times as long for everything."""
        return DeviceCosts(
            step=self.step.times(factor),
            decode=self.decode.times(factor),
            pack=self.pack.times(factor),
        )

    def fragment(self, num_samples: int, num_steps: float) -> float:
        """Return the seconds to generate a fragment from its first step to its images."""
        return num_steps * self.step(num_samples) + self.decode(num_samples)

    def fragments(self, work: Workload, size: int, number: int, num_steps: float) -> float:
        """Return the seconds to generate so many fragments of a size, in full batches."""
        full, rest = divmod(number, work.fragments_per_batch)
        step = full * self.step(work.fragments_per_batch * size)
        step += self.step(rest * size) if rest else 0.0
        return number * self.decode(size) + num_steps * step

    def generation(self, work: Workload) -> float:
        """Return W_g: the seconds to generate an iteration in full batches."""
        seconds = 0.0
        for group in work.kinds_of_groups:
            steps = work.steps_of(group, work.mean_steps)
            full, rest = divmod(work.size_of(group), work.fragment_size)
            sizes = {work.fragment_size: full * work.num_groups, rest: work.num_groups}
            for size, number in sizes.items():
                if size:
                    seconds += self.fragments(work, size, number, steps)
        return seconds

    def training(self, work: Workload, num_trained_steps: float, pack_size: int) -> float:
        """Return W_t(b): the seconds to train an iteration in packs of b pairs."""
        full, rest = divmod(work.num_pairs(num_trained_steps), pack_size)
        return full * self.pack(pack_size) + (self.pack(rest) if rest else 0.0)


class Link(Strict):
    """What bytes take from one site to another. Each way they go one after the other."""

    between: tuple[str, str]
    """Sites."""

    bytes_per_second: float = Field(gt=0)
    """Each way."""

    latency: Duration = Field(0.0, ge=0)
    """Seconds that a byte is under way."""

    @property
    def sites(self) -> frozenset[str]:
        """Both, in no order."""
        return frozenset(self.between)

    def slower(self, factor: float) -> "Link":
        """Return a link on which everything takes so many times as long."""
        times = {
            "bytes_per_second": self.bytes_per_second / factor,
            "latency": factor * self.latency,
        }
        return self.model_copy(update=times)

    def seconds(self, num_bytes: float) -> float:
        """Return when the last of so many bytes arrives, if nothing else is under way."""
        return self.latency + num_bytes / self.bytes_per_second


class Sent(Strict):
    """Bytes of what devices send each other."""

    version: float = Field(0.0, ge=0)
    """Trained weights of a version."""

    transition: float = Field(0.0, ge=0)
    """Of one sample, what training at one denoising step takes of its trajectory."""

    condition: float = Field(0.0, ge=0)
    """An embedded prompt."""

    gradient_sum: float = Field(0.0, ge=0)
    """Sum of gradients of a trainer."""

    delta: float = Field(0.0, ge=0)
    """Of a version what crosses a link, as a run has seen it; 0: none was seen."""

    @property
    def crossing(self) -> float:
        """Of a version what is expected to cross a link."""
        return self.delta or self.version

    def as_seen(self, before: "Sent") -> "Sent":
        """Return these bytes, with those that a run has seen before."""
        return self.model_copy(update={"delta": before.delta})


class Costs(Strict):
    """The cost model of a cluster and a recipe, in seconds."""

    kinds: dict[str, DeviceCosts]
    """By kind of device."""

    reward: Duration = Field(0.0, ge=0)
    """One sample on one reward server; 0 when the generating device scores."""

    reward_servers: int = Field(1, ge=1)
    """Samples that are scored at the same time."""

    optimizer_step: Duration = Field(0.0, ge=0)
    """The step itself, while no pack of the next version can be trained."""

    gradient_sum: Duration = Field(0.0, ge=0)
    """Bringing the sum of gradients of one other trainer to the device that steps."""

    push: Duration = Field(0.0, ge=0)
    """From the optimizer step until a rollout device holds the new version."""

    switch_to_rollout: Duration = Field(0.0, ge=0)
    """Making a device that trained ready to generate."""

    switch_to_trainer: Duration = Field(0.0, ge=0)
    """Making a device that generated ready to train."""

    links: tuple[Link, ...] = ()
    """Between sites, on top of what is above; where there is none, bytes take no time."""

    sent: Sent = Sent()
    """What crosses them."""

    reference: Asker = "training"
    """Whose costs those of asking the reference policy are, where training compares with it."""

    def asking(self, reference: Asker, velocities: Asks) -> "Costs":
        """Return what everything costs if the reference policy is asked elsewhere.

        A pack asks for one velocity of each pair, which takes what it does in a denoising step,
        but no more than half of the pack.
        Where such a step asks for none, nothing tells what that is, and they stay what they are.
        """
        before, after = velocities.training, velocities.generation
        if reference == "training":
            before, after = after, before
        if reference == self.reference or not before:
            return self.model_copy(update={"reference": reference})
        kinds = {}
        for kind, own in self.kinds.items():
            velocity = own.step.times(1 / before)
            pack = own.pack.plus(velocity, -1 if reference == "generation" else 1)
            if pack(1) < own.pack(1) / 2:  # forward and backward take no less than a velocity
                pack = own.pack.times(1 / 2)
            kinds[kind] = own.model_copy(update={"step": velocity.times(after), "pack": pack})
        return self.model_copy(update={"kinds": kinds, "reference": reference})

    def crossing(self, sites: Collection[str], *, whole: bool = False) -> float:
        """Return the most seconds of a version from one of these sites to another.

        Args:
            sites: where devices are.
            whole: count all of it, even if less was seen to cross: who joins there has no base.
        """
        num_bytes = max(self.sent.version, self.sent.delta) if whole else self.sent.crossing
        own = [link for link in self.links if link.sites <= set(sites)]
        return max((link.seconds(num_bytes) for link in own), default=0.0)
