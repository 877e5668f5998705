"""The sizes of the tiny pipelines' transformers.

One to try things with, 1 to 3 MB on disk, and one whose steps cost far more than a task does, as
those of real models do.
"""

from dataclasses import dataclass
from typing import Final

from digen_core.config.model import TinySize

LATENT_CHANNELS: Final = 4
TEXT_WIDTH: Final = 32
VAE_CHANNELS: Final = (8, 8, 8, 8)


@dataclass(frozen=True, slots=True)
class TransformerSize:
    """How large a transformer is."""

    heads: int
    head: int  # channels of each
    blocks: int  # of each kind
    axes: tuple[int, int, int]  # of the rotary embedding of a head; sum up to its channels

    @property
    def width(self) -> int:
        """Channels of a token."""
        return self.heads * self.head

    @property
    def settings(self) -> dict[str, int]:
        """As the classes of all families call them."""
        return {
            "num_attention_heads": self.heads,
            "attention_head_dim": self.head,
            "num_layers": self.blocks,
        }


SIZES: Final[dict[TinySize, TransformerSize]] = {
    "tiny": TransformerSize(heads=4, head=16, blocks=2, axes=(4, 4, 8)),
    "medium": TransformerSize(heads=6, head=64, blocks=6, axes=(16, 24, 24)),
}
