"""How the samples of a fragment are denoised, beside the policy and the steps."""

from dataclasses import dataclass

from digen_core.control.protocol import Fragment
from digen_core.transport.origin import Origin


@dataclass(frozen=True, slots=True)
class Sampling:
    """One fragment of a batch."""

    fragment: Fragment
    key: str  # by which the condition of its prompt is known
    noisy_steps: tuple[int, ...]
    origin: Origin | None = None  # whose noise its samples have; None: their own

    @property
    def group(self) -> tuple[int, int]:
        """(iteration, index) of its group."""
        return self.fragment.iteration, self.fragment.group
