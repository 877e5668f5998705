"""Model families: a row each, which tells all that can be known without torch.

To add a family is to write its adapter, a module of `digen_core.models.families`, and to add its
row here; nothing else in digen knows families by name, but for what other programs call their
layers (`digen_core.checkpoints.slots`).
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

Settings = Mapping[str, Any]
"""What stands in the config.json of a part of a diffusers pipeline."""


class Defaults(NamedTuple):
    """What a model is used with where a config does not say otherwise."""

    height: int
    width: int
    num_frames: int
    max_sequence_length: int
    guidance_scale: float
    num_inference_steps: int  # of evaluations


_TWO_KINDS: Final = {
    "transformer_blocks": "num_layers",
    "single_transformer_blocks": "num_single_layers",
}
"""Lists of blocks of a transformer that has blocks of two streams and then of one."""

_QWEN_EDITORS: Final = ("QwenImageEditPipeline", "QwenImageEditPlusPipeline")

_PICTURES: Final = ("<|image_pad|>", "<|video_pad|>")
"""What stands for a picture and a video to Qwen's text encoders."""

MASKED: Final = ("native", "cudnn", "efficient", "math")
"""Kernels that take a mask."""


class Family(NamedTuple):
    """A model family."""

    adapter: str  # module:class, in digen_core.models.families
    pipeline: str  # `_class_name` of its model_index.json
    defaults: Defaults
    side: Callable[[Settings, Settings], int]
    """What heights and widths are multiples of, in pixels, from the configs of VAE and transformer;
    as diffusers' pipeline computes it, with its defaults."""

    text_parameters: float = 0.0
    """Parameters of the published pipelines' text encoders together, where only that is known."""

    other_text_parameters: Callable[[Settings], float | None] = lambda transformer: None
    """The same of pipelines that come with other encoders, from the transformer's config."""

    other_pipelines: tuple[str, ...] = ()
    """More that its adapter takes."""

    editors: tuple[str, ...] = ()
    """Those of its pipelines that are shown a source image."""

    only_edits: tuple[str, ...] = ()
    """Those of them that take no prompt without one."""

    edits_if: str = ""
    """What the index of a plain pipeline says is true if that is shown a source image, too."""

    shown_several: tuple[str, ...] = ()
    """Those of them that are shown several of a prompt."""

    most_images: int = 10
    """Images of a prompt that they are shown, at most."""

    fewest_images: Callable[[Settings], int] = lambda transformer: 1
    """Images of a prompt that one of its models is shown, at least, from the transformer's config,
    if it is shown any."""

    picture_marks: tuple[str, ...] = ()
    """What stands for pictures and videos where its text encoder is shown them: no text has it."""

    reads_marks: bool = False
    """Whether they stand for some where no pictures come with a text, too."""

    kinds: tuple[str, ...] = ()
    """Kinds of its models that differ in more than size, the plain one aside, by the names that
    ``digen make-tiny`` takes. A model's folder says which kind it is."""

    most_tokens: int = 512
    """Tokens of a prompt that its text encoder was trained with, at most."""

    told_ends: str = ""
    """The key of its transformer's config that says whether it is told the noise level at which a
    step ends, too, as some models of few steps are."""

    loads_lora: bool = True
    """Whether its stock pipelines load LoRAs; else their transformer does."""

    makes_videos: bool = False
    frames: Callable[[Settings], int] = lambda vae: 4
    """Frames of a latent frame after the first, from the VAE's config, if it makes videos."""
    usual_frames: int = 4
    """The same of its published models."""

    idle: str = ""
    """What is in the names of parameters that its velocities depend on in no way, a regular
    expression: they are held and exported, and neither trained nor pushed."""

    attention: tuple[str, ...] = (*MASKED, "native_flash", "flash")
    """Kernels of attention that a model of it can have, by ``model.attention``."""

    deals_tokens: bool = True
    """Whether several GPUs can compute a sample together, each some of its tokens."""

    deals_text: bool = True
    """Whether they deal the tokens of its text, too."""

    deals_any_number: bool = False
    """Whether they deal any number of tokens: zeros follow the last ones."""

    padded_to: int = 0
    """Of how many tokens it makes a multiple of an image and of each text by itself, if it does."""

    heads: str = "num_attention_heads"
    """The key of its transformer's config that says how many heads attention has."""

    blocks: Mapping[str, str] = {"transformer_blocks": "num_layers"}
    """The transformer's lists of blocks, in the order of the forward pass, and the key of its
    config that says how many there are."""

    streams: tuple[str, ...] = ("hidden_states", "encoder_hidden_states")
    """What a block is given by the one before, as its parameters are called; None is nothing."""

    @property
    def masks_text(self) -> bool:
        """Whether attention has a mask where a text is padded, which flash attention takes not."""
        return self.attention == MASKED

    def named_for(self, *, source_image: bool) -> str | None:
        """Return the pipeline that is to be named where a model is loaded.

        None: its index names it. Of a model for texts and images that names the one for texts.
        """
        return self.editors[0] if source_image and self.edits_if else None

    def num_blocks(self, transformer: Settings) -> int:
        """Return the blocks of a transformer, from its config."""
        return sum(int(transformer[key]) for key in self.blocks.values())

    def num_text_parameters(self, transformer: Settings) -> float:
        """Return the usual parameters of the text encoders, from a transformer's config."""
        return self.other_text_parameters(transformer) or self.text_parameters


def _flux2_text_parameters(transformer: Settings) -> float | None:
    """Return what the width says: of Qwen3-8B, and Mistral Small 3.2; else it is Qwen3-4B."""
    return {12288: 8.191e9, 15360: 24.011e9}.get(transformer["joint_attention_dim"])


def _ltx2_text_parameters(transformer: Settings) -> float | None:
    """Return those of LTX-2.5, Gemma-4-12B with its connectors, or 2.3, Gemma-3-12B with its."""
    if transformer.get("use_keyframes_abs_pos_embedding"):
        return 15.132e9
    return 15.360e9 if transformer.get("gated_attn") else None


def _ltx2_pixels(vae: Settings) -> int:
    """Return the pixels in height and width of a latent pixel of LTX-2."""
    own = vae.get("spatial_compression_ratio")
    return int(own or vae["patch_size"] * 2 ** sum(vae["spatio_temporal_scaling"]))


def _ltx2_frames(vae: Settings) -> int:
    own = vae.get("temporal_compression_ratio")
    return int(own or vae["patch_size_t"] * 2 ** sum(vae["spatio_temporal_scaling"]))


def _pixels(vae: Settings) -> int:
    """Return the pixels in height and width of a latent pixel."""
    return int(2 ** (len(vae["block_out_channels"]) - 1))


FAMILIES: Final[dict[str, Family]] = {
    "flux": Family(
        "flux:FluxPolicy",
        "FluxPipeline",
        Defaults(1024, 1024, 1, 512, 3.5, 28),
        lambda vae, transformer: 2 * _pixels(vae),
        4.885e9,  # T5-XXL's encoder, CLIP-L
        other_pipelines=("FluxKontextPipeline",),
        editors=("FluxKontextPipeline",),
        kinds=("kontext",),
        blocks=_TWO_KINDS,
    ),
    "sd3": Family(
        "sd3:SD3Policy",
        "StableDiffusion3Pipeline",
        Defaults(1024, 1024, 1, 256, 7.0, 28),
        lambda vae, transformer: int(transformer["patch_size"] * _pixels(vae)),
        5.580e9,  # T5-XXL's encoder, CLIP-L, CLIP-bigG
        attention=("native",),  # its processor in diffusers knows no other
        deals_tokens=False,
    ),
    "qwen_image": Family(
        "qwen_image:QwenImagePolicy",
        "QwenImagePipeline",
        Defaults(1024, 1024, 1, 512, 4.0, 50),
        lambda vae, transformer: int(2 * 2 ** len(vae["temperal_downsample"])),
        8.292e9,  # Qwen2.5-VL-7B
        other_pipelines=_QWEN_EDITORS,
        editors=_QWEN_EDITORS,
        only_edits=_QWEN_EDITORS,
        shown_several=_QWEN_EDITORS[1:],
        picture_marks=_PICTURES,
        kinds=("edit", "edit-plus"),
        attention=MASKED,
    ),
    "qwen_image21": Family(
        "qwen_image21:QwenImage21Policy",
        "QwenImage21Pipeline",
        Defaults(1024, 1024, 1, 512, 1.0, 40),
        lambda vae, transformer: 2 * int(vae.get("scale_factor_spatial", 16)),
        8.767e9,  # Qwen3-VL-8B
        editors=("QwenImage21Pipeline",),
        shown_several=("QwenImage21Pipeline",),
        picture_marks=_PICTURES,
        reads_marks=True,
        deals_any_number=True,
        attention=MASKED,
        streams=("hidden_states",),
    ),
    "z_image": Family(
        "z_image:ZImagePolicy",
        "ZImagePipeline",
        Defaults(1024, 1024, 1, 512, 5.0, 50),
        lambda vae, transformer: 2 * _pixels(vae),
        4.022e9,  # Qwen3-4B without its head
        attention=MASKED,
        padded_to=32,
        heads="n_heads",
        blocks={"layers": "n_layers"},
        streams=("x",),
    ),
    "sana": Family(
        "sana:SanaPolicy",
        "SanaPipeline",
        Defaults(1024, 1024, 1, 300, 4.5, 20),
        lambda vae, transformer: int(
            transformer.get("patch_size", 1) * 2 ** (len(vae["encoder_block_out_channels"]) - 1)
        ),
        2.614e9,  # Gemma-2-2B without its head
        attention=("native",),  # its processors in diffusers know no other
        deals_tokens=False,
        streams=("hidden_states",),
    ),
    "wan": Family(
        "wan:WanPolicy",
        "WanPipeline",
        Defaults(240, 416, 33, 512, 5.0, 50),
        lambda vae, transformer: int(
            transformer["patch_size"][1] * vae.get("scale_factor_spatial", 8)
        ),
        5.681e9,  # UMT5-XXL's encoder
        other_pipelines=("WanImageToVideoPipeline",),
        editors=("WanImageToVideoPipeline",),
        only_edits=("WanImageToVideoPipeline",),
        edits_if="expand_timesteps",
        shown_several=("WanImageToVideoPipeline",),
        most_images=2,  # what a video begins with, and what it ends with
        fewest_images=lambda transformer: 2 if transformer.get("pos_embed_seq_len") else 1,
        kinds=("ti2v", "a14b", "i2v", "flf2v", "i2v-a14b"),  # but for i2v and flf2v, of Wan 2.2
        makes_videos=True,
        deals_text=False,  # it is in cross-attention
        blocks={"blocks": "num_layers"},
        streams=("hidden_states",),
    ),
    "hunyuan_video": Family(
        "hunyuan_video:HunyuanVideoPolicy",
        "HunyuanVideoPipeline",
        Defaults(480, 480, 53, 256, 6.0, 50),
        lambda vae, transformer: int(
            transformer["patch_size"] * vae.get("spatial_compression_ratio", 8)
        ),
        7.628e9,  # Llama-3-8B without its head, CLIP-L
        makes_videos=True,
        attention=MASKED,
        blocks=_TWO_KINDS,
    ),
    "ltx2": Family(
        "ltx2:LTX2Policy",
        "LTX2Pipeline",
        Defaults(256, 384, 49, 1024, 3.0, 30),
        lambda vae, transformer: int(transformer["patch_size"] * _ltx2_pixels(vae)),
        13.619e9,  # Gemma-3-12B, connectors
        other_text_parameters=_ltx2_text_parameters,
        kinds=("2.3", "2.5"),
        most_tokens=1024,
        makes_videos=True,
        frames=_ltx2_frames,
        usual_frames=8,
        # of the stream of audio, between the two, and of frames that a video is given
        idle="audio|a2v|av_cross|keyframes",
        deals_text=False,  # it is in cross-attention
        streams=("hidden_states",),
    ),
    "hunyuan_video15": Family(
        "hunyuan_video15:HunyuanVideo15Policy",
        "HunyuanVideo15Pipeline",
        Defaults(480, 480, 53, 1000, 6.0, 50),
        lambda vae, transformer: int(
            transformer["patch_size"] * vae.get("spatial_compression_ratio", 16)
        ),
        7.289e9,  # Qwen2.5-VL-7B without its eyes and head, ByT5-small's encoder
        other_pipelines=("HunyuanVideo15ImageToVideoPipeline",),
        editors=("HunyuanVideo15ImageToVideoPipeline",),
        only_edits=("HunyuanVideo15ImageToVideoPipeline",),
        kinds=("i2v", "i2v-distilled"),
        most_tokens=1000,
        told_ends="use_meanflow",
        loads_lora=False,
        makes_videos=True,
        attention=MASKED,
    ),
    "flux2": Family(
        "flux2:Flux2Policy",
        "Flux2KleinPipeline",
        Defaults(1024, 1024, 1, 512, 4.0, 50),
        lambda vae, transformer: 2 * _pixels(vae),
        4.022e9,  # Qwen3-4B, of klein 4B
        other_text_parameters=_flux2_text_parameters,
        other_pipelines=("Flux2Pipeline",),
        editors=("Flux2KleinPipeline", "Flux2Pipeline"),
        shown_several=("Flux2KleinPipeline", "Flux2Pipeline"),
        # Not cuDNN's: its blocks of one stream give attention gradients with gaps, in a processor
        # that `digen_core.models.attention.make_gradients_dense` cannot reach into.
        attention=("native", "efficient", "math", "native_flash", "flash"),
        blocks=_TWO_KINDS,
    ),
}
"""Every family by the ``model.family`` that chooses it.

Defaults are those of the ``__call__`` of each family's pipeline in diffusers, and of images the
size of the published transformers' 128 x 128 latents. The pipelines' videos (Wan 480 x 832 and 81
frames, HunyuanVideo 720 x 1280 and 129) are too large to be trained on in numbers: theirs are the
sizes of published RL, FlowGRPO's for Wan (arXiv:2505.05470, github yifan123/flow_grpo) and
DanceGRPO's for HunyuanVideo (arXiv:2505.07818, github XueZeyue/DanceGRPO), which HunyuanVideo 1.5,
whose pipeline says 121 frames, has as well. Its guidance is that of its published guiders. LTX-2's
published RL has its pipeline's own 512 x 768 and 121 frames (github X-GenGroup/Flow-Factory): here
half the sides and two seconds. Qwen-Image 2.1's pipeline cuts no prompt, so its length is that of
Qwen-Image's.
"""

if TYPE_CHECKING:
    FamilyName = str
else:
    FamilyName = Literal[*FAMILIES]
"""A key of ``FAMILIES``."""

VIDEO_FAMILIES: Final = tuple(name for name, family in FAMILIES.items() if family.makes_videos)


def mark_in(text: str, family: Family) -> str:
    """Return what is wrong with words beside images that have a mark of one in them, or nothing."""
    for mark in family.picture_marks:
        if mark in text:
            return f"has {mark} in it, where the text encoder is shown a picture; leave it out"
    return ""
