"""The base of all families: a diffusers pipeline whose denoising loop is ours.

A family says how it embeds prompts, what one forward pass of its transformer takes, which sigmas
its pipeline asks its scheduler for, and how its latents are decoded. Dtypes and checks are here;
loading is in `family.py`, what is made of prompts in `encoder.py`, guidance in `guidance.py`.

Axes: B samples, C channels, F frames, H height, W width.
"""

import copy
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor

from digen_core.config.families import FAMILIES
from digen_core.config.model import ModelConfig
from digen_core.config.rollout import Precision
from digen_core.config.size import Size
from digen_core.errors import ConfigError
from digen_core.gang.codecs import CodedCuts
from digen_core.gang.context_parallel import Plan, deal_tokens
from digen_core.gang.cutting import run_of
from digen_core.gang.members import ALONE, Gang
from digen_core.gang.stage_files import is_kept_in_float32
from digen_core.gang.stages import Stage
from digen_core.inputs.text import number_of
from digen_core.maths.tensors import TORCH_DTYPES
from digen_core.models.experts import transformer_of, transformers_in
from digen_core.models.image_size import require_multiples
from digen_core.models.offload import on_device
from digen_core.models.pipeline.conditions import rows_of
from digen_core.models.pipeline.cuda_graphs import GraphedTransformer, launching_graphs
from digen_core.models.pipeline.family import FamilyPipeline
from digen_core.models.pipeline.float8 import Float8Linear, computing_in_float8
from digen_core.models.pipeline.guidance import GuidedVelocities
from digen_core.models.policy import Condition, Part, resolve_device
from digen_core.models.schedules import named_sigmas, shifted_sigmas
from digen_core.models.tiny.sizes import TransformerSize

StageT = TypeVar("StageT", bound=Stage)


class PipelinePolicy(FamilyPipeline, GuidedVelocities):
    """A diffusers pipeline as a Policy."""

    guidance_argument: ClassVar[str] = "guidance_scale"  # what the pipeline calls it
    token_plan: ClassVar[Plan | None] = None  # how tokens are dealt, if diffusers does not know

    def __init__(self, pipeline: Any, config: ModelConfig, device: torch.device) -> None:
        super().__init__(pipeline, config, device)
        self.transformer = transformer_of(pipeline, config)
        self.reference_transformer: Any = None
        self.idle = FAMILIES[config.family].idle
        self.latent_dtype = torch.promote_types(self.dtype, torch.float32)
        self.stage: Stage | None = None  # where blocks are held by several members
        self.whole: Mapping[str, Tensor] | None = None
        self.cuts = CodedCuts(config.cuts)
        self.float8: tuple[Float8Linear, ...] = ()  # layers that generate in float8
        self.graphed: tuple[GraphedTransformer, ...] = ()  # those that generate by CUDA graphs
        if config.vae_tiling:
            pipeline.vae.enable_tiling()
        if config.vae_slicing:
            pipeline.vae.enable_slicing()
        self.latent_shape = self._latent_shape()

    @classmethod
    def load(cls, config: ModelConfig, parts: frozenset[Part], gang: Gang = ALONE) -> Self:
        """Load the named parts of a folder or hub id.

        Args:
            config: path, revision, dtype, device and sizes.
            parts: what the role needs. A trainer reads no weights of the VAE, whose config alone
                tells the latent's size, and no text encoders.
            gang: whose member it is for: its stage only is read, and what is to be sharded stays in
                the host's memory.

        Raises:
            OSError: a part is not there.
            ConfigError: the model has other sizes than the config asks for, or an adapter does not
                fit it.
        """
        device = resolve_device(config.device)
        return cls(cls.load_pipeline(config, parts, gang, device), config, device)

    @classmethod
    def without_weights(cls, config: ModelConfig, folder: Path) -> Self:
        """Build transformer and VAE on the meta device: they have shapes, and compute no numbers.

        They are float32 whatever the config's dtype: shapes do not depend on it.

        Args:
            config: sizes and guidance; its path is not looked at.
            folder: with ``transformer/config.json`` and ``vae/config.json`` of diffusers, and what
                else there is of settings.

        Raises:
            OSError: one of them is not there.
            ConfigError: the model has other sizes than the config asks for.
        """
        config = config.model_copy(update={"dtype": "float32"})
        device = torch.device("meta")
        return cls(cls.build_pipeline(config, folder, device), config, device)

    @classmethod
    def with_random_weights(cls, config: ModelConfig, folder: Path) -> Self:
        """Build the transformer as ``load`` does, but for its numbers: those before any training.

        It is on the config's device and has the dtypes of a loaded one. The VAE is on the meta
        device, and there are no text encoders. There is no scheduler either: noise levels fall
        evenly where ``model.shift`` does not say otherwise.

        Args:
            config: dtype, device, sizes and guidance; its path and adapters are not looked at.
            folder: with ``transformer/config.json`` and ``vae/config.json`` of diffusers.

        Raises:
            OSError: one of them is not there.
            ConfigError: the model has other sizes than the config asks for.
            torch.OutOfMemoryError: it does not fit into the device's memory.
        """
        config = config.model_copy(update={"shift": config.shift or 1.0})
        with _default_dtype(TORCH_DTYPES[config.dtype]):
            device = resolve_device(config.device)
            policy = cls(cls.build_pipeline(config, folder, device), config, device)
        for transformer in policy.transformers:
            for name, parameter in transformer.named_parameters():
                if is_kept_in_float32(transformer, name):
                    parameter.data = parameter.data.float()
        return policy

    @property
    def transformers(self) -> list[Any]:
        """The transformers of diffusers: one or two experts, and those kept as a reference."""
        both = self.transformer, self.reference_transformer
        own = [each for one in both if one is not None for each in transformers_in(one)]
        return list(dict.fromkeys(own))  # an expert that is not trained is its own reference

    def join(self, gang: Gang) -> None:
        """Compute as a member of a gang from now on, dealing tokens and blocks as it does.

        It is collective, if tokens or blocks are dealt.
        """
        self.gang = gang
        if gang.stages > 1:
            self.stage = self.make_stage(Stage)
        if gang.context_parallel > 1:
            deal_tokens(self.transformers, gang, self.device, self.token_plan)

    def make_stage(self, kind: Callable[..., StageT]) -> StageT:
        """Return this member's place among the stages of its share (collective).

        Args:
            kind: of stage.
        """
        family = FAMILIES[self.config.family]
        return kind(
            self.gang,
            self.device,
            family.streams,
            run_of(self.transformers[0], family),
            self.cuts,
            keeps_graphs=self.dtype == torch.float16,  # again, with another scale of the loss
        )

    def at_size(self, size: Size) -> Self:
        """Return the same policy for samples of a size: it shares everything with this one.

        Raises:
            ConfigError: the model cannot have that size.
        """
        if size == self.config.size:
            return self
        view = copy.copy(self)
        view.config = self.config.at_size(size)
        view.latent_shape = view._latent_shape()
        return view

    def in_training(self) -> Self:
        """Return the same policy with the guidance of training: it shares everything with this one.

        To be asked where it is used, as what this one is given later it does not get.
        """
        return self._configured_as(self.config.in_training)

    def as_reference(self) -> Self:
        """Return the same policy with the reference policy's guidance: it shares everything, too.

        With which weights, ``reference_weights`` says.
        """
        return self._configured_as(self.config.as_reference)

    def _configured_as(self, config: ModelConfig) -> Self:
        if config is self.config:
            return self
        view = copy.copy(self)
        view.config = config
        return view

    def sigmas(self, num_steps: int) -> Tensor:
        """Return the schedule, float32 [num_steps + 1], from 1 (or a little less) down to 0.

        Raises:
            ConfigError: the model's scheduler makes no such schedule of so many steps, or the
                config names the noise levels of another number.
        """
        if self.config.sigmas:
            return named_sigmas(self.config.sigmas, num_steps)
        if self.config.shift is not None:
            return shifted_sigmas(num_steps, self.config.shift)
        try:
            sigmas = self.sigmas_of_family(num_steps)
        except ConfigError:
            raise
        except Exception as error:  # schedulers of other kinds fail in all ways
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ConfigError(
                f"model.path {self.config.path} has a {type(self.pipeline.scheduler).__name__}, "
                f"which makes no noise levels as its pipeline asks for them: {reason[:300]}; use a "
                "FlowMatchEulerDiscreteScheduler, or model.shift"
            ) from error
        if not (0 < sigmas[0] <= 1 and sigmas[-1] == 0 and bool((sigmas.diff() < 0).all())):
            raise ConfigError(
                f"the scheduler of model.path {self.config.path} gives "
                f"{number_of(num_steps, 'step')} the noise levels "
                f"{[round(float(sigma), 5) for sigma in sigmas]}, which do not fall from 1 to 0; "
                "use more steps, a flow-matching scheduler, or model.shift"
            )
        return sigmas

    @contextmanager
    def sampling(self, precision: Precision) -> Iterator[None]:
        """Run the body as rollouts compute, in a precision; it computes no gradients."""
        low = self.float8 if precision == "float8" else ()
        with computing_in_float8(low), launching_graphs(self.graphed):
            yield

    @property
    def is_low(self) -> bool:
        """Whether its blocks compute in float8 now."""
        return any(layer.is_low for layer in self.float8[:1])

    @property
    def mode(self) -> Hashable:
        """What a pass depends on beside its arguments, its weights and which adapter is active."""
        return None

    def predicted(self, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        """Return one forward pass in ``latent_dtype``, whoever holds the blocks."""
        if self.stage is None:
            return self.predict(x, sigma, condition).to(self.latent_dtype)

        def predict(rows: slice) -> Tensor:
            own = rows_of(condition, rows)
            return self.predict(x[rows], sigma[rows], own).to(self.latent_dtype)

        is_asked = torch.is_grad_enabled()  # to look for them takes milliseconds
        parameters = self.transformer.parameters() if is_asked else ()
        trained = [own for own in parameters if own.requires_grad]
        return self.stage.velocity(predict, x.to(self.latent_dtype), trained)

    @torch.no_grad()
    def decode(self, x: Tensor) -> Tensor:
        """Map clean latents [B, ...] to images [B, 3, H, W] or videos [B, F, 3, H, W] in [0, 1].

        Where the VAE gave NaN or Inf there is NaN: whoever judges or keeps them has to look.
        """
        vae = self.pipeline.vae
        latents = self.vae_latents(x.to(self.latent_dtype)).to(vae.dtype)
        with on_device([vae], self.device):
            pixels: Tensor = vae.decode(latents, return_dict=False)[0].float()
        pixels = (pixels / 2 + 0.5).masked_fill(pixels.isinf(), torch.nan).clamp(0, 1)
        pixels = self.colours(pixels)
        if pixels.ndim == 4:
            return pixels
        frames = pixels.transpose(1, 2)  # [B, 3, F, H, W] -> [B, F, 3, H, W]
        return frames[:, 0] if self.config.num_frames == 1 else frames.contiguous()

    @torch.no_grad()
    def latents(self, x: Tensor) -> Tensor:
        """Map clean latents [B, ...] to [B, C, h, w] or, of videos, [B, C, f, h, w], float32.

        They are what ``decode`` is given, at the transformer's scale, and take no VAE's weights.
        """
        found = self.unpacked(x).float()
        return found[:, :, 0] if found.ndim == 5 and self.config.num_frames == 1 else found

    def colours(self, pixels: Tensor) -> Tensor:
        """Return pixels [B, 3, ...] of those that the VAE makes, in [0, 1]: often the same."""
        return pixels

    @property
    def side(self) -> int:
        """Pixels in height and width of a token."""
        settings = self.pipeline.vae.config, self.transformer.config
        return FAMILIES[self.config.family].side(*settings)

    def _latent_shape(self) -> tuple[int, ...]:
        require_multiples(self.config, self.side)
        return self.shape_of_latent()

    @classmethod
    @abstractmethod
    def tiny(cls, size: TransformerSize, kind: str = "") -> Any:
        """Build a pipeline of the family with random weights, offline and in seconds.

        Args:
            size: of its transformer.
            kind: one of the family's kinds; empty: the plain one.
        """

    @abstractmethod
    def shape_of_latent(self) -> tuple[int, ...]:
        """Return the shape of one latent; raise ConfigError if the model cannot have that size."""

    @abstractmethod
    def sigmas_of_family(self, num_steps: int) -> Tensor:
        """Return the sigmas that the family's pipeline would use, float32 [num_steps + 1]."""

    @abstractmethod
    def predict(self, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        """Return one forward pass: velocities [B, ...] of latents [B, ...] at noise levels [B]."""

    def unpacked(self, x: Tensor) -> Tensor:
        """Return latents in the VAE's form, [B, z, h, w] or [B, z, F, h, w], at their own scale."""
        return x

    @abstractmethod
    def vae_latents(self, x: Tensor) -> Tensor:
        """Return what the VAE decodes: latents unpacked and at its own scale."""


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Let what is made in the body have a dtype where nothing else is said."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
