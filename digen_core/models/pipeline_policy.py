"""The base of all families: a diffusers pipeline whose denoising loop is ours.

A family says how it embeds prompts, what one forward pass of its transformer takes, which sigmas
its pipeline asks its scheduler for, and how its latents are decoded. Loading, classifier-free
guidance, dtypes and checks are here.

Axes: B samples, C channels, F frames, H height, W width.
"""

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, get_args

import diffusers
import numpy as np
import torch
from diffusers import AutoModel, DiffusionPipeline
from numpy.typing import NDArray
from torch import Tensor, nn

from digen_core.config.families import FAMILIES
from digen_core.config.model import ModelConfig, Size
from digen_core.data.images import SourceImage
from digen_core.errors import ConfigError
from digen_core.gang.codecs import CodedCuts
from digen_core.gang.context_parallel import Plan, deal_tokens
from digen_core.gang.cutting import run_of
from digen_core.gang.members import ALONE, Gang
from digen_core.gang.stage_files import is_kept_in_float32, load_stage
from digen_core.gang.stages import Stage
from digen_core.maths.tensors import TORCH_DTYPES
from digen_core.models.adapters import fold_adapters
from digen_core.models.expert_names import parts_in
from digen_core.models.experts import transformer_of, transformers_in
from digen_core.models.image_size import require_multiples
from digen_core.models.offload import off_device, on_device
from digen_core.models.policy import Condition, Part, resolve_device
from digen_core.models.schedules import shifted_sigmas
from digen_core.models.tiny.sizes import TransformerSize

_NEGATIVE = "negative_"
_SOURCE = "source_latents"

StageT = TypeVar("StageT", bound=Stage)


class PipelinePolicy(ABC):
    """A diffusers pipeline as a Policy."""

    pipeline_class: ClassVar[Any]
    vae_class: ClassVar[Any]
    guidance_argument: ClassVar[str] = "guidance_scale"  # what the pipeline calls it
    uses_cfg: ClassVar[bool] = False  # else its guidance is embedded, or it has none
    guides_above: ClassVar[float] = 1.0  # the scale up to which there is no such guidance
    tokenizer_name: ClassVar[str] = "tokenizer"  # of the encoder that max_sequence_length is for
    vae_in_float32: ClassVar[bool] = False  # also where the model is half precision
    reads_sources: bool = False  # whether its text encoder is shown source images, too
    token_plan: ClassVar[Plan | None] = None  # how tokens are dealt, if diffusers does not know

    def __init__(self, pipeline: Any, config: ModelConfig, device: torch.device) -> None:
        self.pipeline = pipeline
        self.transformer = transformer_of(pipeline, config)
        self.reference_transformer: Any = None
        self.device = device
        self.config = config
        # The module's own ``dtype`` walks all its submodules: milliseconds at each step.
        self.dtype = TORCH_DTYPES[config.dtype]
        self.latent_dtype = torch.promote_types(self.dtype, torch.float32)
        self.gang = ALONE
        self.stage: Stage | None = None  # where blocks are held by several members
        self.whole: Mapping[str, Tensor] | None = None
        self.cuts = CodedCuts(config.cuts)
        self.guided = self.uses_cfg and config.guidance_scale > self.guides_above
        self._negative: Condition | None = None
        self._is_encoding = False  # with the transformer aside
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
        left_out: dict[str, Any] = {}
        kind = cls.class_of(config)
        if "text_encoders" not in parts:
            names = inspect.signature(kind.__init__).parameters
            text = ("text_encoder", "tokenizer", "processor")
            left_out |= {name: None for name in names if name.startswith(text)}
        else:
            left_out |= cls.text_parts(config, kind)
        if "vae" not in parts:
            settings = cls.vae_class.load_config(
                config.source, subfolder="vae", revision=config.revision
            )
            with torch.device("meta"):
                left_out["vae"] = cls.vae_class.from_config(settings)
        dtype, device = TORCH_DTYPES[config.dtype], resolve_device(config.device)
        waiting = {*config.offload} - {"transformer"}
        if gang.shards_weights:
            waiting.add("transformer")
        if gang.stages > 1:
            folder, family = cls._folder(config), FAMILIES[config.family]
            for part in parts_in(folder):
                left_out[part] = load_stage(folder / part, family, gang, dtype, device)
        pipeline = kind.from_pretrained(
            config.source,
            revision=config.revision,
            dtype={"default": dtype, "vae": cls.vae_dtype(dtype)},
            **left_out,
        )
        pipeline.set_progress_bar_config(disable=True)
        fold_adapters(pipeline, config.adapters)
        for name, module in pipeline.components.items():
            if isinstance(module, nn.Module) and name not in left_out:
                place = "cpu" if _part_of(name) in waiting else device
                module.to(place).eval().requires_grad_(False)
        return cls(pipeline, config, device)

    @classmethod
    def vae_dtype(cls, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype that the VAE has beside a transformer of a dtype."""
        return torch.promote_types(dtype, torch.float32) if cls.vae_in_float32 else dtype

    @classmethod
    def packages(cls, config: ModelConfig) -> tuple[str, ...]:
        """Return what the stock pipeline of a model takes beside what digen does."""
        return ()

    @classmethod
    def text_parts(cls, config: ModelConfig, kind: Any) -> dict[str, Any]:
        """Return parts of a pipeline of a class, beside its text encoders, that load otherwise."""
        return {}

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
        return cls._from_settings(config, folder, torch.device("meta"))

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
            policy = cls._from_settings(config, folder, resolve_device(config.device))
        for transformer in policy.transformers:
            for name, parameter in transformer.named_parameters():
                if is_kept_in_float32(transformer, name):
                    parameter.data = parameter.data.float()
        return policy

    @classmethod
    def _folder(cls, config: ModelConfig) -> Path:
        """Return the folder of the pipeline, of a hub id that of the cache."""
        folder = Path(config.source)
        if folder.is_dir():
            return folder
        return Path(cls.class_of(config).download(config.source, revision=config.revision))

    @classmethod
    def class_of(cls, config: ModelConfig) -> Any:
        """Return the class of a model's pipeline: that which its index names, if there are several.

        Raises:
            ConfigError: it names another, or one that is shown no source image where there are.
        """
        if not FAMILIES[config.family].other_pipelines:
            return cls.pipeline_class
        settings = DiffusionPipeline.load_config(config.source, revision=config.revision)
        config.require_pipeline(settings.get("_class_name"))
        return getattr(diffusers, settings["_class_name"])

    @classmethod
    def assembled(cls, config: ModelConfig, parts: Mapping[str, Any], folder: Path) -> Any:
        """Return a pipeline of parts that were built from the settings in a folder."""
        return cls.pipeline_class(**parts)

    @classmethod
    def _from_settings(cls, config: ModelConfig, folder: Path, device: torch.device) -> Self:
        """Build the transformer on a device and the VAE on the meta device."""
        required = inspect.signature(cls.pipeline_class.__init__).parameters
        parts: dict[str, Any] = {
            name: None for name, part in required.items() if part.default is part.empty
        }
        parts.pop("self")
        names = parts_in(folder)
        with device:
            for name in names:
                settings = AutoModel.load_config(folder, subfolder=name)
                _check_class(config, settings["_class_name"], required["transformer"].annotation)
                parts[name] = AutoModel.from_config(settings)
        with torch.device("meta"):
            parts["vae"] = cls.vae_class.from_config(cls.vae_class.load_config(folder / "vae"))
        for name in (*names, "vae"):
            parts[name].eval().requires_grad_(False)
        return cls(cls.assembled(config, parts, folder), config, device)

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

    @torch.no_grad()
    def encode(
        self,
        prompts: list[str],
        images: Sequence[Sequence[SourceImage]] = (),
        negatives: Sequence[str | None] = (),
    ) -> Condition:
        """Embed prompts, a row each; with guidance, also what to steer away from.

        Every value has the same shape for all prompts, so that packs can join them.

        Args:
            prompts: texts.
            images: that each comes with, equally many, if the model is shown source images.
            negatives: what guidance steers away from; None, or none at all: the config's.

        Raises:
            UserError: an image is gone, changed or damaged.
        """
        height, width, _ = self.config.size
        shown = [np.stack([own.pixels(height, width) for own in of_one]) for of_one in images]
        with self.encoding():
            condition = self.embed_beside(prompts, shown)
            if self.guided:
                own = self._embed_negatives(negatives or [None] * len(prompts), shown)
                condition |= {_NEGATIVE + name: value for name, value in own.items()}
        if self.config.source_image:
            condition[_SOURCE] = self._encode_images(shown)
        return condition

    def _embed_negatives(
        self, negatives: Sequence[str | None], shown: Sequence[NDArray[np.uint8]]
    ) -> Condition:
        """Embed negative prompts, a row each; the same text once, unless images come with it."""
        if self.reads_sources:
            texts = [self.config.negative_prompt if own is None else own for own in negatives]
            return self.embed_beside(texts, shown)
        different = {text: self._embed_negative(text) for text in dict.fromkeys(negatives)}
        rows = [different[text] for text in negatives]
        return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}

    def _embed_negative(self, text: str | None) -> Condition:
        """Embed one negative prompt; that of the config, which most have, once."""
        if text is not None and text != self.config.negative_prompt:
            return self.embed([text])
        if self._negative is None:
            self._negative = self.embed([self.config.negative_prompt])
        return self._negative

    def _encode_images(self, shown: Sequence[NDArray[np.uint8]]) -> Tensor:
        """Return what the transformer is shown of source images, [B, tokens, ...] in ``dtype``."""
        vae, pixels = self.pipeline.vae, torch.from_numpy(np.stack(shown)).movedim(-1, 2)
        exact = torch.promote_types(vae.dtype, torch.float32)  # of 1 and -1 half precision has few
        with on_device([vae], self.device):
            # one image of each at a time: a VAE may take as much memory for it as samples take
            latents = [
                self.source_latents((own.to(self.device, exact) / 127.5 - 1).to(vae.dtype)).to(
                    self.dtype
                )
                for own in pixels.unbind(1)
            ]
        return torch.cat(latents, dim=1)

    @contextmanager
    def encoding(self) -> Iterator[None]:
        """Have the text encoders on the device while the body runs: once for many prompts.

        The transformer makes room for them if the config says so.
        """
        modules = [
            module
            for name, module in self.pipeline.components.items()
            if isinstance(module, nn.Module) and _part_of(name) == "text_encoders"
        ]
        with ExitStack() as stack:
            if "transformer" in self.config.offload and not self._is_encoding:
                self._is_encoding = True
                stack.callback(setattr, self, "_is_encoding", False)
                stack.enter_context(off_device(self.transformers, self.device))
            stack.enter_context(on_device(modules, self.device))
            yield

    def without_padding(self, condition: Condition) -> Condition:
        """Leave out what no row attends to: padding of all of them, and masks that mask nothing.

        Attention with a mask is no flash attention, and padding costs what tokens cost. Families
        without a mask were trained to attend to their padding: theirs stays. As much padding stays
        as lets the members of a share deal the text's tokens evenly.

        Args:
            condition: of some samples, as ``encode`` makes it.
        """
        masks = {name: value.bool() for name, value in condition.items() if name.endswith("mask")}
        if not masks:
            return condition
        rows = torch.cat(list(masks.values()))  # both halves of guidance are one forward pass
        used = rows.any(dim=0).nonzero()
        length, dealt = int(used.max()) + 1 if len(used) else 1, self.gang.context_parallel
        length += -length % dealt
        is_whole = bool(rows[:, :length].all())
        embeds = {name.removesuffix("mask") + "prompt_embeds" for name in masks}
        return {
            name: value[:, :length].contiguous() if name in embeds or name in masks else value
            for name, value in condition.items()
            if not (is_whole and name in masks)
        }

    def num_tokens(self, prompts: list[str], num_images: Sequence[int] = ()) -> list[int]:
        """Return how many tokens each prompt takes; more than ``max_sequence_length`` are cut off.

        0 where the pipeline comes without that encoder.

        Args:
            prompts: texts.
            num_images: that each comes with, which few text encoders are told; none: no image.
        """
        tokenizer = getattr(self.pipeline, self.tokenizer_name)
        if tokenizer is None:
            return [0] * len(prompts)
        texts, before = self.wrapped(prompts)
        return [len(tokens) - before for tokens in tokenizer(texts).input_ids]

    def wrapped(self, prompts: list[str]) -> tuple[list[str], int]:
        """Return what the family makes of prompts, and how many tokens before them do not count."""
        return prompts, 0

    def blank_condition(self, count: int) -> Condition:
        """Return what ``encode`` returns for prompts without padding, but for the embeddings."""
        condition = {}
        for name, shape in self.shapes_of_embeddings().items():
            make, dtype = (torch.ones, torch.int64) if name == "mask" else (torch.empty, self.dtype)
            condition[name] = make(count, *shape, dtype=dtype, device=self.device)
        if self.guided:
            condition |= {_NEGATIVE + name: value for name, value in condition.items()}
        if self.config.source_image:
            tokens, *channels = self.latent_shape
            shape = count, self.config.max_source_images * tokens, *channels
            condition[_SOURCE] = torch.empty(shape, dtype=self.dtype, device=self.device)
        return condition

    def sigmas(self, num_steps: int) -> Tensor:
        """Return the schedule, float32 [num_steps + 1], from 1 (or a little less) down to 0.

        Raises:
            ConfigError: the model's scheduler makes no such schedule of so many steps.
        """
        if self.config.shift is not None:
            return shifted_sigmas(num_steps, self.config.shift)
        sigmas = self.sigmas_of_family(num_steps)
        if not (0 < sigmas[0] <= 1 and sigmas[-1] == 0 and bool((sigmas.diff() < 0).all())):
            raise ConfigError(
                f"the scheduler of model.path {self.config.path} gives {num_steps} steps the noise "
                f"levels {[round(float(sigma), 5) for sigma in sigmas]}, which do not fall from 1 "
                "to 0; use more steps, a flow-matching scheduler, or model.shift"
            )
        return sigmas

    def expert_at(self, sigma: float) -> int:
        """Return the number of the transformer that computes at a noise level: 0 if it has one."""
        return 0

    def velocity(self, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        """Map latents [B, ...] at noise levels [B] to velocities [B, ...] in ``latent_dtype``.

        Classifier-free guidance is one forward pass of 2 B rows, and the result float32 or better.
        """
        # One conversion for rollout and training: half-precision noise levels round differently.
        sigma = sigma.to(self.device).expand(len(x))
        if not self.guided:
            return self._predicted(x, sigma, condition)
        both = {
            name: torch.cat([value if name == _SOURCE else condition[_NEGATIVE + name], value])
            for name, value in condition.items()
            if not name.startswith(_NEGATIVE)
        }
        velocity = self._predicted(torch.cat([x, x]), torch.cat([sigma, sigma]), both)
        negative, positive = velocity.chunk(2)
        return self.guide(positive, negative)

    def _predicted(self, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        """Return one forward pass in ``latent_dtype``, whoever holds the blocks."""
        if self.stage is None:
            return self.predict(x, sigma, condition).to(self.latent_dtype)

        def predict(rows: slice) -> Tensor:
            own = {name: value[rows] for name, value in condition.items()}
            return self.predict(x[rows], sigma[rows], own).to(self.latent_dtype)

        trained = [own for own in self.transformer.parameters() if own.requires_grad]
        return self.stage.velocity(predict, x.to(self.latent_dtype), trained)

    def guide(self, positive: Tensor, negative: Tensor) -> Tensor:
        """Return the guided velocity [B, ...]: w of Imagen (arXiv:2205.11487), eq. 2."""
        return negative + self.config.guidance_scale * (positive - negative)

    @torch.no_grad()
    def decode(self, x: Tensor) -> Tensor:
        """Map clean latents [B, ...] to images [B, 3, H, W] or videos [B, F, 3, H, W] in [0, 1].

        Where the VAE gave NaN or Inf there is NaN: whoever judges or keeps them has to look.
        """
        vae = self.pipeline.vae
        latents = self.vae_latents(x).to(vae.dtype)
        with on_device([vae], self.device):
            pixels: Tensor = vae.decode(latents, return_dict=False)[0].float()
        pixels = (pixels / 2 + 0.5).masked_fill(pixels.isinf(), torch.nan).clamp(0, 1)
        if pixels.ndim == 4:
            return pixels
        frames = pixels.transpose(1, 2)  # [B, 3, F, H, W] -> [B, F, 3, H, W]
        return frames[:, 0] if self.config.num_frames == 1 else frames.contiguous()

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
    def embed(self, prompts: list[str]) -> Condition:
        """Embed prompts, of any number, in shapes that do not depend on their words."""

    def embed_beside(self, prompts: list[str], shown: Sequence[NDArray[np.uint8]]) -> Condition:
        """Embed prompts beside the images [n, H, W, 3] that each comes with, if they do."""
        return self.embed(prompts)

    def with_source(self, x: Tensor, condition: Condition) -> Tensor:
        """Return latents [B, tokens, ...] in ``dtype``, behind them those of all source images.

        Without such images there are no more than in ``x``.
        """
        shown = x.to(self.dtype)
        if _SOURCE in condition:
            shown = torch.cat([shown, condition[_SOURCE].to(self.dtype)], dim=1)
        return shown

    def source_latents(self, images: Tensor) -> Tensor:
        """Return what the transformer is shown of images [B, 3, H, W] in [-1, 1].

        It has the shape of latents [B, ...], if the family is shown any.
        """
        raise TypeError(f"{type(self).__name__} is shown no source image")

    @abstractmethod
    def shapes_of_embeddings(self) -> dict[str, tuple[int, ...]]:
        """Return the shape that each value of ``embed`` has for one prompt."""

    @abstractmethod
    def sigmas_of_family(self, num_steps: int) -> Tensor:
        """Return the sigmas that the family's pipeline would use, float32 [num_steps + 1]."""

    @abstractmethod
    def predict(self, x: Tensor, sigma: Tensor, condition: Condition) -> Tensor:
        """Return one forward pass: velocities [B, ...] of latents [B, ...] at noise levels [B]."""

    @abstractmethod
    def vae_latents(self, x: Tensor) -> Tensor:
        """Return what the VAE decodes: latents unpacked and at its own scale."""


def _part_of(component: str) -> Part:
    """Return the part that a component of a pipeline belongs to."""
    if component.startswith("text_encoder"):
        return "text_encoders"
    return "vae" if component == "vae" else "transformer"


def _check_class(config: ModelConfig, found: str, annotation: Any) -> None:
    """Check that a transformer is of the class, or the optional class, that a pipeline takes."""
    wanted = [
        kind.__name__ for kind in (annotation, *get_args(annotation)) if inspect.isclass(kind)
    ]
    if found not in wanted:
        raise ConfigError(
            f"model.path {config.path} holds a {found}, but model.family {config.family!r} needs a "
            f"{wanted[0]}"
        )


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Let what is made in the body have a dtype where nothing else is said."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def video_latent_shape(
    policy: PipelinePolicy, *, channels: int, spatial: int, temporal: int
) -> tuple[int, int, int, int]:
    """Return [C, F, H, W] of a video's latent; the VAE keeps the first frame for itself.

    Args:
        policy: with the config's sizes.
        channels: of the latent.
        spatial: pixels per latent pixel.
        temporal: frames per latent frame, after the first.

    Raises:
        ConfigError: the frames do not fill those of the latent.
    """
    config = policy.config
    if (config.num_frames - 1) % temporal:
        raise ConfigError(
            f"model.num_frames is {config.num_frames}; this {config.family} model needs "
            f"1 more than a multiple of {temporal}."
        )
    frames = (config.num_frames - 1) // temporal + 1
    return channels, frames, config.height // spatial, config.width // spatial


def unscaled(latents: Tensor, vae_config: Any) -> Tensor:
    """Return latents [B, C, ...] at the scale and around the shift that the VAE has for all."""
    return latents / float(vae_config.scaling_factor) + float(vae_config.shift_factor or 0)


def with_latent_statistics(latents: Tensor, vae_config: Any) -> Tensor:
    """Return latents [B, C, F, H, W] with the mean and deviation that the VAE has per channel."""
    mean, std = _latent_statistics(latents, vae_config)
    return latents * std + mean


def without_latent_statistics(latents: Tensor, vae_config: Any) -> Tensor:
    """Return latents [B, C, F, H, W] of the VAE without the mean and deviation that it has."""
    mean, std = _latent_statistics(latents, vae_config)
    return (latents - mean) / std


def _latent_statistics(latents: Tensor, vae_config: Any) -> Iterator[Tensor]:
    return (
        torch.tensor(values, device=latents.device, dtype=latents.dtype).view(1, -1, 1, 1, 1)
        for values in (vae_config.latents_mean, vae_config.latents_std)
    )
