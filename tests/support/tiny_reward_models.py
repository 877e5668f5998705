"""Tiny reward models in the files, and with the names, of HPS v3 and VideoReward."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

WIDTH = 32
HPS_MARKS = ["<|Reward|>"]
VIDEO_MARKS = ["<|VQ_reward|>", "<|MQ_reward|>", "<|TA_reward|>"]
HPS_TEMPLATE = "\nHow good is it?\nPrompt - {text_prompt}\n\nMark {it}: <|Reward|>\nEND\n"
VIDEO_TEMPLATE = "Look <|VQ_reward|> move <|MQ_reward|>\n{text_prompt}\nsuit <|TA_reward|>\n"
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }}{% else %}"
    "<|vision_start|><|{{ part.type }}_pad|><|vision_end|>{% endif %}{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SETTINGS: dict[str, dict[str, Any]] = {
    "data_config": {
        "meta_data": "/some/where.csv", "fps": 2.0, "max_frame_pixels": 200704, "num_frames": None,
        "sample_type": "uniform", "eval_dim": ["VQ", "MQ", "TA"],
        "prompt_template_type": "detailed_special",
    },
    "model_config": {
        "model_name_or_path": "/some/where", "use_special_tokens": True, "output_dim": 1,
        "reward_token": "special",
    },
    "peft_lora_config": {
        "lora_enable": True, "lora_r": 4, "lora_alpha": 12, "lora_dropout": 0.0,
        "lora_target_modules": None, "num_lora_modules": -1, "use_rslora": False,
    },
    "inference_config": {
        "VQ_mean": 3.6757, "VQ_std": 2.2476, "MQ_mean": 1.1646, "MQ_std": 1.3811,
        "TA_mean": 2.8105, "TA_std": 2.5121,
    },
}  # fmt: skip
"""What ``model_config.json`` says."""


def tokenizer_with(marks: list[str]) -> Any:
    """Return a Qwen2-VL's tokenizer with its template of chats, and more tokens."""
    from digen_core.models.tiny.tokenizers import qwen_vl_tokenizer

    tokenizer = qwen_vl_tokenizer()
    tokenizer.chat_template = CHAT
    tokenizer.add_tokens(marks, special_tokens=True)
    return tokenizer


def write_base(folder: Path) -> Path:
    """Write settings, tokenizer and image processor of a Qwen2-VL, as they are published.

    The settings are flat, and know more tokens than there are.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizer_with([])
    tokenizer.save_pretrained(folder)
    config = {
        "architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl",
        "vocab_size": len(tokenizer) + 40, "hidden_size": WIDTH, "intermediate_size": 48,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "hidden_act": "silu", "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0, "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]},
        "bos_token_id": None, "eos_token_id": None, "tie_word_embeddings": False,
        "vision_config": {
            "depth": 2, "embed_dim": 16, "hidden_size": WIDTH, "num_heads": 2, "mlp_ratio": 2,
            "in_chans": 3, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2,
        },
        **{
            f"{name}_token_id": tokenizer.convert_tokens_to_ids(f"<|{mark}|>")
            for name, mark in {
                "image": "image_pad", "video": "video_pad", "vision_start": "vision_start",
                "vision_end": "vision_end",
            }.items()
        },
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    pixels = {
        "min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14, "temporal_patch_size": 2,
        "merge_size": 2, "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2VLProcessor",
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(pixels))
    return folder


def tiny_model(base: Path, marks: list[str], head: nn.Module) -> Any:
    """Return the Qwen2-VL of a base with a head, ``rm_head``, and random weights."""
    from transformers import AutoConfig, Qwen2VLForConditionalGeneration

    config = AutoConfig.from_pretrained(base)
    model = Qwen2VLForConditionalGeneration(config)
    model.resize_token_embeddings(len(tokenizer_with(marks)))
    model.rm_head = head
    draw_weights(model, 0)
    return model.eval()


def draw_weights(model: nn.Module, seed: int) -> None:
    """Give a model weights that are large enough for everything to matter."""
    generator = torch.Generator().manual_seed(seed)
    for name, own in model.named_parameters():
        drawn = 0.25 * torch.randn(own.shape, generator=generator)
        own.data = drawn + 1 if "norm" in name and name.endswith("weight") else drawn


def hps_head() -> nn.Module:
    """Return a head of HPS v3."""
    return nn.Sequential(
        nn.Linear(WIDTH, 1024), nn.ReLU(), nn.Dropout(0.05), nn.Linear(1024, 16), nn.ReLU(),
        nn.Linear(16, 2),
    )  # fmt: skip


def in_old_names(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return weights by the names that transformers gave them before its version 4.52."""
    return {
        name.replace("model.visual.", "visual.").replace("model.language_model.", "model."): own
        for name, own in weights.items()
    }


def write_hps3(
    folder: Path, rename: Callable[..., dict[str, Tensor]] = dict, **changes: Any
) -> Any:
    """Write ``HPSv3.safetensors``, a template, and a base; return the model.

    Args:
        folder: that gets them.
        rename: what makes names of the file of those of transformers.
        changes: tensors by their name in the file, or None to leave one out.
    """
    from safetensors.torch import save_file

    model = tiny_model(write_base(folder / "base"), HPS_MARKS, hps_head())
    weights = {**rename(model.state_dict()), **changes}
    save_file(
        {name: own.contiguous() for name, own in weights.items() if own is not None},
        folder / "HPSv3.safetensors",
    )
    (folder / "template.txt").write_text(HPS_TEMPLATE)
    return model


def write_video_reward(
    folder: Path,
    rename: Callable[..., dict[str, Tensor]] = in_old_names,
    settings: dict[str, dict[str, Any]] | None = None,
    **changes: Any,
) -> Any:
    """Write ``model_config.json``, ``checkpoint-12/model.pth``, a template, and a base.

    Args:
        folder: that gets them.
        rename: what makes names of the file of those of transformers.
        settings: keys that differ from those published, by table.
        changes: tensors by their name in the file, or None to leave one out.

    Returns:
        peft's model, whose adapters are not merged.
    """
    from peft import LoraConfig, get_peft_model

    tables = {name: {**own, **(settings or {}).get(name, {})} for name, own in SETTINGS.items()}
    head = nn.Linear(WIDTH, 1, bias=False)
    model = tiny_model(write_base(folder / "base"), VIDEO_MARKS, head)
    layers = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and "language_model" in name
    ]
    lora = tables["peft_lora_config"]
    adapted = get_peft_model(
        model,
        LoraConfig(
            target_modules=layers, r=SETTINGS["peft_lora_config"]["lora_r"],
            lora_alpha=lora["lora_alpha"], use_rslora=lora["use_rslora"],
        ),
    ).eval()  # fmt: skip
    draw_weights(adapted, 1)
    weights = {**rename(adapted.state_dict()), **changes}
    weights = {name: own for name, own in weights.items() if own is not None}
    (folder / "checkpoint-12").mkdir()
    torch.save(weights, folder / "checkpoint-12" / "model.pth")
    (folder / "model_config.json").write_text(json.dumps(tables))
    (folder / "template.txt").write_text(VIDEO_TEMPLATE)
    return adapted
