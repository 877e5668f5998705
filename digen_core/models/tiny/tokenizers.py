"""Tokenizers that need no vocabulary files: one token per byte or letter."""

from collections.abc import Sequence
from typing import Final

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    ByT5Tokenizer,
    CLIPTokenizer,
    GemmaTokenizer,
    PreTrainedTokenizerFast,
    Qwen2Tokenizer,
    T5Tokenizer,
)

CLIP_TOKENS: Final = 77

_BYTES: Final = sorted(pre_tokenizers.ByteLevel.alphabet())
_CLIP_SPECIALS: Final = ("<|startoftext|>", "<|endoftext|>")
_QWEN_SPECIALS: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_QWEN_VL_SPECIALS: Final = (
    *_QWEN_SPECIALS,
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
_QWEN3_SPECIALS: Final = (*_QWEN_SPECIALS, "<think>", "</think>")
_QWEN_CHAT: Final = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_QWEN3_CHAT: Final = _QWEN_CHAT.removesuffix("{% endif %}") + (
    "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
_QWEN3_VL_CHAT: Final = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% for part in message.content %}{{ part.text }}{% endfor %}<|im_end|>\n{% endfor %}"
)
_LLAMA_BOS: Final = "<|begin_of_text|>"
_LLAMA_SPECIALS: Final = (
    _LLAMA_BOS,
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<pad>",
)


def clip_tokenizer() -> CLIPTokenizer:
    """Return CLIP's tokenizer with a token per byte, and one per byte that ends a word."""
    pieces = [*_BYTES, *(byte + "</w>" for byte in _BYTES), *_CLIP_SPECIALS]
    return CLIPTokenizer(vocab=_numbered(pieces), merges=[], model_max_length=CLIP_TOKENS)


def t5_tokenizer() -> T5Tokenizer:
    """Return T5's tokenizer, which is UMT5's too, with a token per printable ASCII letter."""
    specials = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -1.0)]
    letters = [(chr(code), -1.0) for code in range(33, 127)]
    return T5Tokenizer(vocab=specials + letters, extra_ids=0)


def gemma_tokenizer() -> GemmaTokenizer:
    """Return Gemma's tokenizer: a mark of the beginning, then a token per ASCII letter or byte."""
    specials = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    letters = ["\n", "▁", *(chr(code) for code in range(33, 127))]
    pieces = [*specials, *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    return GemmaTokenizer(vocab=_numbered(pieces), add_bos_token=True)


def qwen_tokenizer() -> Qwen2Tokenizer:
    """Return Qwen2's tokenizer with a token per byte and its chat marks."""
    return _qwen(_QWEN_SPECIALS)


def qwen_chat_tokenizer() -> Qwen2Tokenizer:
    """Return that of Qwen2.5-VL for texts: with its template of chats."""
    tokenizer = _qwen(_QWEN_SPECIALS)
    tokenizer.chat_template = _QWEN_CHAT
    return tokenizer


def byt5_tokenizer() -> ByT5Tokenizer:
    """Return ByT5's tokenizer, whose tokens are bytes."""
    return ByT5Tokenizer()


def qwen_vl_tokenizer() -> Qwen2Tokenizer:
    """Return Qwen2.5-VL's tokenizer, which is Qwen2's with marks of pictures."""
    return _qwen(_QWEN_VL_SPECIALS)


def qwen3_vl_tokenizer() -> Qwen2Tokenizer:
    """Return Qwen3-VL's tokenizer, which is Qwen2.5-VL's but for its template of chats."""
    tokenizer = _qwen(_QWEN_VL_SPECIALS)
    tokenizer.chat_template = _QWEN3_VL_CHAT
    return tokenizer


def qwen3_tokenizer() -> Qwen2Tokenizer:
    """Return Qwen3's tokenizer, which is Qwen2's but for its marks of thought and its template."""
    tokenizer = _qwen(_QWEN3_SPECIALS)
    tokenizer.chat_template = _QWEN3_CHAT
    return tokenizer


def _qwen(specials: Sequence[str]) -> Qwen2Tokenizer:
    return Qwen2Tokenizer(
        vocab=_numbered([*_BYTES, *specials]),
        merges=[],
        extra_special_tokens=list(specials[1:]),
    )


def llama_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer that treats text and chat marks as Llama 3's, with a token per byte."""
    vocabulary = _numbered([*_BYTES, *_LLAMA_SPECIALS])
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(_LLAMA_SPECIALS))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{_LLAMA_BOS} $A", special_tokens=[(_LLAMA_BOS, vocabulary[_LLAMA_BOS])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=_LLAMA_BOS,
        eos_token="<|end_of_text|>",
        pad_token="<pad>",
        padding_side="right",
    )


def _numbered(pieces: list[str]) -> dict[str, int]:
    return {piece: index for index, piece in enumerate(pieces)}
