"""Text and image encoders of a few thousand parameters."""

from typing import Any

from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPVisionConfig,
    CLIPVisionModel,
    Gemma2Config,
    Gemma2Model,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    LlamaConfig,
    LlamaModel,
    PreTrainedTokenizerBase,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLTextConfig,
    Qwen2_5_VLTextModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    SiglipVisionConfig,
    SiglipVisionModel,
    T5Config,
    T5EncoderModel,
    UMT5Config,
    UMT5EncoderModel,
)


def clip(tokenizer: PreTrainedTokenizerBase, width: int, *, projected: bool = False) -> Any:
    """Return a CLIP text encoder, as SD3 wants it (``projected``) or without a projection."""
    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        projection_dim=width,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=tokenizer.model_max_length,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return (CLIPTextModelWithProjection if projected else CLIPTextModel)(config).eval()


def clip_vision(width: int) -> dict[str, Any]:
    """Return a CLIP image encoder of 257 tokens, as many as Wan 2.1's has, and its processor."""
    from transformers import CLIPImageProcessor

    config = CLIPVisionConfig(
        hidden_size=width,
        intermediate_size=2 * width,
        projection_dim=width,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=32,
        patch_size=2,
    )
    return {
        "image_encoder": CLIPVisionModel(config).eval(),
        "image_processor": CLIPImageProcessor(size=config.image_size, crop_size=config.image_size),
    }


def siglip(width: int) -> dict[str, Any]:
    """Return a SigLIP image encoder of 729 tokens, as HunyuanVideo 1.5's has, and its processor."""
    from transformers import SiglipImageProcessor

    config = SiglipVisionConfig(
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=54,
        patch_size=2,
    )
    size = {"height": config.image_size, "width": config.image_size}
    return {
        "image_encoder": SiglipVisionModel(config).eval(),
        "feature_extractor": SiglipImageProcessor(size=size),
    }


def t5(tokenizer: PreTrainedTokenizerBase, width: int) -> Any:
    """Return a T5 encoder."""
    return T5EncoderModel(T5Config(**_t5_settings(tokenizer, width))).eval()


def umt5(tokenizer: PreTrainedTokenizerBase, width: int) -> Any:
    """Return a UMT5 encoder, which has position biases in every layer."""
    return UMT5EncoderModel(UMT5Config(**_t5_settings(tokenizer, width))).eval()


def _t5_settings(tokenizer: PreTrainedTokenizerBase, width: int) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "d_model": width,
        "d_kv": width // 4,
        "d_ff": 2 * width,
        "num_layers": 2,
        "num_heads": 4,
        "dropout_rate": 0.0,
        "feed_forward_proj": "gated-gelu",
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "use_cache": False,
    }


def llama(tokenizer: PreTrainedTokenizerBase, width: int) -> Any:
    """Return a Llama; HunyuanVideo reads the hidden states before its last two layers."""
    return LlamaModel(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=width,
            intermediate_size=2 * width,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=2048,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    ).eval()


def qwen_vl(tokenizer: PreTrainedTokenizerBase, width: int) -> Any:
    """Return a Qwen2.5-VL: Qwen-Image shows it texts, its editors pictures, too.

    The tokenizer of an editor has marks of pictures, as it has.
    """
    return Qwen2_5_VLForConditionalGeneration(
        Qwen2_5_VLConfig(
            text_config=_qwen_vl_text_settings(tokenizer, width, 2),
            vision_config={**_sight(width), "fullatt_block_indexes": [0]},
            **_places_of_marks(tokenizer),
        )
    ).eval()


def _sight(width: int) -> dict[str, int]:
    """Return the settings of what sees pictures."""
    return {
        "depth": 1,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_heads": 2,
        "out_hidden_size": width,
    }


def _places_of_marks(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Return the tokens that stand for pictures and videos, or are around them, if there are."""
    marks = {"image_token_id": "image_pad", "video_token_id": "video_pad"}
    marks |= {f"vision_{end}_token_id": f"vision_{end}" for end in ("start", "end")}
    known = tokenizer.get_vocab()
    places = {name: known.get(f"<|{mark}|>") for name, mark in marks.items()}
    return {name: place for name, place in places.items() if place is not None}


def qwen3_vl(tokenizer: PreTrainedTokenizerBase, width: int, patch: int) -> Any:
    """Return a Qwen3-VL: Qwen-Image 2.1 reads the states behind its last layer, without a norm.

    Args:
        tokenizer: with marks of pictures.
        width: of the states.
        patch: pixels in height and width of what it sees.
    """
    return Qwen3VLForConditionalGeneration(
        Qwen3VLConfig(
            text_config={
                **_qwen_vl_text_settings(tokenizer, width, 2),
                "head_dim": width // 4,
            },
            vision_config={
                **_sight(width),
                "num_position_embeddings": 16,
                "deepstack_visual_indexes": [0],
                "patch_size": patch,
            },
            **_places_of_marks(tokenizer),
        )
    ).eval()


def qwen_vl_text(tokenizer: PreTrainedTokenizerBase, width: int) -> Any:
    """Return the half of Qwen2.5-VL that reads texts.

    HunyuanVideo 1.5 reads the hidden states before its last two layers.
    """
    config = Qwen2_5_VLTextConfig(**_qwen_vl_text_settings(tokenizer, width, 3))
    return Qwen2_5_VLTextModel(config).eval()


def _qwen_vl_text_settings(
    tokenizer: PreTrainedTokenizerBase, width: int, layers: int
) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e6,
            "mrope_section": [width // 16, width // 32, width // 32],
        },
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def qwen3(tokenizer: PreTrainedTokenizerBase, width: int, layers: int) -> Any:
    """Return a Qwen3: FLUX.2 reads the hidden states behind its 9th, 18th and 27th layer.

    Z-Image reads those before the last one.
    """
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=width,
            intermediate_size=width,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=width // 4,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    ).eval()


def gemma2(tokenizer: PreTrainedTokenizerBase, width: int) -> Any:
    """Return a Gemma 2 without a head."""
    config = Gemma2Config(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=width // 4,
        query_pre_attn_scalar=width // 4,
        max_position_embeddings=4096,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        use_cache=False,
    )
    return Gemma2Model(config).eval()


def gemma3(tokenizer: PreTrainedTokenizerBase, width: int, layers: int) -> Any:
    """Return a Gemma 3, which LTX-2 shows texts only: all of its layers' states are read."""
    return Gemma3ForConditionalGeneration(
        Gemma3Config(
            text_config={
                "vocab_size": len(tokenizer),
                "hidden_size": width,
                "intermediate_size": 2 * width,
                "num_hidden_layers": layers,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "head_dim": width // 4,
                "query_pre_attn_scalar": width // 4,
                "max_position_embeddings": 4096,
                "bos_token_id": tokenizer.bos_token_id,
                "eos_token_id": tokenizer.eos_token_id,
                "pad_token_id": tokenizer.pad_token_id,
                "use_cache": False,
            },
            vision_config={
                "hidden_size": 16,
                "intermediate_size": 32,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "image_size": 32,
                "patch_size": 8,
            },
            mm_tokens_per_image=4,
        )
    ).eval()
