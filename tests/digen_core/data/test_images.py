"""Source images of prompts: paths, contents, data URLs, and what is none."""

import base64
import json
import os
import pickle
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from digen_core.config.run import RunConfig
from digen_core.data import arrow, images
from digen_core.data.images import MAX_IMAGE_BYTES, SourceImage
from digen_core.data.prompts import (
    Prompt,
    SizedPrompt,
    evaluation_prompts,
    prompts_hash,
    train_prompts,
)
from digen_core.errors import ConfigError, UserError
from support.edits import picture, source


def config_of(
    folder: Path, file: str = "a.jsonl", images: int = 1, family: str = "flux2", **prompts
) -> RunConfig:
    prompts = {"train": str(folder / file), "image_column": "image", **prompts}
    if "evaluation" not in prompts:
        prompts.setdefault("evaluation_fraction", 0.5)
    model = {"family": family, "path": "x", "max_source_images": images}
    return RunConfig.model_validate({"model": model, "prompts": prompts})


def write_rows(folder: Path, *images, text="make it red") -> None:
    rows = [json.dumps({"prompt": text, "image": image}) for image in images]
    (folder / "a.jsonl").write_text("\n".join(rows))


def url_of(content: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(content).decode()


def all_prompts(config):
    return sorted([*train_prompts(config), *evaluation_prompts(config)], key=lambda own: own.origin)


def test_paths_are_seen_from_the_folder_of_the_prompts(tmp_path, monkeypatch):
    (tmp_path / "pictures").mkdir()
    for n in range(2):
        (tmp_path / "pictures" / f"{n}.png").write_bytes(picture(n))
    write_rows(tmp_path, "pictures/0.png", str(tmp_path / "pictures" / "1.png"))
    monkeypatch.chdir("/")
    found = all_prompts(config_of(tmp_path))
    assert [own.images[0] for own in found] == [source(0), source(1)]
    assert [own.images[0].content() for own in found] == [picture(0), picture(1)]
    assert found[0].images[0].kind == "png"


def test_contents_stand_in_the_row(tmp_path):
    write_rows(tmp_path, url_of(picture(0)), url_of(picture(1)))
    assert [own.images[0] for own in all_prompts(config_of(tmp_path))] == [source(0), source(1)]


@pytest.mark.parametrize("kind", ["bytes", "datasets"])
def test_parquet_holds_contents_as_bytes_or_as_datasets_does(tmp_path, kind):
    (tmp_path / "1.png").write_bytes(picture(1))
    images = [picture(0), picture(1)]
    if kind == "datasets":
        images = [{"bytes": picture(0), "path": "no.png"}, {"bytes": None, "path": "1.png"}]
    pq.write_table(pa.table({"prompt": ["a", "b"], "image": images}), tmp_path / "a.parquet")
    found = all_prompts(config_of(tmp_path, "a.parquet"))
    assert [own.images[0] for own in found] == [source(0), source(1)]


def test_of_a_pattern_paths_are_seen_from_the_folder_before_it(tmp_path):
    """A folder that is called as its files' names begin is not that folder."""
    (tmp_path / "train").mkdir()
    for n in range(2):
        (tmp_path / "train" / f"{n}.png").write_bytes(picture(n))
        table = pa.table({"prompt": [f"{n}"], "image": [f"train/{n}.png"]})
        pq.write_table(table, tmp_path / f"train-{n}.parquet")
    found = all_prompts(config_of(tmp_path, "train*.parquet"))
    assert [own.images[0] for own in found] == [source(0), source(1)]


SEVERAL = [[picture(0), picture(1)], [picture(2)], [picture(1), picture(0)]]


def several_rows(folder: Path, kind: str) -> str:
    """Write prompts with lists of images as files hold them; return the name of the file."""
    if kind == "jsonl":
        write_rows(folder, *([url_of(own) for own in images] for images in SEVERAL))
        return "a.jsonl"
    if kind == "datasets":
        cells = [[{"bytes": own, "path": None} for own in images] for images in SEVERAL]
        feature = pa.struct({"bytes": pa.binary(), "path": pa.string()})
        column = pa.array(cells, pa.list_(feature))
    else:
        column = pa.array(SEVERAL, pa.list_(pa.binary()))
    table = pa.table({"prompt": ["make it red"] * len(SEVERAL), "image": column})
    if kind == "datasets":  # as save_to_disk has it
        (folder / "set").mkdir()
        with pa.ipc.new_stream(str(folder / "set" / "data.arrow"), table.schema) as writer:
            writer.write_table(table)
        state = {"_data_files": [{"filename": "data.arrow"}]}
        (folder / "set" / "state.json").write_text(json.dumps(state))
        (folder / "set" / "dataset_info.json").write_text("{}")
        return "set"
    pq.write_table(table, folder / "a.parquet")
    return "a.parquet"


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "datasets"])
def test_a_row_may_hold_a_list_of_images(tmp_path, kind):
    found = all_prompts(config_of(tmp_path, several_rows(tmp_path, kind), images=2))
    assert [[own.content() for own in prompt.images] for prompt in found] == SEVERAL
    assert len({prompt.key for prompt in found}) == 3
    assert len({prompt.normal_key for prompt in found}) == 3
    assert prompts_hash(found[:1]) != prompts_hash(found[2:])
    shown = found[0].shown_in((32, 32, 1))
    assert [own.digest for own in shown.images] == [own.digest for own in found[0].images]


@pytest.mark.parametrize(
    ("family", "images", "message"),
    [
        (
            "flux2",
            1,
            "line 2 has 2 source images .* but model.max_source_images is 1; set it to",
        ),
        (
            "flux",
            1,
            "line 2 has 2 source images .* but model.family .flux. is shown one; give one",
        ),
        ("flux2", 3, None),
    ],
)
def test_a_row_has_no_more_images_than_the_model_is_shown(tmp_path, family, images, message):
    write_rows(tmp_path, url_of(picture(0)), [url_of(picture(1)), url_of(picture(2))])
    config = config_of(tmp_path, family=family, images=images)
    if message is None:
        assert sorted(len(prompt.images) for prompt in all_prompts(config)) == [1, 2]
        return
    with pytest.raises(ConfigError, match=message):
        train_prompts(config)


@pytest.mark.parametrize("words", [{"prompt": "a <|image_pad|>"}, {"not": "<|video_pad|>"}])
def test_words_with_the_mark_of_a_picture_are_refused_before_anything_starts(tmp_path, words):
    rows = [{"prompt": "a", "image": url_of(picture(seed)), "not": None} for seed in (0, 1)]
    rows[1] |= words
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    settings = {"negative_column": "not"}
    assert len(all_prompts(config_of(tmp_path, **settings))) == 2  # FLUX.2 reads no pictures
    with pytest.raises(ConfigError, match=r"line 2: '.*_pad\|>' has <\|.*_pad\|> in it, where"):
        train_prompts(config_of(tmp_path, family="qwen_image", **settings))


def test_a_negative_prompt_with_the_mark_of_a_picture_is_refused_as_those_of_rows(tmp_path):
    write_rows(tmp_path, url_of(picture(0)), url_of(picture(1)))
    config = config_of(tmp_path, family="qwen_image")
    model = config.model.model_copy(update={"negative_prompt": "a <|image_pad|>"})
    message = r"^model.negative_prompt: 'a <\|image_pad\|>' has <\|image_pad\|> in it, where"
    with pytest.raises(ConfigError, match=message):
        train_prompts(config.model_copy(update={"model": model}))


def test_lists_count_towards_what_memory_holds(tmp_path, monkeypatch):
    several_rows(tmp_path, "parquet")
    most = sum(len(own) for images in SEVERAL for own in images)
    monkeypatch.setattr(arrow, "_size_of_columns", lambda *_: 0)
    monkeypatch.setattr(arrow, "MAX_BYTES", most)
    with pytest.raises(ConfigError, match="holds more than"):
        train_prompts(config_of(tmp_path, "a.parquet", images=2))


def test_the_same_words_about_other_images_are_other_prompts(tmp_path):
    write_rows(tmp_path, *map(url_of, map(picture, range(4))))
    config = config_of(tmp_path)
    train, held_out = train_prompts(config), evaluation_prompts(config)
    assert (len(train), len(held_out)) == (2, 2)
    assert not {own.key for own in train} & {own.key for own in held_out}
    assert len({own.key for own in [*train, *held_out]}) == 4
    assert prompts_hash(train) != prompts_hash(train[::-1])


def test_the_size_matters_to_images_alone():
    with_image, without = (
        {SizedPrompt(own, (32, n, 1)).key for n in (16, 32)}
        for own in (Prompt("a", images=(source(0),)), Prompt("a"))
    )
    assert (len(with_image), without) == (2, {"a"})


def test_sent_elsewhere_an_image_takes_its_content_along(tmp_path):
    (tmp_path / "0.png").write_bytes(picture(0))
    write_rows(tmp_path, "0.png", url_of(picture(1)))
    prompt = all_prompts(config_of(tmp_path))[0]
    packed = pickle.dumps(prompt)
    (tmp_path / "0.png").unlink()
    there = pickle.loads(packed)
    assert there == prompt
    assert there.images[0].content() == picture(0)
    with pytest.raises(UserError, match=r"cannot read the image .*0\.png"):
        prompt.images[0].content()


def test_an_image_that_changes_during_a_run_is_told(tmp_path):
    (tmp_path / "0.png").write_bytes(picture(0))
    write_rows(tmp_path, "0.png", url_of(picture(1)))
    prompt = all_prompts(config_of(tmp_path))[0]
    (tmp_path / "0.png").write_bytes(picture(2))
    with pytest.raises(UserError, match=r"0\.png has changed since the run began"):
        prompt.images[0].pixels(32, 32)


def test_keys_tell_prompts_apart():
    image, text = source(0), "a"
    prompts = [
        Prompt(text),
        Prompt(text, images=(image,)),
        Prompt(text, images=(source(1),)),
        Prompt(text, negative="b"),
        Prompt(text, images=(image,), negative="b"),
        Prompt(f"{text} [not b]"),
    ]
    assert len({own.key for own in prompts}) == len(prompts)
    assert len({SizedPrompt(own, (32, 32, 1)).key for own in prompts}) == len(prompts)


def test_words_that_differ_in_case_or_spaces_ask_for_the_same():
    one, two = (
        Prompt(text, images=(source(0),))
        for text in ("Mach ein  \n\u00c9toile", "mach ein \u00e9toile")
    )
    assert one.key != two.key
    assert one.normal_key == two.normal_key != Prompt(two.text, images=(source(1),)).normal_key


def test_what_is_sent_is_no_more_than_what_is_shown():
    prompt = Prompt("a", images=(source(3, width=900, height=640),))
    sent = prompt.shown_in((32, 48, 1))
    assert sent == prompt
    assert SizedPrompt(sent, (32, 48, 1)).key == SizedPrompt(prompt, (32, 48, 1)).key
    assert np.array_equal(sent.images[0].pixels(32, 48), prompt.images[0].pixels(32, 48))
    assert len(sent.images[0].content()) < 5_000 < len(prompt.images[0].content())
    assert pickle.loads(pickle.dumps(sent)).images[0].content() == sent.images[0].content()
    assert Prompt("a").shown_in((32, 48, 1)) == Prompt("a")


def test_an_image_is_read_and_decoded_once_however_often_prompts_are(tmp_path, monkeypatch):
    for n in range(4):
        (tmp_path / f"{n}.png").write_bytes(picture(40 + n))
    write_rows(tmp_path, *(f"{n}.png" for n in range(4)))
    decoded, decode = [], images._decoded
    monkeypatch.setattr(images, "_decoded", lambda content: decoded.append(1) or decode(content))
    config = config_of(tmp_path)
    for _ in range(3):
        all_prompts(config)
    assert len(decoded) == 4
    (tmp_path / "0.png").write_bytes(picture(50))
    os.utime(tmp_path / "0.png", ns=(1, 1))
    all_prompts(config)
    assert len(decoded) == 5


def test_an_image_is_turned_as_its_exif_says_and_white_where_it_is_transparent(tmp_path):
    pixels = np.full((4, 8, 4), 9, np.uint8)  # a colour that nobody is to see
    pixels[:, :4], pixels[:, 4:, 3] = (255, 0, 0, 255), 0
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    Image.fromarray(pixels).save(tmp_path / "0.png", exif=exif)
    shown = SourceImage.of((tmp_path / "0.png").read_bytes()).pixels(8, 4)
    assert shown.shape == (8, 4, 3)
    assert shown[0].tolist() == [[255, 0, 0]] * 4
    assert shown[-1].tolist() == [[255, 255, 255]] * 4


def saved(image, kind, **settings):
    file = BytesIO()
    image.save(file, kind, **settings)
    return file.getvalue()


def without_pixels():
    """A PNG of a header and an end."""
    whole, parts, place = picture(0), [], 8
    while place < len(whole):
        size = 12 + int.from_bytes(whole[place : place + 4])
        parts.append(whole[place : place + size])
        place += size
    return whole[:8] + b"".join(part for part in parts if part[4:8] != b"IDAT")


NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (saved(NOISE, "JPEG")[:-900], "it is damaged: .*truncated"),
        (saved(NOISE, "WEBP", lossless=True)[:-900], "it is"),
        (saved(NOISE, "PNG")[:-900], "it is damaged"),
        (without_pixels(), "it is"),
        (saved(Image.fromarray(np.full((8, 8), 1000, np.uint16)), "PNG"), "more than 8 bits"),
        (saved(NOISE, "JPEG", exif=b"Exif\0\0II*\0junkjunkjunk"), ""),
    ],
)
def test_what_is_taken_can_be_shown(content, why):
    """And what cannot be is told at once: whatever passes is shown without an error."""
    if why:
        with pytest.raises(ValueError, match=why):
            SourceImage.of(content)
    else:
        assert SourceImage.of(content).pixels(32, 32).shape == (32, 32, 3)


@given(st.data())
def test_damaged_files_are_told_or_shown(data):
    """Any byte of a file may be another."""
    content = bytearray(data.draw(st.sampled_from(FILES)))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        image = SourceImage.of(bytes(content))
    except ValueError:
        return
    assert image.pixels(16, 16).shape == (16, 16, 3)


FILES = [
    saved(NOISE.crop((0, 0, 16, 16)), kind, **settings)
    for kind, settings in (
        ("JPEG", {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0"}),
        ("PNG", {}),
        ("WEBP", {"lossless": True}),
    )
]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "neither a path nor the content"),
        ("", "neither a path nor the content"),
        (7, "neither a path nor the content"),
        ([], "neither a path nor the content"),
        ("missing.png", "No such file"),
        (".", "it is a folder"),
        ("a\0b.png", "embedded null"),
        ("text.png", "no image of a known format"),
        ("cut.png", "it is damaged"),
        ("huge.png", "use at most"),
        ("heavy.png", f"more than {MAX_IMAGE_BYTES}"),
        (url_of(b"no"), "no image of a known format"),
        (url_of(saved(NOISE, "GIF")), "no image of a known format"),
        ("data:image/png,abc", "has to be in base64"),
        ("data:image/png;base64,***", "base64"),
        ({"bytes": None, "path": None}, "neither a path nor the content"),
        ({"url": "x"}, "neither a path nor the content"),
        ([url_of(picture(0)), None], "neither a path nor the content"),
        ([[url_of(picture(0))]], "neither a path nor the content"),
        ([url_of(picture(0)), "cut.png"], "it is damaged"),
    ],
)
def test_what_is_no_image_is_told_before_anything_starts(tmp_path, value, why):
    (tmp_path / "text.png").write_text("hello")
    (tmp_path / "cut.png").write_bytes(picture(0)[:-40])
    Image.new("1", (10_000, 10_000)).save(tmp_path / "huge.png")
    with (tmp_path / "heavy.png").open("wb") as file:
        file.truncate(MAX_IMAGE_BYTES + 1)
    write_rows(tmp_path, url_of(picture(0)), value)
    message = rf"a\.jsonl line 2 has no source image: .*{why}.*give the path"
    with pytest.raises(ConfigError, match=message):
        train_prompts(config_of(tmp_path, images=2))


def test_a_column_that_is_not_there_is_told(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}')
    with pytest.raises(ConfigError, match="has no column 'image'"):
        train_prompts(config_of(tmp_path))


@pytest.mark.parametrize(
    ("model", "prompts", "message"),
    [
        ({"family": "sd3", "path": "x"}, {"image_column": "i"}, "'sd3', which is shown no source"),
        ({"family": "flux2", "path": "x", "source_image": True}, {}, "names no column; set both"),
        (
            {"family": "flux2", "path": "x", "source_image": False},
            {"image_column": "i"},
            "model.source_image is false, but prompts.image_column is 'i'",
        ),
        (
            {"family": "flux", "path": "x", "max_source_images": 2},
            {"image_column": "i"},
            "model.max_source_images is 2, but flux is shown one source image; use 1, or one of "
            "qwen_image, qwen_image21, wan, flux2",
        ),
        (
            {"family": "wan", "path": "x", "max_source_images": 3},
            {"image_column": "i"},
            "model.max_source_images is 3, but wan is shown 2 source images at most; use 2",
        ),
        (
            {"family": "flux2", "path": "x", "max_source_images": 11},
            {"image_column": "i"},
            "less than or equal to 10",
        ),
    ],
)
def test_model_and_prompts_have_to_agree(model, prompts, message):
    prompts = {"train": "a.jsonl", "evaluation_fraction": 0.5, **prompts}
    with pytest.raises(ValueError, match=message):
        RunConfig.model_validate({"model": model, "prompts": prompts})
