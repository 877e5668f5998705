"""The protocol of a model family: all that the rest of digen needs from one.

Axes: B samples, C channels, F frames, H height, W width; a latent is [B, ...] of any rank.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol, Self

import torch
from torch import Tensor

from digen_core.config.rollout import Precision
from digen_core.config.size import Size
from digen_core.data.images import SourceImage
from digen_core.gang.codecs import CodedCuts
from digen_core.gang.members import Gang

Part = Literal["transformer", "text_encoders", "vae"]
ALL_PARTS: frozenset[Part] = frozenset({"transformer", "text_encoders", "vae"})
TRAINER_PARTS: frozenset[Part] = frozenset({"transformer"})

Condition = dict[str, Tensor]  # embeddings of prompts, each [B, ...]


class Policy(Protocol):
    """A velocity model with the parts of its pipeline that a role needs."""

    pipeline: Any  # the diffusers pipeline; parts that the role does not need are None or empty
    transformer: Any  # a diffusers model, or two experts: nn.Module with peft's adapter methods
    reference_transformer: Any  # frozen base model, if all weights are trained; else None
    device: torch.device
    latent_shape: tuple[int, ...]
    idle: str
    """What is in the names of parameters that velocities depend on in no way, a regular expression:
    they are not trained. Empty: there are none."""
    dtype: torch.dtype  # of the transformer, but for modules that a family keeps in float32
    latent_dtype: torch.dtype
    gang: Gang  # whose member holds the model
    cuts: CodedCuts  # where streams are coded between blocks
    whole: Mapping[str, Tensor] | None
    """Of a stage: what is trained of all stages, by name, on the meta device."""

    @property
    def transformers(self) -> list[Any]:
        """The transformers of diffusers: one or two experts, and those kept as a reference."""
        ...

    def join(self, gang: Gang) -> None:
        """Compute as a member of a gang from now on, dealing tokens and blocks as it does."""
        ...

    def at_size(self, size: Size) -> Self:
        """Return the same policy for samples of a size: it shares everything with this one.

        To be asked when what is trained has been attached, and for each size once.
        """
        ...

    def in_training(self) -> Self:
        """Return the same policy with the guidance of training: it shares everything with this one.

        To be asked where it is used. Conditions are the same, with negatives if either is guided.
        """
        ...

    def as_reference(self) -> Self:
        """Return the same policy with the reference policy's guidance: it shares everything, too.

        With which weights, ``reference_weights`` says.
        """
        ...

    @property
    def num_passes(self) -> int:
        """The most forward passes that a velocity takes: 2 with classifier-free guidance."""
        ...

    def encode(
        self,
        prompts: list[str],
        images: Sequence[Sequence[SourceImage]] = (),
        negatives: Sequence[str | None] = (),
    ) -> Condition:
        """Embed prompts; each value has one row per prompt, of a shape that no prompt changes.

        The images that they come with, of each equally many, are shown in the size of the policy's
        samples. Guidance steers away from their negatives, where there are some.
        """
        ...

    def encode_samples(self, images: Sequence[SourceImage]) -> Tensor:
        """Return the clean latents [B, ...] of images, in the size of the policy's samples.

        Of families that make videos there are none: TypeError.
        """
        ...

    def encoding(self) -> AbstractContextManager[None]:
        """Run the body with the text encoders at hand, for many prompts to be encoded."""
        ...

    def without_padding(self, condition: Condition) -> Condition:
        """Return the condition of a batch without what none of its rows attends to."""
        ...

    def num_tokens(self, prompts: list[str], num_images: Sequence[int] = ()) -> list[int]:
        """Return how many tokens each prompt takes, were it not cut, beside so many images."""
        ...

    def sigmas(self, num_steps: int) -> Tensor:
        """Return the family's own schedule, float32 [num_steps + 1], from <= 1 down to 0."""
        ...

    def part_at(self, sigma: float) -> int:
        """Return which part of a batch a noise level belongs to, whose rows are computed together.

        Rows of two experts are not, nor rows with other scales of classifier-free guidance.
        """
        ...

    def velocity(self, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        """Map latents [B, ...] at noise levels [B] to velocities [B, ...] in ``latent_dtype``."""
        ...

    def sampling(self, precision: Precision) -> AbstractContextManager[None]:
        """Run the body as rollouts compute, in a precision; it computes no gradients."""
        ...

    def decode(self, x: Tensor) -> Tensor:
        """Map clean latents [B, ...] to images [B, 3, H, W] in [0, 1], float32.

        With more than one frame these are videos [B, F, 3, H, W].
        """
        ...

    def latents(self, x: Tensor) -> Tensor:
        """Map clean latents [B, ...] to the VAE's grid, [B, C, h, w], float32, without decoding.

        With more than one frame they are [B, C, f, h, w]. They have the scale that the transformer
        sees, which decoding undoes.
        """
        ...


def resolve_device(name: str) -> torch.device:
    """Turn the config's device into a torch device; auto takes cuda where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)
