"""The memory model: bytes that a recipe needs on a device, or each GPU of a gang, and on the host.

Importing this module must not import torch; `memory_count.py` counts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Final

from digen_core.control.costs import Linear

CONTEXT_BYTES: Final = 1_500_000_000
"""What a CUDA device takes for itself: context, libraries' workspaces, gaps. An assumption."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of what is held while a recipe generates and trains; peaks are beside the rest.

    Of a gang they are those of a member: of its leader, which alone embeds, decodes and scores, if
    no other is named.
    """

    weights: int  # the transformer in its dtypes, twice where a reference is kept beside it
    adapters: int  # all that a device keeps side by side; 0 where all weights are trained
    text_encoders: int
    vae: int
    step: Linear  # peak of a denoising step, by samples of a share
    decode: Linear  # peak of the VAE, by samples
    pack: Linear  # peak of forward and backward, by pairs of a share
    gradient_sum: int  # in float32, beside the gradients of a pack
    versions: int  # on the host of each device, where all weights are trained
    state: int  # on the host of the trainer that steps: masters, moments, averages of all members
    step_copies: int  # beside them while it steps
    offload: frozenset[str]  # parts that are on the device only while they work
    num_shares: int = 1  # of a gang, in which samples and pairs are dealt
    low_precision: int = 0  # of devices that generate: the blocks' layers, in float8 beside weights
    graphed: bool = False  # a step's memory is kept by CUDA graphs, on devices that generate
    most_decoded: int | None = None  # samples of a fragment; None: all of them

    @property
    def _resident(self) -> int:
        """The bytes of the parts that generating needs and that are on the device all the time."""
        parts = {"text_encoders": self.text_encoders, "vae": self.vae}
        return sum(size for part, size in parts.items() if part not in self.offload)

    def rollout(self, fragment_size: int, batch_size: int = 1) -> int:
        """Return the bytes of a device that generates.

        Args:
            fragment_size: samples that are decoded together, and denoised together at least.
            batch_size: samples that are denoised together at most.
        """
        together = max(fragment_size, batch_size)
        transformer = self.weights + self.low_precision + self.adapters
        encode = self.text_encoders if "text_encoders" in self.offload else 0
        encode += 0 if "transformer" in self.offload else transformer
        decoded = min(fragment_size, self.most_decoded or fragment_size)
        decode = self.decode(decoded) + (self.vae if "vae" in self.offload else 0)
        peak = max(encode, transformer + max(self.step(self._dealt(together)), decode))
        return round(CONTEXT_BYTES + self._resident + self._kept(together) + peak)

    def trainer(self, pack_size: int) -> int:
        """Return the bytes of a device that trains packs of so many pairs."""
        resident = self.weights + self.adapters + self.gradient_sum + CONTEXT_BYTES
        return round(resident + self.pack(self._dealt(pack_size)))

    def both(self, fragment_size: int, pack_size: int, batch_size: int = 1) -> int:
        """Return the bytes of a device that does either, one after the other."""
        generates = self.rollout(fragment_size, batch_size) + self.gradient_sum
        trains = self.trainer(pack_size) + self.low_precision + self._resident
        return max(generates, round(trains + self._kept(max(fragment_size, batch_size))))

    def _kept(self, together: int) -> float:
        """Return the bytes that CUDA graphs keep; a step of a new shape takes as many beside."""
        return self.step(self._dealt(together)) if self.graphed else 0

    def _dealt(self, count: int) -> int:
        """Return the most samples or pairs of a share."""
        return ceil(count / self.num_shares)

    @property
    def host(self) -> int:
        """The bytes on the host of the trainer that steps."""
        return self.state + self.step_copies + self.versions


MemoryIn = Callable[[int], Memory]
"""The memory of a config on each GPU of a gang of some size."""
