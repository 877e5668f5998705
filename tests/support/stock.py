"""Stock pipelines of diffusers with tiny models of every family: what digen's are held to."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    DiffusionPipeline,
    DPMSolverMultistepScheduler,
    UniPCMultistepScheduler,
)
from diffusers.pipelines.hunyuan_video1_5.pipeline_hunyuan_video1_5 import format_text_input

from digen_core.config.families import VIDEO_FAMILIES
from digen_core.config.model import ModelConfig
from digen_core.models.families.hunyuan_video import prompt_template
from digen_core.models.qwen_vl import (
    PicturesAndTexts,
    PicturesAndTexts3,
    processor_without_videos,
)
from support.families import (
    GUIDED,
    HEIGHT,
    NEGATIVE,
    OF_KIND,
    TOKENS,
    WIDTH,
    family_of,
    frames_of,
)
from tasks.tracking.trained_pipeline import PLAIN_GUIDANCE


def processor_of(folder: str) -> Any:
    """A processor of Qwen's that does without torchvision, if a model needs it; else None."""
    model = ModelConfig(family="qwen_image", path=folder)
    kinds = {"Qwen2VLProcessor": PicturesAndTexts, "Qwen3VLProcessor": PicturesAndTexts3}
    index = json.loads((Path(folder) / "model_index.json").read_text())
    kind = kinds.get(index.get("processor", [None])[-1])
    return None if kind is None else processor_without_videos(model, kind)


def stock(folder: str) -> Any:
    """Load the pipeline as any user of diffusers does."""
    processor = processor_of(folder)
    own = {"processor": processor} if processor else {}
    pipeline = DiffusionPipeline.from_pretrained(folder, **own)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


class EulerUniPC(UniPCMultistepScheduler):  # type: ignore[misc]
    """Wan's scheduler, of first order (Euler's steps), with timesteps that are not truncated."""

    def set_timesteps(self, *args: Any, **kwargs: Any) -> None:
        super().set_timesteps(*args, **kwargs)
        self.timesteps = 1000 * self.sigmas[:-1]


class EulerDPMSolver(DPMSolverMultistepScheduler):  # type: ignore[misc]
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


def each_alone(pipeline: Any, prompts: list[str], call: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the calls of a QwenImage21Pipeline that make what digen does of some prompts.

    In one call it places all images behind the longest text. It takes texts of any length, and
    latents of the published VAE's size.
    """
    pipeline.vae_scale_factor = pipeline.vae.config.scale_factor_spatial
    length, negatives = call.pop("max_sequence_length"), call.pop("negative_prompt")
    if "guidance_scale" in call:
        call["true_cfg_scale"] = call.pop("guidance_scale")
    noise = call.pop("latents", None)
    for row, texts in enumerate(zip(prompts, negatives, strict=True)):
        embedded = {
            f"{name}prompt_embeds": pipeline.encode_prompt([text])[0][:, :length]
            for name, text in zip(("", "negative_"), texts, strict=True)
        }
        yield {**call, **embedded, **({} if noise is None else {"latents": noise[row : row + 1]})}


def on_white(made: torch.Tensor) -> torch.Tensor:
    """Return images [B, 3, H, W] of such with an opacity [B, 4, H, W]; latents stay as they are."""
    if made.ndim < 4:
        return made
    return made[:, 3:] * made[:, :3] + 1 - made[:, 3:]


def load_adapters(pipeline: Any, folder: Path, **named: str) -> None:
    """Load what `save_adapter` wrote into a stock pipeline, as docs/models.md says.

    Args:
        pipeline: a stock one.
        folder: that was written to.
        named: ``adapter_name``, if it is not the only one.
    """
    if not hasattr(pipeline, "load_lora_weights"):
        name = "pytorch_lora_weights.safetensors"
        pipeline.transformer.load_lora_adapter(folder, weight_name=name, **named)
        return
    pipeline.load_lora_weights(folder, **named)
    if (folder / "transformer_2.safetensors").is_file():
        low = {"weight_name": "transformer_2.safetensors", "load_into_transformer_2": True}
        pipeline.load_lora_weights(folder, **low, **named)


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
    call |= {"latents": noise, "output_type": output_type, "return_dict": False}
    if family == "qwen_image21":
        calls = each_alone(pipeline, prompts, call)
        return on_white(torch.cat([pipeline(**own)[0] for own in calls]))
    made: tuple[torch.Tensor, ...] = pipeline(prompt=list(prompts), **call)
    return made[0]
