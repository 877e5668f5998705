"""Tiny models of transformers with random weights, as save_pretrained writes them."""

import string
from pathlib import Path
from typing import Any

import torch


def write_clip(folder: Path, width: int = 16) -> str:
    """Write a CLIP whose embeddings have that many numbers; return its folder."""
    from transformers import (
        CLIPConfig,
        CLIPImageProcessor,
        CLIPModel,
        CLIPProcessor,
        CLIPTokenizer,
    )

    path = str(folder)
    letters = [*string.ascii_lowercase, *(f"{letter}</w>" for letter in string.ascii_lowercase)]
    pieces = [*letters, "<|startoftext|>", "<|endoftext|>"]
    tokenizer = CLIPTokenizer(vocab={p: i for i, p in enumerate(pieces)}, merges=[])
    sides = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    text = {
        **sides, "vocab_size": len(pieces), "num_attention_heads": 4, "max_position_embeddings": 24,
        "bos_token_id": len(pieces) - 2, "eos_token_id": len(pieces) - 1,
    }  # fmt: skip
    vision = {**sides, "num_attention_heads": 4, "image_size": 32, "patch_size": 8}
    torch.manual_seed(0)
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=width))
    model.logit_scale.data.fill_(3.0)
    model.save_pretrained(path)
    images = CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    CLIPProcessor(images, tokenizer).save_pretrained(path)
    return path


def write_dino(folder: Path, **changes: Any) -> str:
    """Write a ViT in the files of the published DINO, for images of 32 pixels; return its folder.

    As there the weights of a pooler are missing.
    """
    from transformers import ViTConfig, ViTImageProcessor, ViTModel

    config = ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        image_size=32, patch_size=8, layer_norm_eps=1e-6, **changes,
    )  # fmt: skip
    torch.manual_seed(0)
    model = ViTModel(config, add_pooling_layer=False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))  # so that images make a difference
    model.save_pretrained(folder)
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    return str(folder)


LABELS = ("person", "mouse", "sofa", "dog")
"""Of the detectors, by the names of COCO and Pascal VOC."""


def write_mask2former(folder: Path) -> str:
    """Write a Mask2Former on a Swin, with a head for four classes."""
    from transformers import (
        Mask2FormerConfig,
        Mask2FormerForUniversalSegmentation,
        Mask2FormerImageProcessor,
        SwinConfig,
    )

    swin = SwinConfig(
        image_size=64, patch_size=4, embed_dim=8, depths=[1, 1, 1, 1], num_heads=[1, 1, 2, 2],
        window_size=2, out_features=["stage1", "stage2", "stage3", "stage4"],
    )  # fmt: skip
    config = Mask2FormerConfig(
        backbone_config=swin, num_queries=6, num_labels=len(LABELS), hidden_dim=32,
        feature_size=32, mask_feature_size=32, encoder_layers=1, decoder_layers=2,
        num_attention_heads=2, encoder_feedforward_dim=16, dim_feedforward=16,
        id2label=dict(enumerate(LABELS)), label2id={n: i for i, n in enumerate(LABELS)},
    )  # fmt: skip
    torch.manual_seed(0)
    Mask2FormerForUniversalSegmentation(config).save_pretrained(folder)
    size = {"height": 64, "width": 64}
    Mask2FormerImageProcessor(size=size, do_reduce_labels=False).save_pretrained(folder)
    return str(folder)


def write_yolos(folder: Path) -> str:
    """Write a YOLOS, which answers with boxes, for four classes."""
    from transformers import YolosConfig, YolosForObjectDetection, YolosImageProcessor

    config = YolosConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        image_size=[32, 48], patch_size=8, num_detection_tokens=5,
        id2label=dict(enumerate(LABELS)), label2id={n: i for i, n in enumerate(LABELS)},
    )  # fmt: skip
    torch.manual_seed(0)
    YolosForObjectDetection(config).save_pretrained(folder)
    size = {"shortest_edge": 32, "longest_edge": 48}
    YolosImageProcessor(size=size).save_pretrained(folder)
    return str(folder)


BLIP_WORDS = (
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "yes", "no", "a", "red", "green", "cat", "dog",
    "bench", "big", "?", "-", ",", "##s",
)  # fmt: skip


def write_blip_vqa(folder: Path, bos_token_id: int = len(BLIP_WORDS)) -> str:
    """Write a BLIP that answers questions, in the files of the published one; return its folder.

    As there the model has two tokens more than its tokenizer, which answers and questions begin
    with.
    """
    from transformers import (
        BertTokenizer,
        BlipConfig,
        BlipForQuestionAnswering,
        BlipImageProcessor,
        BlipProcessor,
    )

    sides = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    text = {
        **sides, "vocab_size": len(BLIP_WORDS) + 2, "num_attention_heads": 4,
        "encoder_hidden_size": 32, "max_position_embeddings": 48, "pad_token_id": 0,
        "bos_token_id": bos_token_id, "sep_token_id": 3, "projection_dim": 16,
    }  # fmt: skip
    vision = {**sides, "num_attention_heads": 4, "image_size": 32, "patch_size": 8}
    torch.manual_seed(0)
    model = BlipForQuestionAnswering(BlipConfig(text_config=text, vision_config=vision))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))  # so that images make a difference
    model.save_pretrained(folder)
    tokenizer = BertTokenizer(vocab={word: number for number, word in enumerate(BLIP_WORDS)})
    images = BlipImageProcessor(size={"height": 32, "width": 32})
    BlipProcessor(images, tokenizer).save_pretrained(folder)
    return str(folder)
