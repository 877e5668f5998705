"""The result of a denoise task: a stretch of a fragment's trajectory, as arrays."""

from dataclasses import dataclass, field

import numpy as np

from digen_core.control.protocol import Fragment
from digen_core.transport.arrays import from_stored
from digen_core.transport.origin import Origin

Segments = tuple["Segment", ...]
"""What a denoise task returns: a stretch of each fragment of its batch."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Latents of consecutive steps of a fragment, and the log-probs of the noisy ones."""

    fragment: Fragment
    first_step: int
    latents: np.ndarray  # [s + 1, n, ...] as stored; latents[0] is x before first_step
    logprobs: dict[int, np.ndarray]  # step -> [n] under the version that sampled
    version: int
    sigmas: np.ndarray  # [T + 1] noise levels before and after the steps of the whole trajectory
    device: str  # that sampled
    references: dict[int, np.ndarray] = field(default_factory=dict)
    """Trained step -> velocities [n, ...] of the reference policy, where they are asked for."""
    clean: np.ndarray | None = None
    """[n, ...] predicted before its last step, where the solver of the next one asks for it."""
    origin: Origin | None = None
    """Whose noise its samples have; None: their own."""

    @property
    def x(self) -> np.ndarray:
        """The latest latent [n, ...]."""
        return from_stored(self.latents[-1])

    def before(self, step: int) -> np.ndarray:
        """Return the latent [n, ...] before a step."""
        return from_stored(self.latents[step - self.first_step])

    def after(self, step: int) -> np.ndarray:
        """Return the latent [n, ...] after a step."""
        return self.before(step + 1)

    def covers(self, step: int) -> bool:
        """Whether this stretch holds the transition of ``step``."""
        return self.first_step <= step < self.first_step + len(self.latents) - 1
