"""Rewards that look through CLIP, against the forward pass of transformers on tiny models."""

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch.nn import functional

from digen_core.config.rewards.clip import ClipScoreConfig, ConsistencyConfig
from digen_core.config.rewards.preferences import AestheticConfig, HpsConfig, PickScoreConfig
from digen_core.errors import UserError
from digen_core.rewards.attempts import PermanentError
from digen_core.rewards.clip.aesthetic import Aesthetic, load_head
from digen_core.rewards.clip.clip import Clip
from digen_core.rewards.clip.clipscore import ClipScore
from digen_core.rewards.clip.hps import Hps
from digen_core.rewards.clip.pickscore import PickScore
from digen_core.rewards.pixels import as_pixels
from digen_core.rewards.videos.consistency import Consistency
from support.tiny_models import write_clip

CPU = torch.device("cpu")
WIDTH = 16
IMAGES = torch.rand(5, 3, 40, 56, generator=torch.Generator().manual_seed(0))
SQUARE = IMAGES[..., :40]
PROMPTS = ["a red cat", "a dog", "a red cat", "", "many words " * 30]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return write_clip(tmp_path_factory.mktemp("clip"), WIDTH)


@pytest.fixture(scope="module")
def expected(folder):
    """What CLIPModel's own forward says of each image and its prompt, one pair at a time."""
    from transformers import CLIPModel, CLIPProcessor

    model, processor = CLIPModel.from_pretrained(folder), CLIPProcessor.from_pretrained(folder)
    pixels, found = as_pixels(IMAGES), []
    for image, prompt in zip(pixels, PROMPTS, strict=True):
        inputs = processor(
            text=[prompt], images=[image], return_tensors="pt", truncation=True, max_length=24
        )
        with torch.no_grad():
            found.append(model(**inputs))
    logits = torch.cat([each.logits_per_image[0] for each in found])
    return logits, torch.cat([each.image_embeds for each in found])


def close(got, wanted):
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


def test_pickscore_is_the_logit_over_26(folder, expected):
    close(PickScore(PickScoreConfig(path=folder), CPU)(IMAGES, PROMPTS), expected[0] / 26)


@pytest.fixture(scope="module")
def cosine(folder):
    return ClipScore(ClipScoreConfig(path=folder, counts="cosine"), CPU)


def test_hps_is_the_cosine(folder, cosine):
    got = Hps(HpsConfig(path=folder), CPU)(SQUARE, PROMPTS)
    close(got, cosine(SQUARE, PROMPTS))
    assert got.abs().max() <= 1


def on_black(image):
    """Return an image [3, H, W] as HPS v2's program has it: scaled to fit and set on black."""
    whole = Image.fromarray(as_pixels(image))
    small = whole.resize([round(own * 32 / max(whole.size)) for own in whole.size])
    square = Image.new("RGB", (32, 32))
    square.paste(small, [(32 - own) // 2 for own in small.size])
    return torch.from_numpy(np.array(square)).movedim(-1, 0) / 255


@pytest.mark.parametrize("images", [IMAGES, IMAGES.mT, IMAGES[..., :20]])
def test_hps_sees_all_of_images_that_are_not_square(images, folder, cosine):
    got = Hps(HpsConfig(path=folder), CPU)(images, PROMPTS)
    close(got, cosine(torch.stack([on_black(image) for image in images]), PROMPTS))
    assert (got - cosine(images, PROMPTS)).abs().max() > 0.01
    blunt = Hps(HpsConfig(path=folder, antialias=False), CPU)(images, PROMPTS)
    assert 0 < (blunt - got).abs().max() < 0.1


def test_clipscore_is_the_positive_cosine_times_2_5(folder, expected):
    cosines = expected[0] / np.exp(3.0)
    assert (cosines < 0).any()
    assert (cosines > 0).any()
    got = ClipScore(ClipScoreConfig(path=folder), CPU)(IMAGES, PROMPTS)
    close(got, 2.5 * cosines.clamp(min=0))
    raw = ClipScore(ClipScoreConfig(path=folder, counts="cosine"), CPU)(IMAGES, PROMPTS)
    close(raw, cosines)


def test_clipscore_counts_the_cosine_with_a_text_of_the_row(folder):
    config = ClipScoreConfig(path=folder, counts="cosine", text_column="info.style")
    rows = [{"info": {"style": "a dog"}}, {"info": {}}, {"info": None}, {}, {"info": "x"}]
    found = ClipScore(config, CPU)(IMAGES, PROMPTS, rows)
    plain = ClipScore(ClipScoreConfig(path=folder, counts="cosine"), CPU)
    close(found, plain(IMAGES, ["a dog", *PROMPTS[1:]]))
    assert (found < 0).any()
    with pytest.raises(PermanentError, match=r"its 'info.style' is 3; it must be a text"):
        ClipScore(config, CPU)(IMAGES[:1], ["a"], [{"info": {"style": 3}}])


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_batches_do_not_matter(folder, expected, batch_size):
    clip = Clip(ClipScoreConfig(path=folder, batch_size=batch_size), CPU)
    close(clip.embed_images(IMAGES), expected[1])


def test_half_precision_gives_float32_scores(folder, cosine):
    got = Hps(HpsConfig(path=folder, dtype="bfloat16"), CPU)(SQUARE, PROMPTS)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, cosine(SQUARE, PROMPTS), rtol=0.1, atol=0.02)


def test_the_published_pickscore_takes_the_processor_it_was_trained_with():
    assert PickScoreConfig().processor_path == "laion/CLIP-ViT-H-14-laion2B-s32B-b79K"
    assert PickScoreConfig(path="x/y").processor_path == "x/y"
    assert PickScoreConfig(path="x/y", processor="a/b").processor_path == "a/b"


def head_of(path, prefixes, widths):
    """Write a head with random layers and return its tensors."""
    torch.manual_seed(1)
    tensors = {}
    for prefix, a, b in zip(prefixes, widths, widths[1:], strict=False):
        tensors |= {f"{prefix}weight": torch.randn(b, a), f"{prefix}bias": torch.randn(b)}
    save_file(tensors, path)
    return tensors


def test_the_linear_aesthetic_head(folder, expected, tmp_path):
    head = str(tmp_path / "head.safetensors")
    tensors = head_of(head, [""], [WIDTH, 1])
    got = Aesthetic(AestheticConfig(path=folder, head=head), CPU)(IMAGES, PROMPTS)
    close(got, functional.linear(expected[1], tensors["weight"], tensors["bias"]).squeeze(1))


def test_the_chain_of_layers_is_in_the_order_of_their_numbers(folder, expected, tmp_path):
    head = str(tmp_path / "head.safetensors")
    tensors = head_of(head, ["layers.0.", "layers.2.", "layers.10."], [WIDTH, 8, 4, 1])
    got = Aesthetic(AestheticConfig(path=folder, head=head), CPU)(IMAGES, PROMPTS)
    x = expected[1]
    for layer in ("0", "2", "10"):
        x = x @ tensors[f"layers.{layer}.weight"].T + tensors[f"layers.{layer}.bias"]
    close(got, x.squeeze(1))


@pytest.mark.parametrize(
    ("prefixes", "widths", "message"),
    [
        ([""], [8, 1], r"have the shapes \[\[1, 8\]\]; they must lead from 16, the width of"),
        ([""], [WIDTH, 2], r"have the shapes \[\[2, 16\]\]"),
        ([], [], r"holds \[\], not a weight and a bias per layer"),
    ],
)
def test_a_head_that_does_not_fit_is_refused(tmp_path, prefixes, widths, message):
    head = str(tmp_path / "head.safetensors")
    head_of(head, prefixes, widths)
    with pytest.raises(UserError, match=message):
        load_head(head, WIDTH)


def test_a_head_that_is_no_safetensors_file_is_refused(tmp_path):
    path = tmp_path / "head.pth"
    path.write_bytes(b"PK\x03\x04" * 8)
    with pytest.raises(UserError, match=r"cannot read the aesthetic head .*head.pth"):
        load_head(str(path), WIDTH)


def test_a_model_that_is_not_there_is_refused_in_one_line(tmp_path):
    with pytest.raises(UserError, match=f"the CLIP model {tmp_path} with the processor") as error:
        Clip(ClipScoreConfig(path=str(tmp_path)), CPU)
    assert "\n" not in str(error.value)


def test_consistency_is_vbench_s_mean_of_two_cosines(folder, expected):
    consistency = Consistency(ConsistencyConfig(path=folder), CPU)
    video, (_, e) = IMAGES[None, :4], expected
    terms = []
    for t in range(1, 4):
        terms.append((max(0.0, float(e[0] @ e[t])) + max(0.0, float(e[t - 1] @ e[t]))) / 2)
    assert consistency(video, ["a"]).tolist() == pytest.approx([np.mean(terms)], rel=1e-5)
    still = IMAGES[:2, None].expand(-1, 3, -1, -1, -1)
    assert consistency(still, ["a", "b"]).tolist() == pytest.approx([1, 1], rel=1e-5)
    with pytest.raises(PermanentError, match="videos of 1 frames cannot be judged"):
        consistency(video[:, :1], ["a"])
