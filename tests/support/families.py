"""Tiny pipelines of every family, for tests: their policies, and what stock pipelines return."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import (
    DiffusionPipeline,
    DPMSolverMultistepScheduler,
    UniPCMultistepScheduler,
)
from diffusers.pipelines.hunyuan_video1_5.pipeline_hunyuan_video1_5 import format_text_input

from digen_core.config import families
from digen_core.config.families import VIDEO_FAMILIES
from digen_core.config.model import ModelConfig
from digen_core.models.families.hunyuan_video import prompt_template
from digen_core.models.policy import ALL_PARTS, Policy
from digen_core.models.qwen_vl import processor_without_videos
from support.tiny_policies import load
from tasks.tracking.trained_pipeline import PLAIN_GUIDANCE

FAMILIES = tuple(families.FAMILIES)
KINDS = tuple(f"{name}-{kind}" for name, row in families.FAMILIES.items() for kind in row.kinds)
QWEN_EDITORS = ("qwen_image-edit", "qwen_image-edit-plus")
EDITORS = (*QWEN_EDITORS, "wan-i2v", "wan-i2v-a14b", "hunyuan_video15-i2v")
"""Names of the tiny models that take no prompt without a source image: FAMILY-KIND."""
KONTEXT = "flux-kontext"
"""That of one which is shown a source image, and is a plain FLUX without."""
MODELS = (*FAMILIES, *(kind for kind in KINDS if kind not in (*EDITORS, KONTEXT)))
"""Names of the other tiny models: of each family the plain one, and FAMILY-KIND."""
GUIDED = ("flux2", "sd3", "qwen_image", "z_image", "sana", "wan", "hunyuan_video15", "ltx2")
PUBLISHED = {
    "flux": "FLUX.1-dev",
    "flux2": "FLUX.2-klein-base-4B",
    "sd3": "stable-diffusion-3.5-medium",
    "qwen_image": "Qwen-Image",
    "z_image": "Z-Image-Turbo",
    "sana": "Sana_1600M_1024px_diffusers",
    "wan": "Wan2.1-T2V-14B-Diffusers",
    "hunyuan_video": "HunyuanVideo",
    "ltx2": "LTX-2",
    "hunyuan_video15": "HunyuanVideo-1.5-Diffusers-480p_t2v",
}
"""Name of a published model, whose settings are shipped, of each family."""
HEIGHT, WIDTH, TOKENS = 32, 48, 24
OF_KIND = {name: {"guidance_scale_2": 2.0} for name in ("wan-a14b", "wan-i2v-a14b")}
"""What some models are used with beside that."""
NEGATIVE = "blurry"
ROUNDED_TO_FLOAT32 = ("wan", "z_image", "ltx2", "sana")
"""Families whose blocks compute parts in float32 whatever the dtype: rounding shows in 6e-8."""
AT_NIGHT = tuple(pytest.param(editor, marks=pytest.mark.nightly) for editor in EDITORS)
"""Editors, for what each change shows on the models that they are like."""
OFTEN = ("flux", "sd3", "wan")
"""Models on which each change tries what takes long."""
EDITED = {"train": "edits.jsonl", "image_column": "image", "evaluation_fraction": 0.5}
"""Prompts with source images, as a config names them."""


def sliced(models: Iterable[str], *values: Any) -> list[Any]:
    """Parameters of a test: each model with the values, marked ``families`` if not in ``OFTEN``."""
    return [
        pytest.param(name, *values, marks=[pytest.mark.families] * (name not in OFTEN))
        for name in models
    ]


def family_of(model: str) -> str:
    """The family of one of ``MODELS``."""
    return model.partition("-")[0]


def tolerance_of(model: str) -> float:
    """How near weights of one of ``MODELS`` in float64 come to those of sums in another order."""
    return 1e-6 if family_of(model) in ROUNDED_TO_FLOAT32 else 1e-10


def kind_of(model: str) -> str:
    """The kind of one of ``MODELS``, of its family's; empty: the plain one."""
    return model.partition("-")[2]


def frames_of(model: str) -> int:
    """The frames of the tests' samples: videos where the family makes them."""
    return 5 if family_of(model) in VIDEO_FAMILIES else 1


def load_tiny(
    folder: str, name: str, dtype: str = "float32", parts: frozenset = ALL_PARTS, **model: Any
) -> Policy:
    """Load a policy at the tests' sizes, of one of ``MODELS``."""
    defaults = {
        "height": HEIGHT,
        "width": WIDTH,
        "num_frames": frames_of(name),
        "max_sequence_length": TOKENS,
        "guidance_scale": 3.0,
        "negative_prompt": NEGATIVE,
        "source_image": name in (*EDITORS, KONTEXT),
        **OF_KIND.get(name, {}),
    }
    return load(folder, dtype, parts, family=family_of(name), **defaults | model)


def stock(folder: str) -> Any:
    """Load the pipeline as any user of diffusers does.

    Of Qwen-Image-Edit with a processor that does without torchvision, if that is not there.
    """
    model = ModelConfig(family="qwen_image", path=folder)
    processor = (Path(folder) / "processor").is_dir() and processor_without_videos(model)
    own = {"processor": processor} if processor else {}
    pipeline = DiffusionPipeline.from_pretrained(folder, **own)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


class EulerUniPC(UniPCMultistepScheduler):
    """Wan's scheduler, of first order (Euler's steps), with timesteps that are not truncated."""

    def set_timesteps(self, *args: Any, **kwargs: Any) -> None:
        super().set_timesteps(*args, **kwargs)
        self.timesteps = 1000 * self.sigmas[:-1]


class EulerDPMSolver(DPMSolverMultistepScheduler):
    """Sana's scheduler, as that of Wan, from pure noise."""

    def set_timesteps(self, *args: Any, **kwargs: Any) -> None:
        super().set_timesteps(*args, **kwargs)
        self.sigmas[0] = 1
        self.timesteps = 1000 * self.sigmas[:-1]


def with_euler_steps(pipeline: Any) -> Any:
    """Return a pipeline that takes steps as digen does."""
    config = pipeline.scheduler.config
    if isinstance(pipeline.scheduler, UniPCMultistepScheduler):
        first_order = {"solver_order": 1, "disable_corrector": list(range(20))}
        pipeline.scheduler = EulerUniPC.from_config(config, **first_order)
    if isinstance(pipeline.scheduler, DPMSolverMultistepScheduler):
        pipeline.scheduler = EulerDPMSolver.from_config(config, solver_order=1)
    return pipeline


def isolated(pipeline: Any) -> Any:
    """Return a pipeline of LTX-2 whose streams of video and audio do not attend to each other."""
    pipeline.transformer.register_forward_pre_hook(
        lambda _, args, named: (args, named | {"isolate_modalities": True}), with_kwargs=True
    )
    return pipeline


def prepared_hunyuan_15(
    pipeline: Any, call: dict[str, Any], *, crops: bool = False
) -> dict[str, Any]:
    """Tell a HunyuanVideo15Pipeline what its call does not take; return what is left of that.

    Also how long its template is before a prompt with the tiny tokenizer, if it ``crops``.
    """
    if crops:
        (chat,) = format_text_input(["{}"], pipeline.system_message)
        before, _ = pipeline.tokenizer.apply_chat_template(chat, tokenize=False).split("{}")
        pipeline.prompt_template_encode_start_idx = len(pipeline.tokenizer(before).input_ids)
    pipeline.guider = pipeline.guider.new(guidance_scale=call["guidance_scale"])
    pipeline.tokenizer_max_length = call["max_sequence_length"]
    pipeline.vae.enable_slicing()  # its mask fits one sample
    return {
        name: value
        for name, value in call.items()
        if name not in ("guidance_scale", "max_sequence_length")
    }


def load_adapters(pipeline: Any, folder: Path) -> None:
    """Load what `save_adapter` wrote into a stock pipeline, as docs/models.md says."""
    if not hasattr(pipeline, "load_lora_weights"):
        name = "pytorch_lora_weights.safetensors"
        pipeline.transformer.load_lora_adapter(folder, weight_name=name)
        return
    pipeline.load_lora_weights(folder)
    if (folder / "transformer_2.safetensors").is_file():
        low = {"weight_name": "transformer_2.safetensors", "load_into_transformer_2": True}
        pipeline.load_lora_weights(folder, **low)


def saved_transformers(pipeline: Any, folder: Path) -> dict[str, Path]:
    """Where `save_transformer` wrote what belongs to the parts of a pipeline."""
    if getattr(pipeline, "transformer_2", None) is None:
        return {"transformer": folder}
    return {part: folder / part for part in ("transformer", "transformer_2")}


def _prepared(pipeline: Any, family: str, call: dict[str, Any]) -> dict[str, Any]:
    """Return a call as a family's pipeline takes it, which is told the rest."""
    if family == "hunyuan_video15":
        call = prepared_hunyuan_15(pipeline, call, crops=True)
    if family == "qwen_image":
        call["true_cfg_scale"] = call.pop("guidance_scale")
        before, _ = pipeline.prompt_template_encode.split("{}")
        pipeline.prompt_template_encode_start_idx = len(pipeline.tokenizer(before).input_ids)
    if family in ("sana", "ltx2"):
        pipeline.check_inputs = lambda *_, **__: None  # it takes multiples of 32 of any VAE
    if family == "sana":
        call["use_resolution_binning"] = False
    if family == "ltx2":
        isolated(pipeline)
        call |= PLAIN_GUIDANCE
    if family == "hunyuan_video":
        call["prompt_template"] = prompt_template(pipeline.tokenizer)
    return call


def generate(
    pipeline: Any,
    name: str,
    prompts: list[str],
    x: torch.Tensor,
    *,
    output_type: str,
    **call: Any,
) -> torch.Tensor:
    """Return what a stock pipeline makes of the noise ``x`` at the tests' settings."""
    count, noise, family = len(prompts), x.clone(), family_of(name)
    call = {
        "guidance_scale": 3.0,
        "num_inference_steps": 3,
        "height": HEIGHT,
        "width": WIDTH,
        "max_sequence_length": TOKENS,
        **OF_KIND.get(name, {}),
    } | call
    if family in VIDEO_FAMILIES:
        call["num_frames"] = call.get("num_frames", frames_of(family))
    if family == "flux2":  # its own negative prompt is the empty one
        rows = call["height"] // (2 * pipeline.vae_scale_factor)
        noise = noise.transpose(1, 2).unflatten(2, (rows, -1))
        if call["guidance_scale"] > 1:
            call["negative_prompt_embeds"], _ = pipeline.encode_prompt(
                [NEGATIVE] * count, max_sequence_length=TOKENS
            )
    elif family in GUIDED:
        call["negative_prompt"] = [NEGATIVE] * count
    call = _prepared(pipeline, family, call)
    made = pipeline(
        prompt=list(prompts),
        latents=noise,
        output_type=output_type,
        return_dict=False,
        **call,
    )
    return made[0]
