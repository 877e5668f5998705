"""Load what a run trained into the pipeline of its base model; a copy of this file goes with it.

It runs where digen is not installed. `tasks.tracking.model` writes the config: what is loaded.
"""

import inspect
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any
from unittest.mock import patch

import diffusers
import numpy as np
import torch
from diffusers import AutoModel, FlowMatchEulerDiscreteScheduler
from diffusers.loaders import HunyuanVideoLoraLoaderMixin
from numpy.typing import NDArray
from PIL import ImageOps
from PIL.Image import Image, Resampling, alpha_composite
from PIL.Image import new as new_image
from PIL.Image import open as open_image
from torch.nn.functional import pad

WEIGHTS = "weights"  # folder of the adapter or the transformer
ADAPTERS = {  # files in it, by the part that each is for
    "transformer": "pytorch_lora_weights.safetensors",
    "transformer_2": "transformer_2.safetensors",
}
FRAMES_PER_SECOND = 16
OF_PICTURES = ["<|vision_start|>", "<|image_pad|>", "<|vision_end|>"]  # to Qwen's text encoders
NO_GUIDANCE = 1.0  # nor is there below in a run, where some pipelines go on to the negative prompt
PLAIN_GUIDANCE = {  # of LTX-2's pipeline, which has more by default than a run
    "stg_scale": 0.0,
    "audio_stg_scale": 0.0,
    "modality_scale": 1.0,
    "audio_modality_scale": 1.0,
    "audio_guidance_scale": 1.0,
    "guidance_rescale": 0.0,
    "audio_guidance_rescale": 0.0,
}


class TrainedPipeline:
    """A diffusers pipeline with what was trained in it, as MLflow asks for it.

    MLflow's server asks from several threads at once; a pipeline draws for one at a time.
    """

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self._weights, self._config = folder / WEIGHTS, config
        self._lock = Lock()

    def get_raw_model(self) -> Any:
        """Return the pipeline; it is loaded the first time."""
        with self._lock:
            return self._pipeline

    def predict(self, data: Any, params: dict[str, Any] | None = None) -> list[bytes]:
        """Return an image for each prompt as PNG, or a video as animated WebP.

        Args:
            data: table with the column ``prompt``, and ``image`` where the run's prompts come with
                source images, their files: of a model that is shown several, lists of them, in a
                data frame.
            params: of the pipeline's call, and a seed, each with a default in the signature.
        """
        with self._lock:
            return self._drawn(data, params)

    def _drawn(self, data: Any, params: dict[str, Any] | None) -> list[bytes]:
        pipeline = self._pipeline
        several = self._config["shows_several"]
        columns = {  # of {"prompt": [...]}
            name: (data[name] if several and name == "image" else data[name].explode()).tolist()
            for name in data
        }
        prompts = columns["prompt"]
        takes = inspect.signature(pipeline.__call__).parameters
        settings = dict(params or {})
        seed = settings.pop("seed", 0)
        settings[self._config["guidance"]] = settings.pop("guidance_scale")
        settings["use_resolution_binning"] = False  # else Sana draws in another size, and scales
        settings |= PLAIN_GUIDANCE
        if "guidance_scale_2" in settings:
            settings["guidance_scale_2"] = max(settings["guidance_scale_2"], NO_GUIDANCE)
        if guider := getattr(pipeline, "guider", None):  # HunyuanVideo 1.5's call takes neither
            scale = max(settings["guidance_scale"], NO_GUIDANCE)
            pipeline.guider = guider.new(guidance_scale=scale)
            pipeline.tokenizer_max_length = settings["max_sequence_length"]
            pipeline.vae.enable_slicing()  # the mask of its attention fits one sample only
        alone = "image" in columns or _is_qwen_21(pipeline)  # a prompt at a time
        if "negative_prompt" in settings:  # Z-Image takes one for each
            together = 1 if alone else len(prompts)
            settings["negative_prompt"] = [settings["negative_prompt"]] * together
            settings |= _embedded_negatives(pipeline, settings)
        if self._config["shift"] is not None:
            settings["sigmas"] = _even(settings["num_inference_steps"])
        size = settings["width"], settings["height"]
        calls: list[dict[str, Any]] = [{"prompt": own} for own in (prompts if alone else [prompts])]
        if "image" in columns:
            sources = [
                [_shown(own, size) for own in image] if several else _shown(image, size)
                for image in columns["image"]
            ]
            calls = [
                {"prompt": prompt, **_as_taken(own, "last_image" in takes)}
                for prompt, own in zip(prompts, sources, strict=True)
            ]
            settings |= {"_auto_resize": False, "max_area": size[0] * size[1]}
        videos: list[list[Image]] = []
        for call in calls:
            with _showing(pipeline, size), _cutting(pipeline, settings["max_sequence_length"]):
                made = pipeline(
                    output_type="pil",
                    generator=torch.Generator().manual_seed(seed),
                    **call,
                    **{name: value for name, value in settings.items() if name in takes},
                )
            videos += made.frames if "frames" in made else [[image] for image in made.images]
        return [_encoded(frames) for frames in videos]

    def _transformers(self) -> dict[str, Path]:
        """Return the folder of each transformer: of two experts, subfolders of their names."""
        found = {part: self._weights / part for part in ADAPTERS}
        experts = {part: folder for part, folder in found.items() if folder.is_dir()}
        return experts or {"transformer": self._weights}

    @cached_property
    def _pipeline(self) -> Any:
        config = self._config
        dtypes = {part: getattr(torch, name) for part, name in config["dtypes"].items()}
        parts: dict[str, Any] = {}
        if not config["is_lora"]:
            for part, folder in self._transformers().items():
                parts[part] = AutoModel.from_pretrained(str(folder), dtype=dtypes["default"])
        pipeline = getattr(diffusers, config["pipeline"] or "DiffusionPipeline").from_pretrained(
            config["base_model"],
            revision=config["revision"],
            variant=config["variant"],
            dtype=dtypes,
            **parts,
        )
        _make_load_loras(pipeline)
        pipeline.register_modules(**parts)  # WanPipeline loads its own whatever it is given
        _isolate(pipeline.transformer)
        _fill_texts(pipeline.transformer)
        if config["is_lora"]:
            _add_adapters(pipeline, config["adapters"])
            for part, name in ADAPTERS.items():
                if (self._weights / name).is_file():
                    pipeline.load_lora_weights(self._weights, weight_name=name, **_into(part))
        pipeline.scheduler = _scheduler_of(config) or pipeline.scheduler
        if _is_qwen_21(pipeline):  # which writes down that of the published VAE
            pipeline.vae_scale_factor = pipeline.vae.config.scale_factor_spatial
        return pipeline.to(config["device"] or ("cuda" if torch.cuda.is_available() else "cpu"))


class _AtNamedLevels(FlowMatchEulerDiscreteScheduler):  # type: ignore[misc]
    """Euler's steps at noise levels that are named, whichever a pipeline asks for."""

    levels: list[float]

    def set_timesteps(
        self, num_inference_steps: int = 0, device: Any = None, sigmas: Any = None, **_: Any
    ) -> None:
        """Take the named levels."""
        super().set_timesteps(sigmas=self.levels, device=device)


class _Shifted(FlowMatchEulerDiscreteScheduler):  # type: ignore[misc]
    """Euler's steps at even noise levels that are shifted once, also where a number is all it gets.

    Of a number of steps diffusers' own shifts the lowest level twice: Wan's pipelines give that.
    """

    def set_timesteps(
        self, num_inference_steps: int = 0, device: Any = None, sigmas: Any = None, **_: Any
    ) -> None:
        """Take the levels, or even ones."""
        levels = _even(num_inference_steps) if sigmas is None else sigmas
        super().set_timesteps(sigmas=levels, device=device)


def _even(num_steps: int) -> NDArray[np.float64]:
    return np.linspace(1.0, 1 / num_steps, num_steps)


def _scheduler_of(config: dict[str, Any]) -> Any:
    """Return what makes the run's noise levels, if that is not the model's own scheduler."""
    if config["sigmas"]:
        scheduler = _AtNamedLevels()
        scheduler.levels = config["sigmas"]
        return scheduler
    return None if config["shift"] is None else _Shifted(shift=config["shift"])


def _make_load_loras(pipeline: Any) -> None:
    """Have a pipeline load LoRAs whose class does not: HunyuanVideo 1.5's."""
    kind = type(pipeline)
    if not hasattr(kind, "load_lora_weights"):
        own = {"__module__": kind.__module__}
        pipeline.__class__ = type(kind.__name__, (kind, HunyuanVideoLoraLoaderMixin), own)


def _add_adapters(pipeline: Any, adapters: list[dict[str, Any]]) -> None:
    """Fold the adapters that the run started from into the weights, as the run did."""
    for adapter in adapters:
        part = "transformer_2" if adapter["expert"] == "low" else "transformer"
        source = {"weight_name": adapter["file"], "revision": adapter["revision"]}
        pipeline.load_lora_weights(adapter["path"], **source, **_into(part))
        pipeline.fuse_lora([part], lora_scale=adapter["weight"])
        pipeline.unload_lora_weights()


def _is_qwen_21(pipeline: Any) -> bool:
    """Return whether it is Qwen-Image 2.1's, which places all images behind the longest prompt."""
    return hasattr(pipeline, "prompt_template_t2i")


def _is_qwen_editor(pipeline: Any) -> bool:
    """Return whether it is one of Qwen-Image-Edit's, which read pictures before the prompt."""
    return hasattr(pipeline, "prompt_template_encode") and hasattr(pipeline, "processor")


@contextmanager
def _cutting(pipeline: Any, length: int) -> Iterator[None]:
    """Have Qwen-Image 2.1's pipeline and editors' cut prompts as the run did: they cut none."""
    if not (_is_qwen_21(pipeline) or _is_qwen_editor(pipeline)):
        yield
        return
    encode, read = pipeline.encode_prompt, list[Any]()
    hook = pipeline.text_encoder.register_forward_pre_hook(
        lambda _, args, named: read.append(named["input_ids"]), with_kwargs=True
    )

    def cut(**given: Any) -> list[Any]:
        found = encode(**given)
        if _is_qwen_21(pipeline):  # the last of them are slots of images: the prompt is behind
            before = max((place + 1 for place, own in enumerate(found[-1][0]) if own), default=0)
        else:
            marks = pipeline.tokenizer.convert_tokens_to_ids(OF_PICTURES)
            before = int(torch.isin(read[-1], torch.tensor(marks, device=read[-1].device)).sum())
        return [own if own is None else own[:, : length + before] for own in found]

    try:
        with patch.object(pipeline, "encode_prompt", cut):
            yield
    finally:
        hook.remove()


@torch.no_grad()
def _embedded_negatives(pipeline: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Return what guidance steers away from as a pipeline takes it that takes no text: FLUX.2's."""
    takes = inspect.signature(pipeline.__call__).parameters
    if "negative_prompt" in takes or "negative_prompt_embeds" not in takes:
        return {}
    texts, length = settings["negative_prompt"], settings["max_sequence_length"]
    embeds, _ = pipeline.encode_prompt(texts, max_sequence_length=length)
    return {"negative_prompt_embeds": embeds}


def _isolate(transformer: Any) -> None:
    """Have LTX-2's video not attend to the audio that is made beside it, as in the run."""
    if "isolate_modalities" in inspect.signature(transformer.forward).parameters:
        transformer.register_forward_pre_hook(
            lambda _, args, named: (args, named | {"isolate_modalities": True}), with_kwargs=True
        )


def _fill_texts(transformer: Any) -> None:
    """Have Wan 2.1's video read texts up to 512 tokens beside CLIP's of an image, as in the run."""
    if transformer.config.get("image_dim") is None:
        return

    def fill(_: Any, args: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        text = named["encoder_hidden_states"]
        filled = pad(text, (0, 0, 0, 512 - text.shape[1]))
        return args, named | {"encoder_hidden_states": filled}

    transformer.register_forward_pre_hook(fill, with_kwargs=True)


def _into(part: str) -> dict[str, bool]:
    """Return what a pipeline's loader of adapters takes to load one into a part."""
    return {} if part == "transformer" else {f"load_into_{part}": True}


def _shown(file: bytes, size: tuple[int, int]) -> Image:
    """Return what a run shows its model of a source image: scaled to cover, cut at the edges.

    What is transparent is white, as `digen_core.data.images` has it, which is not here.
    """
    upright = ImageOps.exif_transpose(open_image(io.BytesIO(file))).convert("RGBA")
    white = new_image("RGBA", upright.size, "white")
    whole = alpha_composite(white, upright).convert("RGB")
    return ImageOps.fit(whole, size, Resampling.LANCZOS)


def _as_taken(shown: Any, has_last: bool) -> dict[str, Any]:
    """Return what a pipeline takes of source images: one, several, or the first and last frame.

    Args:
        shown: an image, or a list of some.
        has_last: whether it takes the last frame by itself.
    """
    if not (has_last and isinstance(shown, list)):
        return {"image": shown}
    first, *last = shown
    return {"image": first, **({"last_image": last[0]} if last else {})}


@contextmanager
def _showing(pipeline: Any, size: tuple[int, int]) -> Iterator[None]:
    """Have an editor show its transformer images as large as samples, as the run did.

    Qwen-Image-Edit's pipelines choose a size near 1024 x 1024 by themselves, and take none, and
    HunyuanVideo 1.5's one that videos have, too. FLUX.2's shrink images of more than 1024 x 1024.
    """
    images = getattr(pipeline, "image_processor", None)
    if hasattr(images, "_resize_to_target_area"):
        with patch.object(images, "_resize_to_target_area", lambda image, area: image):
            yield
        return
    if hasattr(pipeline, "guider"):
        width, height = size
        chosen = patch.object(
            pipeline.video_processor, "calculate_default_height_width", lambda **_: (height, width)
        )
        with chosen:
            yield
        return
    own: Any = sys.modules[type(pipeline).__module__]
    if (usual := getattr(own, "calculate_dimensions", None)) is None:
        yield
        return

    def dimensions(area: int, ratio: float) -> tuple[int | None, ...]:
        found: tuple[int | None, ...] = usual(area, ratio)
        return (*size, *found[2:]) if area == 1024 * 1024 else found

    own.calculate_dimensions = dimensions
    try:
        yield
    finally:
        own.calculate_dimensions = usual


def _encoded(frames: list[Image]) -> bytes:
    first, *others = frames
    buffer = io.BytesIO()
    if others:
        video = {"save_all": True, "append_images": others, "lossless": True}
        first.save(buffer, "WEBP", duration=1000 // FRAMES_PER_SECOND, **video)
    else:
        first.save(buffer, "PNG")
    return buffer.getvalue()


def _load_pyfunc(path: str, model_config: dict[str, Any]) -> TrainedPipeline:
    """Return the model; MLflow calls this."""
    return TrainedPipeline(Path(path), model_config)
