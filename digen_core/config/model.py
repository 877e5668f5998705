"""The config table ``model``: what is post-trained.

Importing this module must not import torch.
"""

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from digen_core.config.cuts import CutConfig
from digen_core.config.families import FAMILIES, Defaults, FamilyName
from digen_core.config.rollout import check_levels
from digen_core.config.size import FRAMES, SIDE, Size, check_frames, check_sizes, check_tokens
from digen_core.errors import ConfigError
from digen_core.inputs.shipped import MaybeShipped, located
from digen_core.strict import AtMost, PathText, Strict

TinySize = Literal["tiny", "medium"]
"""How large a pipeline is that ``digen make-tiny`` makes: a key of its sizes."""

Attention = Literal["native", "native_flash", "cudnn", "efficient", "math", "flash"]
"""A kernel of scaled dot-product attention."""

GuidanceBelow = tuple[Annotated[float, Field(gt=0, lt=1)], Annotated[float, Field(ge=0)]]
"""A noise level, and the scale of guidance below it."""

TrainedExperts = Literal["both", "high", "low"]
"""Which of a model's two experts are trained."""

MAX_TOKENS: Final = max(family.most_tokens for family in FAMILIES.values())
"""Of a prompt, that the text encoders of any family were trained with."""

EMBEDDED: Final = "digen:models/shapes"
"""The embedded model, a tiny FLUX."""

EMBEDDED_EDITOR: Final = "digen:models/shapes_edit"
"""The embedded model that edits images, a tiny FLUX.1 Kontext."""

EMBEDDED_DEFAULTS: Final = Defaults(32, 32, 1, 12, 3.5, 8)
"""What the embedded models were trained with."""

_SHIFT: Final = AtMost(1000, "the noise levels of several steps would be the same")

MAX_SOURCE_IMAGES: Final = max(family.most_images for family in FAMILIES.values())
"""Most source images of a prompt; FLUX.2-dev is published for so many."""


def default_of(family: FamilyName, path: str) -> Defaults:
    """Return what a model is used with where a config does not say otherwise."""
    is_embedded = path in (EMBEDDED, EMBEDDED_EDITOR)
    return EMBEDDED_DEFAULTS if is_embedded else FAMILIES[family].defaults


def _of_the_model(name: str) -> Callable[[dict[str, Any]], Any]:
    """Return what makes the default of a field from the family and the path, which come before."""
    return lambda fields: getattr(default_of(fields["family"], fields["path"]), name)


class AdapterConfig(Strict):
    """A LoRA that is there before the run, as diffusers saves and loads it."""

    path: PathText = Field(min_length=1)
    """Folder, safetensors file or hub id."""

    weight: float = 1.0
    """Factor of what it adds."""

    file: PathText | None = None
    """Name of the safetensors file, if the folder has several."""

    revision: str | None = None
    """Hub revision; null is the default branch."""

    expert: Literal["high", "low"] = "high"
    """Of a model of two experts: the one that it is for."""


class ModelConfig(Strict):
    """Which pipeline is post-trained, and in what precision."""

    family: FamilyName = "flux"
    """Model family: FLUX.1, Stable Diffusion 3 and 3.5, Qwen-Image, Qwen-Image 2.1, Z-Image, Sana,
    Wan 2.1 and 2.2, HunyuanVideo, HunyuanVideo 1.5, LTX-2, 2.3 and 2.5, or FLUX.2."""

    path: MaybeShipped = Field(EMBEDDED, min_length=1)
    """Diffusers folder or hub id, loaded with from_pretrained; digen:models/shapes is the embedded
    model, wherever digen is installed, and digen:models/shapes_edit the one that edits."""

    revision: str | None = None
    """Hub revision; null is the default branch."""

    adapters: dict[str, AdapterConfig] = Field(default_factory=dict)
    """LoRAs to start from, a table for each, by a name of yours. They are folded into the weights
    when the model is loaded, in this order; what is trained, and exported, comes on top of them."""

    dtype: Literal["float64", "float32", "bfloat16", "float16"] = "float32"
    """Precision of weights and activations. Latents and log-probs stay float32 or better."""

    device: str = "auto"
    """Torch device of the workers: auto takes cuda where a worker has one, else cpu."""

    compile: bool | Literal["max-autotune-no-cudagraphs"] = False
    """torch.compile for the transformer's blocks: true, or the mode that tries several kernels.
    Workers need a C++ compiler (CPU) or a C compiler (CUDA), and compile before the first
    iteration and in it. In half precision compiled kernels round as uncompiled ones do."""

    attention: Attention = "native"
    """Kernel of the transformer's attention, the same on all workers. native: torch's choice,
    never cuDNN's; native_flash, cudnn, efficient, math: that one of torch's; flash: of the package
    flash-attn 2. sd3 and sana take native only, flux2 no cudnn, and qwen_image, qwen_image21,
    z_image, hunyuan_video and hunyuan_video15, which mask padded text, no flash."""

    cuts: tuple[CutConfig, ...] = ()
    """Blocks before which what one block gives the next is coded, in ascending order, for stages
    with slow links between them: a part of the model, the same on all workers, with stages or not.
    See docs/clusters.md."""

    offload: tuple[Literal["text_encoders", "vae", "transformer"], ...] = ("text_encoders",)
    """What waits in the host's memory: the text encoders while no prompts are embedded, the VAE
    while no samples are decoded, the transformer while prompts are embedded."""

    vae_tiling: bool = False
    """Decode in overlapping tiles: memory of a tile in place of a whole sample, and pixels that
    differ a little where tiles are blended."""

    vae_slicing: bool = False
    """Decode sample after sample, with the same pixels."""

    height: Annotated[int, SIDE] = Field(default_factory=_of_the_model("height"), ge=8)
    """Image height in pixels; what it must be a multiple of depends on the model, often 16 (of
    Wan2.2-TI2V-5B 32)."""

    width: Annotated[int, SIDE] = Field(default_factory=_of_the_model("width"), ge=8)
    """Image width in pixels, likewise."""

    num_frames: Annotated[int, FRAMES] = Field(default_factory=_of_the_model("num_frames"), ge=1)
    """Frames of a video: 1 makes images; more, which are 1 + a multiple of 4 (ltx2: of 8),
    take a video family (wan, hunyuan_video, hunyuan_video15, ltx2)."""

    sizes: Annotated[tuple[Size, ...], Field(max_length=1000)] = ()
    """[[height, width, frames], ...] of training samples, if they are to be of several sizes: the
    groups take them in turn. Evaluations keep to height, width and num_frames."""

    max_sequence_length: int = Field(
        default_factory=_of_the_model("max_sequence_length"), ge=1, le=MAX_TOKENS
    )
    """Tokens a prompt is padded or cut to (by T5, UMT5, Llama, Qwen2.5-VL, Qwen3, Qwen3-VL, Mistral
    or Gemma, whichever the family has; CLIP always takes 77 or its own); of flux2 and qwen_image21
    with the template round it. At most 512, of hunyuan_video15 1000, and of ltx2 1024, in multiples
    of its connectors' registers, 128."""

    guidance_scale: float = Field(default_factory=_of_the_model("guidance_scale"), ge=0)
    """flux, hunyuan_video, FLUX.2-dev: embedded guidance, an input of models distilled with it
    (FLUX.1-dev 3.5, HunyuanVideo 6, FLUX.2-dev 4), ignored by others. sd3, wan, hunyuan_video15,
    ltx2, qwen_image and the base models of FLUX.2-klein: classifier-free guidance (SD3.5 4.5,
    Wan 5, HunyuanVideo 1.5 6, LTX-2 3, klein 4, Qwen-Image 4, which also keeps the velocity's
    norm); it doubles the compute, and at 1 or less there is none. qwen_image21:
    classifier-free, and used with 1, which is none. FLUX.2-klein that is distilled ignores it.
    z_image: classifier-free too, but counted from 0 as its pipeline does (Z-Image 4): 4 there is 5
    elsewhere, and Z-Image-Turbo takes 0, which is none."""

    guidance_scale_2: float | None = Field(None, ge=0)
    """Of a model of two experts (Wan2.2-T2V-A14B, which is used with 4 and 3): the scale of the one
    for low noise, where guidance_scale is above 1. Null: the same."""

    guidance_schedule: Annotated[tuple[GuidanceBelow, ...], Field(max_length=1000)] = ()
    """[[noise level, scale], ...], noise levels falling: below each of them that is the scale, and
    guidance_scale above the first. With [[0.9, 4.0], [0.3, 1.0]] and a guidance_scale of 1 there is
    classifier-free guidance between 0.3 and 0.9 only, and steps without cost half."""

    train_guidance_scale: float | None = Field(None, ge=0)
    """The scale that velocities have in training, of the trained policy, what generated and, where
    it has none of its own, the reference policy; other keys are then of samples and evaluations.
    It takes an algorithm on clean latents: diffusion_nft, awm, dgpo or dpo. DGPO's published runs
    sample with 4.5 and train with 1. Null: as samples are generated."""

    reference_guidance_scale: float | None = Field(None, ge=0)
    """The scale of the reference policy's velocities, at all noise levels (DGPO's published runs
    without guidance: 4.5). It takes an algorithm that asks it. Null: as in training."""

    train_experts: TrainedExperts = "both"
    """Of a model of two experts: both are trained, or the one for high or low noise only. Then the
    pairs of the other one's noise levels teach nothing."""

    source_image: bool = False
    """Whether prompts come with an image that is to be edited, or that a video begins with, which
    the model is shown: true where prompts.image_column is set. It takes a FluxKontextPipeline
    (flux), a FLUX.2 (flux2), a Qwen-Image-Edit (qwen_image), Qwen-Image 2.1 (qwen_image21), a Wan
    that is made for it: I2V of 2.1 and 2.2, FLF2V, TI2V-5B (wan), or an I2V of HunyuanVideo 1.5
    (hunyuan_video15). Images are scaled to cover the samples' size and cut at their edges."""

    max_source_images: int = Field(1, ge=1, le=MAX_SOURCE_IMAGES)
    """Most source images that a prompt comes with: memory and plans are counted of so many. More
    than 1 takes a FLUX.2 (flux2), a Qwen-Image-Edit-2509 or 2511 (qwen_image) or Qwen-Image 2.1
    (qwen_image21); with 2 a Wan 2.2 I2V-A14B or Wan 2.1 FLF2V (wan) is shown what a video begins
    with, and what it ends with."""

    negative_prompt: str = ""
    """What classifier-free guidance steers away from (Qwen-Image is used with a single space),
    where prompts.negative_column says nothing else; models without it ignore it."""

    shift: Annotated[float, Field(ge=1e-3), _SHIFT] | None = None
    """Replace the family's own schedule by sigma = shift u / (1 + (shift - 1) u), u falling evenly
    from 1 to 0 (DanceGRPO: 3, HunyuanVideo 5). Null: the family's own."""

    sigmas: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], Field(max_length=1000)] = ()
    """The noise level at which each step begins, falling from 1 (or a little less), as no scheduler
    shifts them: those of a model that is distilled to few, such as LTX-2.3's. Trajectories and
    evaluations then have so many steps. Empty: the family's own schedule, or that of shift."""

    @property
    def source(self) -> str:
        """Where from_pretrained finds the model: ``path``, or the folder of a shipped one."""
        return located(self.path)

    @property
    def num_source_images(self) -> int:
        """The most source images that a prompt comes with; 0 where it is text only."""
        return self.max_source_images if self.source_image else 0

    @property
    def defaults(self) -> Defaults:
        """What the model is used with where the config does not say otherwise."""
        return default_of(self.family, self.path)

    @property
    def size(self) -> Size:
        """What samples have where ``sizes`` does not say otherwise."""
        return self.height, self.width, self.num_frames

    @property
    def guidance_scales(self) -> tuple[float, ...]:
        """The scales that samples are generated with, by noise level."""
        return self.guidance_scale, *(scale for _, scale in self.guidance_schedule)

    @property
    def in_training(self) -> "ModelConfig":
        """The config of the same model with the guidance that it is trained with."""
        return self._guided_by(self.train_guidance_scale)

    @property
    def as_reference(self) -> "ModelConfig":
        """The config of the same model with the guidance that the reference policy has."""
        return self.in_training._guided_by(self.reference_guidance_scale)

    def _guided_by(self, scale: float | None) -> "ModelConfig":
        """Return the config with another scale at all noise levels; None: as it is."""
        if scale is None:
            return self
        alone = {"guidance_scale_2": None, "guidance_schedule": (), "train_guidance_scale": None}
        return self.model_copy(update={"guidance_scale": scale, **alone})

    def guidance_at(self, sigma: float) -> float | None:
        """Return the scale that ``guidance_schedule`` has at a noise level; None: it has none."""
        number = self.num_levels_above(sigma)
        return self.guidance_schedule[number - 1][1] if number else None

    def num_levels_above(self, sigma: float) -> int:
        """Return how many levels of the schedule, rounded as steps' own, a noise level is below."""
        return sum(sigma < float(np.float32(level)) for level, _ in self.guidance_schedule)

    def require_pipeline(self, index: object) -> None:
        """Check which pipeline a model is, as its index says.

        Raises:
            ConfigError: it is none of the family's, or is shown no source image where there are.
        """
        family, about = FAMILIES[self.family], index if isinstance(index, Mapping) else {}
        found = about.get("_class_name")
        wanted = (family.pipeline, *family.other_pipelines)
        what = f"model.family {self.family!r} needs"
        shows_one = bool(about.get(family.edits_if))
        if found in wanted and self.num_source_images > 1:
            wanted, what = family.shown_several, "prompts with several source images need"
            if shows_one and found in wanted:
                raise ConfigError(
                    f"model.path {self.path} is a model with {family.edits_if}, which is shown one "
                    f"source image, but model.max_source_images is {self.max_source_images}; use 1"
                )
        elif found in wanted and self.source_image and not shows_one:
            wanted, what = family.editors, "prompts with source images need"
        if found in family.only_edits and not self.source_image:
            raise ConfigError(
                f"model.path {self.path} holds a {found}, which is shown source images, but the "
                "prompts come without; set prompts.image_column, or use a model that takes texts"
            )
        if found not in wanted:
            raise ConfigError(
                f"model.path {self.path} holds a {found if isinstance(found, str) else None}, but "
                f"{what} a {' or a '.join(wanted)}; give a folder saved from one"
            )

    def at_size(self, size: Size) -> "ModelConfig":
        """Return the config of the same model for one other size."""
        height, width, frames = size
        changes = {"height": height, "width": width, "num_frames": frames, "sizes": ()}
        return self.model_copy(update=changes)

    def with_images(self, number: int) -> "ModelConfig":
        """Return the config of the same model for prompts with at most so many source images."""
        return self.model_copy(update={"max_source_images": number})

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_frames("model.num_frames", self.num_frames, self.family)
        check_tokens("model.height, width and num_frames", self.size)
        self._check_family()
        self._check_source_image()
        self._check_guidance()
        check_levels(self.sigmas, self.shift)
        blocks = [cut.block for cut in self.cuts]
        if blocks != sorted(set(blocks)):
            raise ValueError(f"model.cuts has blocks {blocks}; name each once, in ascending order.")
        if len(set(self.offload)) < len(self.offload):
            raise ValueError(f"model.offload is {list(self.offload)}; name each part once.")
        for name in self.adapters:
            if not re.fullmatch("[A-Za-z0-9_-]+", name):
                raise ValueError(
                    f"model.adapters has the name {name!r}, which is not made of letters, digits, "
                    "_ and - only; rename it."
                )
        check_sizes(self.sizes, self.family)
        return self

    def _check_guidance(self) -> None:
        levels = [level for level, _ in self.guidance_schedule]
        if levels != sorted(set(levels), reverse=True):
            raise ValueError(
                f"model.guidance_schedule has the noise levels {levels}; name each once, in "
                "descending order."
            )
        if levels and self.guidance_scale_2 is not None:
            raise ValueError(
                f"model.guidance_scale_2 is {self.guidance_scale_2}, and model.guidance_schedule "
                "says what the scale is at low noise, too; leave one of them out."
            )

    def _check_family(self) -> None:
        if self.attention not in (allowed := FAMILIES[self.family].attention):
            raise ValueError(
                f"model.attention is {self.attention!r}, but {self.family} takes "
                f"{', '.join(allowed)}; use one of them."
            )
        if self.max_sequence_length > (most := FAMILIES[self.family].most_tokens):
            raise ValueError(
                f"model.max_sequence_length is {self.max_sequence_length}, but {self.family} takes "
                f"at most {most}; use {most} or less."
            )

    def _check_source_image(self) -> None:
        if self.source_image and not FAMILIES[self.family].editors:
            editors = [name for name, family in FAMILIES.items() if family.editors]
            raise ValueError(
                f"model.family is {self.family!r}, which is shown no source image; use one of "
                f"{', '.join(editors)}, or prompts without prompts.image_column."
            )
        if self.num_source_images > 1 and not FAMILIES[self.family].shown_several:
            several = [name for name, family in FAMILIES.items() if family.shown_several]
            raise ValueError(
                f"model.max_source_images is {self.max_source_images}, but {self.family} is shown "
                f"one source image; use 1, or one of {', '.join(several)}."
            )
        if self.num_source_images > (most := FAMILIES[self.family].most_images):
            raise ValueError(
                f"model.max_source_images is {self.max_source_images}, but {self.family} is shown "
                f"{most} source images at most; use {most} or less."
            )
