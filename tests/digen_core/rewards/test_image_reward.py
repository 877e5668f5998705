"""ImageReward, against numbers of its published program on the same tiny weights."""

import json

import numpy as np
import pytest
import torch

from digen_core.config.rewards.preferences import ImageRewardConfig
from digen_core.errors import ConfigError
from digen_core.rewards.blip.image_reward import ImageReward
from support.tiny_image_reward import TEXT, write_image_reward

CPU = torch.device("cpu")
PROMPTS = ["a red circle", "two green squares and a very blue circle", "a dog"]
# By ImageReward 1.5, transformers 4.30.2 and timm 0.9.16, with a vision tower of this size: the
# score of each prompt's images of 64 x 64, 32 x 32 and 96 x 80 random pixels.
RECORDED = [
    [38.687580, 37.089165, -20.442259],
    [10.416213, 62.489735, 29.218645],
    [129.250793, 8.797050, 24.788372],
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_image_reward(tmp_path_factory.mktemp("image_reward"))


def config_of(folder, **changes):
    return ImageRewardConfig(path=str(folder), tokenizer=str(folder / "tokenizer"), **changes)


def image(seed, height, width):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return torch.from_numpy(pixels).movedim(-1, -3)[None] / 255


@pytest.mark.parametrize("column", range(3))
def test_scores_are_those_of_the_published_program(folder, column):
    pixels = image(column, *[(64, 64), (32, 32), (96, 80)][column])
    reward = ImageReward(config_of(folder, batch_size=2), CPU)
    got = reward(pixels.expand(len(PROMPTS), -1, -1, -1), PROMPTS)
    wanted = torch.tensor([row[column] for row in RECORDED])
    assert got.dtype == torch.float32
    # recorded on another processor, whose sums round otherwise: 1.3e-5 has been seen
    torch.testing.assert_close(got, wanted, rtol=5e-5, atol=5e-5)


def test_the_numbers_differ_by_prompt_and_by_image():
    assert len({round(score, 3) for row in RECORDED for score in row}) == 9


def test_batches_and_company_do_not_matter(folder):
    images = torch.cat([image(seed, 64, 64) for seed in range(5)])
    prompts = [*PROMPTS, "a circle " * 30, ""]
    together = ImageReward(config_of(folder), CPU)(images, prompts)
    for size in (1, 2):
        alone = ImageReward(config_of(folder, batch_size=size), CPU)(images, prompts)
        torch.testing.assert_close(alone, together, rtol=1e-5, atol=1e-5)


def test_of_a_long_prompt_35_tokens_are_read(folder):
    reward, pixels = ImageReward(config_of(folder), CPU), image(0, 64, 64)
    cut = " ".join(["red"] * 33)  # with the two tokens around them
    torch.testing.assert_close(reward(pixels, [f"{cut} dog"]), reward(pixels, [cut]))
    shorter = " ".join(["red"] * 32)
    assert not torch.equal(reward(pixels, [f"{shorter} dog"]), reward(pixels, [cut]))


def test_half_precision_is_near(folder):
    pixels = image(0, 64, 64)
    exact = ImageReward(config_of(folder), CPU)(pixels, PROMPTS[:1])
    half = ImageReward(config_of(folder, dtype="bfloat16"), CPU)(pixels, PROMPTS[:1])
    assert half.dtype == torch.float32
    assert not torch.equal(half, exact)
    torch.testing.assert_close(half, exact, rtol=0.1, atol=0.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mlp.layers.7.bias": None}, "holds no ImageReward: .*bias"),
        ({"blip.visual_encoder.pos_embed": torch.zeros(1, 4, 48)}, "size mismatch"),
        ({"blip.visual_encoder.blocks.5.norm1.weight": torch.ones(48)}, "holds no ImageReward"),
        ({"mlp.layers.x.weight": torch.ones(4)}, "holds no ImageReward"),
        ({"blip.extra": torch.ones(4)}, "holds no ImageReward: .*blip.extra"),
        ({"blip.visual_encoder.cls_token": "nothing"}, "cls_token is no tensor"),
        ({"blip.visual_encoder.pos_embed": torch.zeros(1)}, "holds no ImageReward"),
    ],
)
def test_other_weights_are_refused(tmp_path, changes, message):
    folder = write_image_reward(tmp_path, **changes)
    with pytest.raises(ConfigError, match=message):
        ImageReward(config_of(folder), CPU)


def settings(**changes):
    return json.dumps({**TEXT, **changes}).encode()


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("ImageReward.pt", b"nonsense", "ImageReward.pt of ImageReward cannot be read"),
        ("ImageReward.pt", b"", "ImageReward.pt of ImageReward cannot be read: EOFError"),
        ("ImageReward.pt", b".", "ImageReward.pt of ImageReward cannot be read"),
        ("med_config.json", b"{", "med_config.json of ImageReward cannot be read"),
        ("med_config.json", b"\xff\xfe", "med_config.json of ImageReward cannot be read"),
        ("med_config.json", b"[]", "its files are no tables"),
        ("med_config.json", b'{"hidden_size": 24}', "holds no ImageReward: 'hidden_act'"),
        ("med_config.json", json.dumps({"hidden_size": -1}).encode(), "holds no ImageReward"),
        ("med_config.json", settings(hidden_size="a"), "holds no ImageReward: .*'hidden_size'"),
        ("med_config.json", settings(num_attention_heads=0), "holds no ImageReward"),
        ("tokenizer/tokenizer.json", b"{}", "the tokenizer .* cannot be loaded: 'added_tokens'"),
    ],
)
def test_damaged_files_are_one_line(tmp_path, file, content, message):
    folder = write_image_reward(tmp_path)
    (folder / file).write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        ImageReward(config_of(folder), CPU)
    assert "\n" not in str(caught.value)


def test_files_that_are_not_there_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigError, match=r"ImageReward.pt of ImageReward cannot be read"):
        ImageReward(ImageRewardConfig(path=str(tmp_path)), CPU)
    with pytest.raises(ConfigError, match=r"ImageReward no/such cannot be loaded"):
        ImageReward(ImageRewardConfig(path="no/such"), CPU)
    with pytest.raises(ConfigError, match=r"ImageReward .*none/here/at/all cannot be loaded"):
        ImageReward(ImageRewardConfig(path=str(tmp_path / "none/here/at/all")), CPU)
    folder = write_image_reward(tmp_path)
    with pytest.raises(ConfigError, match=r"the tokenizer .*other cannot be loaded"):
        ImageReward(ImageRewardConfig(path=str(folder), tokenizer=str(tmp_path / "other")), CPU)
