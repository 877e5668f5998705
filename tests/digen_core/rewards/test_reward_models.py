"""HPS v3 and VideoReward, against transformers' and peft's own models with the same weights."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import Qwen2VLImageProcessorPil

from digen_core.config.rewards.reward_models import Hps3Config, VideoRewardConfig
from digen_core.errors import ConfigError
from digen_core.rewards import reward_functions
from digen_core.rewards.attempts import PermanentError
from digen_core.rewards.scoring import RewardError, score_images
from digen_core.rewards.vlm.frames import patches_of, seen_frames
from digen_core.rewards.vlm.hps3 import Hps3
from digen_core.rewards.vlm.video_reward import VideoReward
from digen_core.rewards.vlm.weights import name_of
from support.tiny_reward_models import (
    HPS_MARKS,
    HPS_TEMPLATE,
    SETTINGS,
    VIDEO_MARKS,
    VIDEO_TEMPLATE,
    in_old_names,
    tokenizer_with,
    write_hps3,
    write_video_reward,
)

CPU = torch.device("cpu")
PROMPTS = ["a red circle", "two dogs that run after a {very} blue ball", "é"]
NORMS = SETTINGS["inference_config"]
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture(scope="module")
def hps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hps3")
    return folder, write_hps3(folder)


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    folder = tmp_path_factory.mktemp("video_reward")
    return folder, write_video_reward(folder)


def paths(folder):
    return {
        "path": str(folder), "base": str(folder / "base"),
        "template": str(folder / "template.txt"),
    }  # fmt: skip


def hps_config(folder, **changes):
    return Hps3Config.model_validate({**paths(folder), "dtype": "float32", **changes})


def video_config(folder, **changes):
    keys = {"dtype": "float32", "frames_per_second": 16, **changes}
    return VideoRewardConfig.model_validate({**paths(folder), **keys})


def pictures(*shape, seed=0):
    drawn = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    return torch.from_numpy(drawn) / 255


def patched(frames, height, width):
    """Return patches [N, 3 * 2 * 14 * 14] of pairs of frames [F, 3, H, W], by the definition."""
    mean = np.array([0.48145466, 0.4578275, 0.40821073])
    deviation = np.array([0.26862954, 0.26130258, 0.27577711])
    large = []
    for frame in frames:
        pixels = (frame * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
        sized = Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC)
        large.append(((np.asarray(sized) / 255 - mean) / deviation).transpose(2, 0, 1))
    patches = []
    for first, second in zip(large[::2], large[1::2], strict=True):
        pair = np.stack([first, second], axis=1)  # [3, 2, H, W]
        for y in range(0, height, 28):
            for x in range(0, width, 28):
                for dy in (0, 14):
                    for dx in (0, 14):
                        patch = pair[:, :, y + dy : y + dy + 14, x + dx : x + dx + 14]
                        patches.append(patch.reshape(-1))
    return torch.tensor(np.array(patches), dtype=torch.float32)


def by_hand(model, marks, text, kind, frames, size, positions=None):
    """Return what the head says at each mark [M, O] of one sample, without batches or padding."""
    tokenizer, (height, width) = tokenizer_with(marks), size
    grid = [len(frames) // 2, height // 14, width // 14]
    chat = f"<|im_start|>user\n<|vision_start|>{f'<|{kind}_pad|>' * (int(np.prod(grid)) // 4)}"
    chat += f"<|vision_end|>{text}<|im_end|>\n<|im_start|>assistant\n"
    ids = torch.tensor([tokenizer(chat)["input_ids"]])
    place = torch.arange(ids.shape[1]).expand(3, 1, -1) if positions is None else positions(ids)
    end = "" if kind == "image" else "_videos"
    with torch.no_grad():
        hidden = model(
            input_ids=ids, position_ids=place, output_hidden_states=True,
            **{f"pixel_values{end}": patched(frames, height, width)},
            **{f"{kind}_grid_thw": torch.tensor([grid])},
        ).hidden_states[-1][0]  # fmt: skip
        at = [ids[0].tolist().index(tokenizer.convert_tokens_to_ids(mark)) for mark in marks]
        return model.rm_head(hidden[at])


def hps_by_hand(model, image, prompt, size=(448, 448), **positions):
    text = HPS_TEMPLATE.replace("{text_prompt}", prompt)
    return by_hand(model, HPS_MARKS, text, "image", [image, image], size, **positions)[0, 0]


def test_hps3_is_the_mean_that_the_head_tells_at_its_mark(hps):
    folder, model = hps
    images = pictures(3, 3, 64, 64)
    got = Hps3(hps_config(folder), CPU)(images, PROMPTS)
    wanted = [hps_by_hand(model, image, text) for image, text in zip(images, PROMPTS, strict=True)]
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, torch.stack(wanted), **CLOSE)


def test_images_are_made_256_tokens_large(hps):
    folder, model = hps
    wide, large = pictures(3, 40, 120)[None], pictures(3, 700, 600)[None]
    for images, size in ((wide, (280, 784)), (large, (476, 392))):
        got = Hps3(hps_config(folder), CPU)(images, PROMPTS[:1])
        torch.testing.assert_close(got[0], hps_by_hand(model, images[0], PROMPTS[0], size), **CLOSE)


def test_each_token_has_the_position_of_its_place_in_the_text(hps):
    folder, model = hps
    image = pictures(3, 64, 64)
    got = Hps3(hps_config(folder), CPU)(image[None], PROMPTS[:1])[0]

    def on_a_grid(ids):
        kinds = (ids == tokenizer_with(HPS_MARKS).convert_tokens_to_ids("<|image_pad|>")).int()
        grid = torch.tensor([[1, 32, 32]])
        return model.model.get_rope_index(ids, mm_token_type_ids=kinds, image_grid_thw=grid)[0]

    other = hps_by_hand(model, image, PROMPTS[0], positions=on_a_grid)
    assert abs(got - other) > 1e-2


def videos_by_hand(adapted, videos, seen, size=(280, 392)):
    rows = []
    for frames, prompt in zip(videos[:, seen], PROMPTS, strict=False):
        text = VIDEO_TEMPLATE.replace("{text_prompt}", prompt)
        model = adapted.base_model.model
        rows.append(by_hand(model, VIDEO_MARKS, text, "video", frames, size)[:, 0])
    read = torch.stack(rows)
    return {
        name.lower(): (read[:, i] - NORMS[f"{name}_mean"]) / NORMS[f"{name}_std"]
        for i, name in enumerate(("VQ", "MQ", "TA"))
    }


def test_video_reward_is_what_pefts_model_says_normalised(video):
    folder, adapted = video
    videos = pictures(3, 9, 3, 32, 48)
    got = VideoReward(video_config(folder), CPU)(videos, PROMPTS)
    wanted = videos_by_hand(adapted, videos, [0, 3, 5, 8])
    wanted["score"] = wanted["vq"] + wanted["mq"] + wanted["ta"]
    assert got.keys() == wanted.keys()
    for name, values in wanted.items():
        torch.testing.assert_close(got[name], values, **CLOSE)


@pytest.mark.parametrize("dimensions", [["vq"], ["ta", "mq"]])
def test_the_dimensions_that_are_named_are_summed(video, dimensions):
    folder, _ = video
    videos = pictures(1, 4, 3, 32, 48)
    got = VideoReward(video_config(folder, dimensions=dimensions), CPU)(videos, PROMPTS[:1])
    assert got.keys() == {"score", "vq", "mq", "ta"}
    assert got["score"].item() == pytest.approx(sum(got[name].item() for name in dimensions))


def test_the_adapters_count_and_so_does_their_scale(tmp_path):
    videos, scores = pictures(1, 4, 3, 32, 48), {}
    for kind, lora in {"usual": {}, "rank-stabilised": {"use_rslora": True}}.items():
        (tmp_path / kind).mkdir()
        adapted = write_video_reward(tmp_path / kind, settings={"peft_lora_config": lora})
        got = VideoReward(video_config(tmp_path / kind), CPU)(videos, PROMPTS[:1])["vq"]
        wanted = videos_by_hand(adapted, videos, [0, 1, 2, 3])["vq"]
        torch.testing.assert_close(got, wanted, **CLOSE)
        with adapted.disable_adapter():
            scores["none"] = videos_by_hand(adapted, videos, [0, 1, 2, 3])["vq"].item()
        scores[kind] = got.item()
    assert len({round(score, 2) for score in scores.values()}) == 3


@pytest.mark.parametrize(
    ("num_frames", "frames_per_second", "wanted"),
    [
        (2, 16, [0, 1]),
        (3, 16, [0, 2]),
        (5, 16, [0, 1, 3, 4]),
        (49, 16, [0, 10, 19, 29, 38, 48]),  # 6.1 frames
        (72, 16, [0, 10, 20, 30, 41, 51, 61, 71]),  # 9, halfway between 8 and 10
        (53, 24, [0, 17, 35, 52]),  # 4.4
        (8, 1, [0, 1, 2, 3, 4, 5, 6, 7]),  # 16, of which there are 8
    ],
)
def test_two_frames_of_a_second_are_seen(num_frames, frames_per_second, wanted):
    assert seen_frames(num_frames, frames_per_second, 2.0) == wanted


def test_at_most_768_frames_are_seen():
    assert len(seen_frames(1025, 1, 2.0)) == 768


def test_an_image_twice_has_the_patches_of_the_image():
    processor = Qwen2VLImageProcessorPil(min_pixels=3136, max_pixels=200704)
    frame = np.random.default_rng(0).integers(0, 256, (1, 60, 90, 3), dtype=np.uint8)
    once, grid = patches_of(frame, processor)
    twice, same = patches_of(frame.repeat(2, axis=0), processor)
    assert grid.tolist() == same.tolist() == [1, 4, 6]
    torch.testing.assert_close(once, twice)
    later, more = patches_of(
        np.concatenate([frame.repeat(2, axis=0), 255 - frame, frame]), processor
    )
    assert more.tolist() == [2, 4, 6]
    torch.testing.assert_close(later[: len(once)], once)
    assert not torch.equal(later[len(once) :], once)


@pytest.mark.parametrize("source", [(120, 210), (480, 832), (720, 1280)])
def test_smooth_frames_are_scaled_as_torchvision_does(source):
    """It calls torch's filter, and rounds to 8 bits."""
    coarse = np.random.default_rng(0).integers(0, 256, (15, 26, 3), dtype=np.uint8)
    frame = Image.fromarray(coarse).resize(source[::-1], Image.Resampling.BICUBIC)
    ours = np.asarray(frame.resize((588, 336), Image.Resampling.BICUBIC)).astype(float)
    pixels = torch.from_numpy(np.array(frame)).movedim(-1, 0)[None].float()
    theirs = torch.nn.functional.interpolate(pixels, (336, 588), mode="bicubic", antialias=True)
    whole = theirs[0].clamp(0, 255).round().movedim(0, -1).numpy()
    assert np.abs(ours - whole).max() <= 2


def test_large_frames_are_made_smaller(video):
    folder, adapted = video
    videos = pictures(1, 2, 3, 720, 1280)
    got = VideoReward(video_config(folder), CPU)(videos, PROMPTS[:1])["ta"]
    wanted = videos_by_hand(adapted, videos, [0, 1], (336, 588))["ta"]
    torch.testing.assert_close(got, wanted, **CLOSE)


def test_scores_depend_on_prompt_and_picture(hps, video):
    one = pictures(2, 3, 64, 64)
    reward = Hps3(hps_config(hps[0]), CPU)
    crossed = reward(one.repeat_interleave(2, dim=0), PROMPTS[:2] * 2)
    clips = pictures(2, 4, 3, 32, 48)
    judge = VideoReward(video_config(video[0]), CPU)
    parts = judge(clips.repeat_interleave(2, dim=0), PROMPTS[:2] * 2)
    for values in (crossed, parts["score"], parts["ta"]):
        assert torch.isfinite(values).all()
        assert len({round(value, 2) for value in values.tolist()}) == 4
    first, second = parts["vq"][:2].tolist()
    assert first == pytest.approx(second, abs=1e-4)  # its mark stands before the prompt
    still = judge(clips[:1, [0, 0, 0, 0]], PROMPTS[:1])
    assert abs(still["mq"] - parts["mq"][0]) > 1e-2


def test_batches_and_company_do_not_matter(hps, video):
    images, videos = pictures(3, 3, 64, 64), pictures(3, 4, 3, 32, 48)
    together = Hps3(hps_config(hps[0]), CPU)(images, PROMPTS)
    both = VideoReward(video_config(video[0], batch_size=3), CPU)(videos, PROMPTS)
    for size in (1, 2):
        alone = Hps3(hps_config(hps[0], batch_size=size), CPU)(images, PROMPTS)
        torch.testing.assert_close(alone, together, **CLOSE)
        found = VideoReward(video_config(video[0], batch_size=size), CPU)(videos, PROMPTS)
        for name, values in found.items():
            torch.testing.assert_close(values, both[name], **CLOSE)


def test_half_precision_is_near_and_the_default(hps, video):
    image, clip = pictures(1, 3, 64, 64), pictures(1, 4, 3, 32, 48)
    exact = Hps3(hps_config(hps[0]), CPU)(image, PROMPTS[:1])
    half = Hps3(Hps3Config.model_validate(paths(hps[0])), CPU)(image, PROMPTS[:1])
    assert half.dtype == torch.float32
    assert not torch.equal(half, exact)
    torch.testing.assert_close(half, exact, rtol=0.1, atol=0.3)
    sharp = VideoReward(video_config(video[0]), CPU)(clip, PROMPTS[:1])["score"]
    blunt = VideoReward(video_config(video[0], dtype="bfloat16"), CPU)(clip, PROMPTS[:1])["score"]
    assert not torch.equal(sharp, blunt)
    torch.testing.assert_close(blunt, sharp, rtol=0.1, atol=0.3)


def test_both_layouts_of_names_are_read(tmp_path, hps, video):
    image, clip = pictures(1, 3, 64, 64), pictures(1, 4, 3, 32, 48)
    write_hps3(tmp_path, in_old_names)
    got = Hps3(hps_config(tmp_path), CPU)(image, PROMPTS[:1])
    torch.testing.assert_close(got, Hps3(hps_config(hps[0]), CPU)(image, PROMPTS[:1]))
    (tmp_path / "new").mkdir()
    write_video_reward(tmp_path / "new", dict)
    found = VideoReward(video_config(tmp_path / "new"), CPU)(clip, PROMPTS[:1])["score"]
    old = VideoReward(video_config(video[0]), CPU)(clip, PROMPTS[:1])["score"]
    torch.testing.assert_close(found, old)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("model.layers.0.mlp.up_proj.weight", "language_model.layers.0.mlp.up_proj.weight"),
        ("model.embed_tokens.weight", "language_model.embed_tokens.weight"),
        ("model.language_model.norm.weight", "language_model.norm.weight"),
        ("visual.merger.ln_q.bias", "visual.merger.ln_q.bias"),
        ("model.visual.merger.ln_q.bias", "visual.merger.ln_q.bias"),
        ("rm_head.0.weight", "rm_head.0.weight"),
        ("lm_head.weight", "lm_head.weight"),
    ],
)
def test_names_are_those_of_transformers(name, wanted):
    assert name_of(name) == wanted


def test_the_latest_checkpoint_is_read(video, tmp_path):
    write_video_reward(tmp_path)
    (tmp_path / "checkpoint-9").mkdir()
    (tmp_path / "checkpoint-9" / "model.pth").write_bytes(b"nonsense")
    (tmp_path / "checkpoint-last").mkdir()
    (tmp_path / "checkpoint-last" / "model.pth").write_bytes(b"nonsense")
    VideoReward(video_config(tmp_path), CPU)
    (tmp_path / "checkpoint-9").rename(tmp_path / "checkpoint-100")
    with pytest.raises(ConfigError, match=r"checkpoint-100/model.pth cannot be read"):
        VideoReward(video_config(tmp_path), CPU)


HPS_FILE = r"HPSv3.safetensors"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.language_model.norm.weight": None}, "lacks language_model.norm.weight; give"),
        ({"rm_head.5.bias": None}, "lacks rm_head.5.bias; give"),
        ({"model.extra": torch.ones(2)}, "has model.extra, which the model has not; give"),
        ({"rm_head.7.bias": torch.ones(2)}, "has rm_head.7.bias, which the model has not; give"),
        ({"model.norm.weight": torch.ones(32)}, r"has model.*norm.weight, which the model has not"),
        ({"rm_head.3.bias": torch.ones(3)}, r"has rm_head.3.bias of the shape \[3\], not \[16\]"),
        (
            {"model.language_model.embed_tokens.weight": torch.ones(304, 32)},
            r"has model.language_model.embed_tokens.weight of the shape \[304, 32\], not \[264, 32",
        ),
    ],
)
def test_other_weights_of_hps3_are_refused(tmp_path, changes, message):
    write_hps3(tmp_path, **changes)
    with pytest.raises(ConfigError, match=f"{HPS_FILE} {message}") as caught:
        Hps3(hps_config(tmp_path), CPU)
    assert "\n" not in str(caught.value)


LAYER = "base_model.model.model.layers.0.mlp.up_proj"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {f"{LAYER}.lora_A.default.weight": None},
            "adapter of model.*up_proj does not fit: .*lora",
        ),
        (
            {f"{LAYER}.base_layer.weight": None},
            "has model.*up_proj.lora_A.*, which the model has not",
        ),
        ({f"{LAYER}.lora_B.default.weight": torch.ones(3, 4)}, "of model.*up_proj does not fit"),
        ({f"{LAYER}.lora_A.default.weight": torch.ones(2, 32)}, "rank is 2, but .* says 4"),
        ({f"{LAYER}.lora_magnitude": torch.ones(4)}, "lora_magnitude, which the model has not"),
        ({"base_model.model.rm_head.weight": None}, "lacks rm_head.weight"),
        ({"base_model.model.rm_head.bias": torch.ones(1)}, "has rm_head.bias, which the model"),
        ({"base_model.model.visual.merger.ln_q.bias": None}, "lacks visual.merger.ln_q.bias"),
        ({"base_model.model.model.norm.weight": torch.ones(2)}, r"model.norm.weight of the shape"),
        ({"base_model.model.model.norm.weight": "nothing"}, r"norm.weight, which is no tensor"),
    ],
)
def test_other_weights_of_video_reward_are_refused(tmp_path, changes, message):
    write_video_reward(tmp_path, **changes)
    with pytest.raises(ConfigError, match=rf"model.pth.*{message}") as caught:
        VideoReward(video_config(tmp_path), CPU)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("checkpoint-12/model.pth", b"", "checkpoint-12/model.pth cannot be read: EOFError"),
        ("checkpoint-12/model.pth", b"nonsense", "checkpoint-12/model.pth cannot be read"),
        ("model_config.json", b"{", "cannot read VideoReward's settings .*model_config.json"),
        ("model_config.json", b"{}", "model_config.json is not that of .*: data_config is missing"),
        ("base/config.json", b"{", "the base .*base cannot be loaded"),
        ("base/config.json", b'{"model_type": "clip"}', "base is a clip, not a Qwen2-VL"),
        ("base/tokenizer.json", b"{}", "the base .*base cannot be loaded"),
        ("base/preprocessor_config.json", b"[", "the base .*base cannot be loaded"),
        ("base/chat_template.jinja", b"{{ no", "the base .*base makes no chat"),
        ("base/chat_template.jinja", b"hello", "leaves 0 places for one video"),
        ("template.txt", b"\xff\xfe", "cannot read the template .*template.txt"),
    ],
)
def test_damaged_files_are_one_line(tmp_path, file, content, message):
    write_video_reward(tmp_path)
    assert (tmp_path / file).exists()
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        VideoReward(video_config(tmp_path), CPU)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("table", "change", "message"),
    [
        ("data_config", {"sample_type": "multi_pts"}, "data_config.sample_type: must be 'uniform'"),
        ("data_config", {"num_frames": 8}, "data_config.num_frames: must be None"),
        ("data_config", {"fps": 0}, "data_config.fps: must be greater than 0"),
        ("model_config", {"output_dim": 3}, "model_config.output_dim: must be 1"),
        ("model_config", {"reward_token": "last"}, "model_config.reward_token: must be 'special'"),
        ("inference_config", {"MQ_std": 0.0}, "inference_config.MQ_std: must be greater than 0"),
        ("peft_lora_config", {"lora_r": 8}, "its rank is 4, but model_config.json says 8"),
    ],
)
def test_settings_of_another_model_are_refused(tmp_path, table, change, message):
    write_video_reward(tmp_path, settings={table: change})
    with pytest.raises(ConfigError, match=message) as caught:
        VideoReward(video_config(tmp_path), CPU)
    assert "\n" not in str(caught.value)


def test_a_broken_safetensors_file_is_one_line(tmp_path):
    write_hps3(tmp_path)
    for content in (b"", b"nonsense" * 9):
        (tmp_path / "HPSv3.safetensors").write_bytes(content)
        with pytest.raises(ConfigError, match=r"HPSv3.safetensors cannot be read: ") as caught:
            Hps3(hps_config(tmp_path), CPU)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no marks, {text_prompt}", "has <|Reward|> 0 times, but must have it once; docs/rewards"),
        ("<|Reward|> {text_prompt} <|Reward|>", "has <|Reward|> 2 times, but must"),
        ("<|Reward|> {prompt}", "has {text_prompt} 0 times, but must have it once"),
        ("{text_prompt} <|Reward|> {text_prompt}", "has {text_prompt} 2 times"),
        ("{text_prompt} <|Reward|> <|im_end|>", "has <|Reward|>, <|im_end|>, not <|Reward|>; docs"),
    ],
)
def test_a_template_without_what_it_needs_is_refused(hps, tmp_path, text, message):
    (tmp_path / "own.txt").write_text(text)
    with pytest.raises(ConfigError) as caught:
        Hps3(hps_config(hps[0], template=str(tmp_path / "own.txt")), CPU)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_marks_have_to_stand_in_their_order(video, tmp_path):
    text = "<|MQ_reward|> <|VQ_reward|> {text_prompt} <|TA_reward|>"
    (tmp_path / "own.txt").write_text(text)
    with pytest.raises(ConfigError, match=r"MQ_reward.*VQ_reward.*TA.*, not <\|VQ_reward"):
        VideoReward(video_config(video[0], template=str(tmp_path / "own.txt")), CPU)


def test_what_cannot_be_had_is_named(tmp_path, hps, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for change, message in (
        ({"template": "none.txt"}, "cannot read the template none.txt: .*docs/rewards.md shows"),
        ({"path": "no/such"}, "HPS v3 no/such cannot be loaded"),
        ({"path": str(tmp_path)}, "HPSv3.safetensors cannot be read"),
        ({"base": str(tmp_path / "none/here/at/all")}, "the base .* cannot be loaded"),
    ):
        with pytest.raises(ConfigError, match=message):
            Hps3(hps_config(hps[0], **change), CPU)
    (tmp_path / "model_config.json").write_text(json.dumps(SETTINGS))
    with pytest.raises(ConfigError, match=r"is without checkpoint-NUMBER/model.pth; give the fold"):
        VideoReward(video_config(hps[0], path=str(tmp_path)), CPU)


def test_a_prompt_with_a_mark_and_a_single_frame_are_refused(hps, video):
    with pytest.raises(ConfigError, match=r"'a <\|Reward\|>' has <\|Reward\|>, which the model wo"):
        Hps3(hps_config(hps[0]), CPU)(pictures(1, 3, 64, 64), ["a <|Reward|>"])
    with pytest.raises(PermanentError, match=r"videos of 1 frames cannot be judged; use 2"):
        VideoReward(video_config(video[0]), CPU)(pictures(1, 1, 3, 32, 48), ["a"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dimensions": []}, "must name one dimension or more"),
        ({"dimensions": ["vq", "vq"]}, "must name one dimension or more, each once"),
        ({"dimensions": ["overall"]}, "'vq', 'mq' or 'ta'"),
        ({"frames_per_second": 0}, "greater than 0"),
        ({"batch_size": 0}, "greater than or equal to 1"),
    ],
)
def test_wrong_keys_are_refused(video, change, message):
    with pytest.raises(ValueError, match=message):
        video_config(video[0], **change)


def test_a_video_is_scored_by_both_as_any_reward(hps, video):
    configs = {"hps3": hps_config(hps[0], frame_stride=2), "video": video_config(video[0])}
    videos = pictures(2, 5, 3, 32, 48)
    functions = reward_functions(configs, CPU)
    found = score_images(functions, configs, videos, PROMPTS[:2])
    assert found.keys() == {
        "reward", "hps3/score", "video/score", "video/vq", "video/mq", "video/ta"
    }  # fmt: skip
    frames = functions["hps3"](
        videos[:, ::2].flatten(0, 1), [p for p in PROMPTS[:2] for _ in "abc"]
    )
    np.testing.assert_allclose(found["hps3/score"], frames.view(2, 3).mean(dim=1), rtol=1e-4)
    np.testing.assert_allclose(found["reward"], found["hps3/score"] + found["video/score"])
    with pytest.raises(RewardError, match=r"has <\|a\|>, which the model would read as a mark"):
        score_images(functions, configs, videos, ["a <|a|>", "b"])
