"""The reward `geneval`: its detectors and colours, on tiny models of the real architectures."""

import json

import numpy as np
import pytest
import torch

from digen_core.config.rewards.verifiers import GenevalConfig
from digen_core.config.run import RunConfig
from digen_core.data.prompts import evaluation_prompts, train_prompts
from digen_core.errors import UserError
from digen_core.preflight.rewards import check_rewards
from digen_core.rewards.attempts import PermanentError
from digen_core.rewards.clip.clip import Clip
from digen_core.rewards.geneval.boxes import Found
from digen_core.rewards.geneval.colours import GREY, Colours, cut_out
from digen_core.rewards.geneval.detectors import Detector, instances
from digen_core.rewards.geneval.geneval import Geneval
from digen_core.rewards.geneval.wanted import COLOURS
from digen_core.rewards.pixels import as_pixels
from support.tiny_models import LABELS, write_clip, write_mask2former, write_yolos

CPU = torch.device("cpu")
IMAGES = torch.rand(3, 3, 40, 56, generator=torch.Generator().manual_seed(0))
PIXELS = list(as_pixels(IMAGES))
ROW = {"tag": "single_object", "include": [{"class": "dog", "count": 1}], "exclude": None}


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return write_clip(tmp_path_factory.mktemp("clip"))


@pytest.fixture(scope="module")
def masks(tmp_path_factory):
    return write_mask2former(tmp_path_factory.mktemp("mask2former"))


@pytest.fixture(scope="module")
def boxes(tmp_path_factory):
    return write_yolos(tmp_path_factory.mktemp("yolos"))


def test_an_instance_of_masks_drawn_by_hand():
    """Two queries on 8 x 8 cells, for an image of 16 x 16 in a padded place of 32 x 32."""
    logits = torch.full((2, 5), -20.0)
    logits[0, 3], logits[1, 4] = 20.0, 20.0  # a dog, and nothing
    drawn = torch.full((2, 8, 8), -9.0)
    drawn[0, :2, 1:3] = 9.0  # 8 pixels to the right and 8 down, each cell being 4 x 4 of them
    ((label, one),) = instances(logits, drawn, (32, 32), (16, 16), (16, 16), 0.3)
    assert label == 3
    assert one.box == (4, 0, 12, 8)
    assert one.mask.shape == (16, 16)
    assert one.mask[:7, 5:11].all()
    assert 60 <= one.mask.sum() <= 64  # the corners are round
    assert 0.9 < one.score < 1  # edges are less sure than the middle
    # twice as large an image, in the same place
    ((_, large),) = instances(logits, drawn, (32, 32), (16, 16), (32, 32), 0.3)
    assert large.box == (8, 0, 24, 16)
    assert instances(logits, -abs(drawn), (32, 32), (16, 16), (16, 16), 0.3) == []
    assert instances(logits, drawn, (32, 32), (16, 16), (16, 16), 0.999) == []


def test_mask2former_is_read_as_transformers_reads_it(masks):
    """The same classes and scores, save that transformers takes masks of 384 x 384."""
    from transformers import AutoImageProcessor, Mask2FormerForUniversalSegmentation

    detector = Detector(masks, None, 2, CPU)
    found = detector(PIXELS, 0.0)
    model = Mask2FormerForUniversalSegmentation.from_pretrained(masks).eval()
    processor = AutoImageProcessor.from_pretrained(masks)
    with torch.no_grad():
        answer = model(**processor(images=PIXELS, return_tensors="pt"))
    wanted = processor.post_process_instance_segmentation(
        answer, threshold=0.0, target_sizes=[(40, 56)] * 3
    )
    names = {"mouse": "computer mouse", "sofa": "couch"}
    for own, theirs in zip(found, wanted, strict=True):
        got = sorted((one.score, name) for name, ones in own.items() for one in ones)
        segments = theirs["segments_info"]
        labels = [LABELS[each["label_id"]] for each in segments]
        expected = sorted(
            (each["score"], names.get(label, label))
            for each, label in zip(segments, labels, strict=True)
        )
        assert [name for _, name in got] == [name for _, name in expected]
        assert [score for score, _ in got] == pytest.approx([s for s, _ in expected], abs=0.01)
        for one in (one for ones in own.values() for one in ones):
            left, top, right, bottom = map(int, one.box)
            assert one.mask.shape == (40, 56)
            assert one.mask[top:bottom, left:right].sum() == one.mask.sum()
            assert one.mask[top].any()
            assert one.mask[:, right - 1].any()


def test_images_keep_their_shape_for_a_mask2former(masks, tmp_path):
    """As in mmdet: they are filled with zeros to multiples of 32, and not stretched to them."""
    from transformers import Mask2FormerForUniversalSegmentation, Mask2FormerImageProcessor

    model = Mask2FormerForUniversalSegmentation.from_pretrained(masks).eval()
    model.save_pretrained(tmp_path)
    size = {"shortest_edge": 64, "longest_edge": 96}
    processor = Mask2FormerImageProcessor(size=size, do_reduce_labels=False)
    processor.save_pretrained(tmp_path)
    made = processor(images=PIXELS, size_divisor=0, return_tensors="pt")["pixel_values"]
    assert made.shape[-2:] == (64, 89)
    with torch.no_grad():
        answer = model(torch.nn.functional.pad(made, (0, 7)))
    pairs = zip(answer.class_queries_logits, answer.masks_queries_logits, strict=True)
    found = Detector(str(tmp_path), None, 2, CPU)(PIXELS, 0.0)
    for own, pair in zip(found, pairs, strict=True):
        wanted = instances(*pair, (64, 96), (64, 89), (40, 56), 0.0)
        assert {one.box for ones in own.values() for one in ones} == {one.box for _, one in wanted}
        scores = sorted(one.score for ones in own.values() for one in ones)
        assert scores == pytest.approx(sorted(one.score for _, one in wanted), abs=1e-5)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_boxes_are_those_of_the_model(boxes, batch_size):
    from transformers import AutoImageProcessor, YolosForObjectDetection

    found = Detector(boxes, None, batch_size, CPU)(PIXELS, 0.2)
    model = YolosForObjectDetection.from_pretrained(boxes).eval()
    processor = AutoImageProcessor.from_pretrained(boxes)
    for image, own in zip(PIXELS, found, strict=True):
        inputs = processor(images=[image], return_tensors="pt")
        with torch.no_grad():
            answer = model(inputs["pixel_values"])
        chances = answer.logits[0].softmax(-1)[:, :-1].max(-1)
        x, y, w, h = answer.pred_boxes[0].unbind(-1)
        corners = torch.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2], -1)
        corners = corners * torch.tensor([56.0, 40.0, 56.0, 40.0])
        kept = chances.values > 0.2
        ones = [one for name in own for one in own[name]]
        assert kept.sum() == len(ones) > 0
        expected = sorted(map(tuple, corners[kept].tolist()))
        for got, wanted in zip(sorted(one.box for one in ones), expected, strict=True):
            assert got == pytest.approx(wanted, abs=1e-3)


def test_classes_have_geneval_s_names(masks):
    assert Detector(masks, None, 1, CPU).classes == ["person", "computer mouse", "couch", "dog"]


def test_what_is_no_detector_is_refused_in_one_line(clip, tmp_path):
    for path in (clip, str(tmp_path)):
        with pytest.raises(UserError, match=f"the detector {path} cannot be loaded: ") as error:
            Detector(path, None, 1, CPU)
        assert "\n" not in str(error.value)


def test_an_object_is_cut_out_of_its_image():
    pixels = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
    mask = np.zeros((4, 5), dtype=bool)
    mask[1, 2] = True
    assert (cut_out(pixels, Found((1.4, 0.6, 3.6, 2.4), 1.0)) == pixels[1:2, 1:4]).all()
    cut = cut_out(pixels, Found((1, 0, 4, 3), 1.0, mask))
    assert cut.shape == (3, 3, 3)
    assert (cut[1, 1] == pixels[1, 2]).all()
    assert (np.delete(cut.reshape(-1, 3), 4, axis=0) == GREY).all()
    for box in ((-9, -9, -1, -1), (99, 99, 120, 120), (2, 2, 2, 2)):  # never nothing
        assert cut_out(pixels, Found(box, 1.0)).size


def test_a_colour_is_the_nearest_of_three_texts_each(clip):
    """The mean of the texts' directions, as zero-shot classifiers of CLIP have it."""
    model = Clip(GenevalConfig(path=clip), CPU)
    colours = Colours(model)
    directions = []
    for colour in COLOURS:
        texts = [f"a photo of a {colour} dog", f"a photo of a {colour}-colored dog"]
        mean = model.embed_texts([*texts, f"a photo of a {colour} object"]).mean(0)
        directions.append(mean / mean.norm())
    found = [Found((0, 0, 20, 20), 1.0), Found((30, 2, 31, 40), 1.0)]
    crops = [PIXELS[0][:20, :20], PIXELS[0][2:40, 30:31]]
    images = torch.cat([model.embed_pixels([crop]) for crop in crops])
    nearest = (images @ torch.stack(directions).T).argmax(-1)
    torch.testing.assert_close(colours.embeddings("dog"), torch.stack(directions))
    assert colours(PIXELS[0], "dog", found) == [COLOURS[place] for place in nearest]


def reward(clip, detector, **options):
    return Geneval(GenevalConfig(path=clip, detector=detector, **options), CPU)


@pytest.mark.parametrize("counts", ["partial", "correct", "strict"])
def test_the_reward_counts_what_the_detector_finds(clip, masks, counts):
    """With the thresholds at 0, of what is there in each image."""
    options = {"threshold": 0.0, "counting_threshold": 0.0, "counts": counts}
    dogs = [len(each.get("dog", [])) for each in Detector(masks, None, 8, CPU)(PIXELS, 0.0)]
    assert len(set(dogs)) > 1 or dogs[0] != 1
    got = reward(clip, masks, **options)(IMAGES, ["a dog"] * 3, [ROW] * 3)
    assert got["correct"].tolist() == [float(number >= 1) for number in dogs]
    assert got["strict"].tolist() == [float(number == 1) for number in dogs]
    assert got["partial"].tolist() == [1.0 - abs(1 - number) for number in dogs]
    assert got["score"].tolist() == got[counts].tolist()
    assert got["score"].dtype == torch.float64


def test_counting_has_a_threshold_of_its_own(clip, boxes):
    found = Detector(boxes, None, 8, CPU)(PIXELS, 0.0)
    name = next(iter(found[0]))
    scores = [one.score for each in found for one in each.get(name, [])]
    middle = float(np.median(scores))
    options = {"threshold": 0.0, "counting_threshold": middle, "max_objects": 100}
    row = {"tag": "counting", "include": [{"class": name, "count": 100}], "exclude": []}
    judge = reward(clip, boxes, **options)
    counted = judge(IMAGES, [""] * 3, [row] * 3)["partial"].sum().item() * 100
    assert round(counted) == sum(score > middle for score in scores)
    all_of_them = judge(IMAGES, [""] * 3, [{**row, "tag": "x"}] * 3)["partial"].sum().item() * 100
    assert round(all_of_them) == len(scores)


def test_colours_are_asked_for_in_the_image_of_the_prompt(clip, masks):
    """What is red is the class's own matter; here whatever the tiny CLIP says."""
    judge = reward(clip, masks, threshold=0.0)
    rows = [
        {"tag": "colors", "include": [{"class": "dog", "count": 1, "color": colour}]}
        for colour in COLOURS
    ]
    images = IMAGES[:1].expand(len(rows), -1, -1, -1)
    got = judge(images, [""] * len(rows), rows)["correct"]
    assert got.sum() == bool(Detector(masks, None, 8, CPU)(PIXELS[:1], 0.0)[0].get("dog"))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"tag": "x", "include": [{"class": "unicorn", "count": 1}]}, "knows no unicorn; it knows"),
        ({}, "its 'tag' is None"),
    ],
)
def test_what_cannot_be_looked_for_is_no_matter_of_another_attempt(clip, masks, row, message):
    with pytest.raises(PermanentError, match=message):
        reward(clip, masks)(IMAGES[:1], [""], [row])


def test_a_run_is_told_before_it_starts_what_its_prompts_lack(tmp_path, monkeypatch):
    monkeypatch.setattr("digen_core.preflight.hub.check_available", lambda *arguments: None)
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({**ROW, "prompt": "a dog"}) + "\n")
    tree = {
        "rewards": {"geneval": {"detector": "a/b"}},
        "prompts": {"train": str(path), "evaluation": str(path)},
    }
    with pytest.raises(UserError, match=r"metadata_columns is \[\]; add tag, include, exclude"):
        checked(tree)
    tree["prompts"]["metadata_columns"] = ["tag", "include", "exclude"]
    checked(tree)
    path.write_text('{"tag": "x", "include": [{"class": "dog"}], "prompt": "a dog"}\n')
    with pytest.raises(UserError, match=r"line 1 is not for the reward 'geneval': number 1 of its"):
        checked(tree)
    tree["rewards"]["geneval"]["detector"] = str(tmp_path / "none")
    path.write_text(json.dumps({**ROW, "prompt": "a dog"}) + "\n")
    with pytest.raises(UserError, match=r"rewards.geneval.detector .* is neither a folder"):
        checked(tree)


def checked(tree):
    config = RunConfig.model_validate(tree)
    check_rewards(config, train_prompts(config), evaluation_prompts(config))
