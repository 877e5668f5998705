"""Prompts from every kind of file, their metadata, weights and splits; and what is refused."""

import csv
import json
import math
from pathlib import Path
from struct import pack

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from digen_core.config.load import load_config
from digen_core.config.prompts import PromptsConfig
from digen_core.config.run import RunConfig
from digen_core.data.prompts import Prompt, evaluation_prompts, prompts_hash, train_prompts
from digen_core.errors import UserError

ROWS = [
    {"caption": "a red circle", "text": "7", "share": 1.0, "part": "train"},
    {"caption": "a blue square", "text": "07", "share": 2.5, "part": "train"},
    {"caption": "two green\ntriangles", "text": "“x”", "share": 0.0, "part": "validation"},
]
SETTINGS = {
    "column": "caption",
    "metadata_columns": ["text"],
    "weight_column": "share",
    "split_column": "part",
    "evaluation_split": "validation",
}


def write_jsonl(folder):
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in ROWS) + "\n\n")
    return str(path)


def write_ndjson(folder):
    return str(Path(write_jsonl(folder)).rename(folder / "prompts.ndjson"))


def write_csv(folder):
    path = folder / "prompts.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(ROWS[0]))
        writer.writeheader()
        writer.writerows(ROWS)
    return str(path)


def write_parquet(folder):
    pq.write_table(pa.Table.from_pylist(ROWS), folder / "prompts.parquet")
    return str(folder / "prompts.parquet")


def write_parquet_folder(folder):
    for number, part in enumerate((ROWS[:1], ROWS[1:])):
        name = f"train-{number:05d}-of-00002.parquet"
        pq.write_table(pa.Table.from_pylist(part), folder / name)
    return str(folder)


def write_pattern(folder):
    write_parquet_folder(folder)
    other = pa.Table.from_pylist([{**ROWS[0], "caption": "of another split"}])
    pq.write_table(other, folder / "test-00000-of-00001.parquet")
    return str(folder / "train-*.parquet")


def write_saved(folder):
    """What ``save_to_disk`` of Hugging Face's datasets writes: streams, and a list of them."""
    names = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    for name, part in zip(names, (ROWS[:1], ROWS[1:]), strict=True):
        table = pa.Table.from_pylist(part)
        with (
            pa.OSFile(str(folder / name), "wb") as sink,
            pa.ipc.new_stream(sink, table.schema) as w,
        ):
            w.write_table(table)
    state = {"_data_files": [{"filename": name} for name in names], "_split": "train"}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return str(folder)


def write_pattern_in_brackets(folder):
    (folder / "sets [2?]").mkdir()
    return write_pattern(folder / "sets [2?]")


WRITERS = [
    write_jsonl,
    write_ndjson,
    write_csv,
    write_parquet,
    write_parquet_folder,
    write_pattern,
    write_pattern_in_brackets,
    write_saved,
]


def config_of(seed=0, **prompts) -> RunConfig:
    if not {"split_column", "evaluation_fraction"} & prompts.keys():
        prompts.setdefault("evaluation", "others.txt")
    return RunConfig.model_validate({"seed": seed, "prompts": prompts})


@pytest.mark.parametrize("write", WRITERS)
def test_every_kind_of_file_gives_the_same_prompts(write, tmp_path):
    config = config_of(train=write(tmp_path), **SETTINGS)
    assert train_prompts(config) == [
        Prompt("a red circle", {"text": "7"}, 1.0),
        Prompt("a blue square", {"text": "07"}, 2.5),
    ]
    assert evaluation_prompts(config) == [Prompt("two green\ntriangles", {"text": "“x”"})]


@pytest.mark.parametrize("name", ["p.txt", "p.csv", "p.jsonl", "p.json", "p.parquet"])
def test_of_more_rows_than_can_be_held_none_is_left_out_in_silence(name, tmp_path, monkeypatch):
    for module in ("tables", "texts", "arrow"):
        monkeypatch.setattr(f"digen_core.data.{module}.MAX_ROWS", 3, raising=False)

    def found(count):
        texts, path = [f"a circle, {number}" for number in range(count)], tmp_path / name
        as_json = [json.dumps({"prompt": text}) for text in texts]
        if name == "p.parquet":
            pq.write_table(pa.table({"prompt": texts}), path)
        elif name == "p.csv":
            path.write_text("\n".join(["prompt", *(f'"{text}"' for text in texts)]))
        else:
            lines = {"p.txt": texts, "p.jsonl": as_json, "p.json": [json.dumps(texts)]}[name]
            path.write_text("\n".join(lines))
        return len(train_prompts(config_of(train=str(path))))

    assert found(3) == 3
    with pytest.raises(UserError, match=r"p\.\w+ holds more than .* rows or .* give fewer"):
        found(4)


@pytest.mark.parametrize("column", ["prompt", "prompt.en", "in"])
def test_a_parquet_file_that_unpacks_to_too_much_is_refused_before_it_is(
    column, tmp_path, monkeypatch
):
    monkeypatch.setattr("digen_core.data.arrow.MAX_BYTES", 1000)
    monkeypatch.setattr("digen_core.data.arrow._table_rows", None)  # which would read it
    texts = [{"text": f"{number} circles" * 10} for number in range(100)]
    cells = texts if column == "in" else [own["text"] for own in texts]
    pq.write_table(pa.table({column: cells, "more": [1] * 100}), tmp_path / "p.parquet")
    with pytest.raises(UserError, match="holds more than"):
        train_prompts(config_of(train=str(tmp_path / "p.parquet"), column=column))


def test_columns_of_a_table_that_have_no_name_are_left_out(tmp_path):
    """As of a spreadsheet in which something stood beside the table once."""
    path = tmp_path / "p.csv"
    path.write_text("prompt,,n,,\na circle,,1,x,\n")
    (found,) = train_prompts(config_of(train=str(path), metadata_columns=["n"]))
    assert (found.text, found.metadata) == ("a circle", {"n": "1"})


@pytest.mark.parametrize(
    ("kind", "value"), [(pa.date32(), 2**30), (pa.timestamp("us"), 2**62), (pa.time32("s"), 1)]
)
def test_a_column_of_what_json_has_not_is_one_line(kind, value, tmp_path):
    table = pa.table({"prompt": ["a circle"], "made": pa.array([value], kind)})
    pq.write_table(table, tmp_path / "p.parquet")
    with pytest.raises(UserError, match=r"^[^\n]*p\.parquet[^\n]*$"):
        train_prompts(config_of(train=str(tmp_path / "p.parquet"), metadata_columns=["made"]))


def test_text_files_are_read_line_by_line(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text(" a red circle \n\n\ttwo blue squares\n \n", encoding="utf-8")
    found = train_prompts(config_of(train=str(path)))
    assert found == [Prompt("a red circle"), Prompt("two blue squares")]
    assert [prompt.origin for prompt in found] == [f"{path} line 1", f"{path} line 3"]


def test_metadata_may_be_nested(tmp_path):
    spec = {"include": [{"class": "dog", "count": 2}], "tag": None}
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"prompt": "two dogs", "spec": spec}))
    (found,) = train_prompts(config_of(train=str(path), metadata_columns=["spec"]))
    assert found.metadata == {"spec": spec}


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_rows_may_say_in_how_many_steps_they_are_denoised(ending, tmp_path):
    rows = [{"prompt": "a", "T": 8}, {"prompt": "b", "T": None}, {"prompt": "c", "T": 2}]
    path = tmp_path / f"prompts.{ending}"
    if ending == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    elif ending == "csv":
        path.write_text("prompt,T\na,8\nb,\nc,2\n")
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    found = train_prompts(config_of(train=str(path), steps_column="T"))
    assert [prompt.num_steps for prompt in found] == [8, None, 2]
    others = train_prompts(config_of(train=str(path)))
    assert [prompt.num_steps for prompt in others] == [None] * 3
    assert [prompt.key for prompt in found] == [prompt.key for prompt in others]
    hashes = {prompts_hash(own) for own in (found, others, [found[0], found[2], found[1]])}
    assert len(hashes) == 3, "a resumed run would not see that they are others"


UNFIT = {
    "a window": ({"window": [2, 1, 8]}, {}, 4, "is [2, 1, 8]; needs size >= 1 and 0 <= low <= "),
    "no trained step": ({"trained_fraction": 0.3}, {}, 3, "(0.3) of its number of steps (3) is no"),
    "a noiseless step": (
        {"window": [1, 0, 4]},
        {"transition": "cps"},
        4,
        "the last cps step (4) is noiseless and has no log-prob to train",
    ),
    "noise levels": (
        {"type": "awm"},
        {},
        4,
        "of its number of steps (4) from algorithm.first_level (1) on is 2 noise levels, fewer",
    ),
}


@pytest.mark.parametrize("case", UNFIT)
def test_steps_of_which_an_algorithm_cannot_train_what_it_is_to(case, tmp_path):
    algorithm, rollout, steps, message = UNFIT[case]
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a", "T": 8}\n' + json.dumps({"prompt": "b", "T": steps}))
    prompts = {"train": str(path), "steps_column": "T", "evaluation": "others.txt"}
    tree = {"prompts": prompts, "algorithm": algorithm, "rollout": rollout}
    with pytest.raises(UserError) as error:
        train_prompts(RunConfig.model_validate(tree))
    assert str(error.value).startswith(f"{path} line 2: its 'T' is {steps}; ")
    assert message in str(error.value)


@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.5])
def test_a_fraction_is_held_out_by_seed_whatever_the_order(fraction, tmp_path):
    texts = [f"prompt {number}" for number in range(40)]
    path = tmp_path / "prompts.txt"
    sides = []
    for lines in (texts, [*texts[::-1], "PROMPT  3"]):  # a duplicate is on its original's side
        path.write_text("\n".join(lines))
        config = config_of(train=str(path), evaluation_fraction=fraction)
        sides.append({p.text for p in evaluation_prompts(config)} - {"PROMPT  3"})
        assert len(sides[-1]) == 40 * fraction
        train = {p.text for p in train_prompts(config)}
        assert train.isdisjoint(sides[-1])
        assert ("PROMPT  3" in train) <= ("prompt 3" in train)
    assert sides[0] == sides[1]
    other = config_of(train=str(path), evaluation_fraction=fraction, seed=1)
    assert {p.text for p in evaluation_prompts(other)} != sides[0]


def test_where_all_prompts_with_a_weight_are_held_out(tmp_path):
    path = tmp_path / "prompts.jsonl"
    rows = [{"prompt": "a", "w": 1, "part": "evaluation"}, {"prompt": "b", "w": 0, "part": "train"}]
    path.write_text("\n".join(map(json.dumps, rows)))
    message = "'w' is 0 in all of .* that is trained on; give some of it a weight above 0"
    with pytest.raises(UserError, match=message):
        train_prompts(config_of(train=str(path), weight_column="w", split_column="part"))


def test_a_split_can_be_set_on_a_command_line():
    config = load_config(None, {"prompts.train": "p.csv", "prompts.split_column": "part"})
    assert config.prompts.evaluation is None


def test_prompts_of_ones_own_need_others_to_be_judged_on():
    """Not those of the embedded world, which its own prompts get if nothing is said."""
    assert PromptsConfig().evaluation == "digen:prompts/shapes_evaluation.txt"
    wanted = "prompts.train is p.csv, but nothing says which prompts are for evaluation; set "
    with pytest.raises(UserError, match=wanted):
        load_config(None, {"prompts.train": "p.csv"})
    config = load_config(None, {"prompts.train": "p.csv", "prompts.evaluation_fraction": 0.1})
    assert config.prompts.evaluation is None


REFUSED = {
    "a missing column": (
        '{"text": "a"}',
        {},
        "has no column 'prompt', which the config's [prompts] names; it has text",
    ),
    "a missing metadata column": (
        '{"prompt": "a"}',
        {"metadata_columns": ["target"]},
        "has no column 'target'",
    ),
    "an empty prompt": ('{"prompt": "a"}\n{"prompt": " "}', {}, "line 2 has no prompt: its 'pro"),
    "no text": ('{"prompt": 3}', {}, "line 1 has no prompt: its 'prompt' is 3; write a text"),
    "a prompt left out": ('{"prompt": "a"}\n{"x": 1}', {}, "line 2 has no prompt"),
    "broken JSON": ('{"prompt": "a"}\n{"prompt"', {}, "line 2 is not JSON"),
    "not an object": ("[1, 2]", {}, "line 1 is '[1, 2]', not an object"),
    "nothing": ("\n\n", {}, "holds no prompt"),
    "NaN in metadata": (
        '{"prompt": "a", "n": NaN}',
        {"metadata_columns": ["n"]},
        "its 'n' is nan, which JSON cannot hold",
    ),
    "a negative weight": (
        '{"prompt": "a", "w": -1}',
        {"weight_column": "w"},
        "line 1: its 'w' is -1; a weight is 0, or from 1e-09 to 1e+09",
    ),
    "an infinite weight": ('{"prompt": "a", "w": Infinity}', {"weight_column": "w"}, "'w' is inf"),
    "a weight that is none": ('{"prompt": "a", "w": true}', {"weight_column": "w"}, "'w' is True"),
    "no weight above 0": ('{"prompt": "a", "w": 0}', {"weight_column": "w"}, "is 0 in all of"),
    "no whole number of steps": (
        '{"prompt": "a", "T": 2.5}',
        {"steps_column": "T"},
        "line 1: its 'T' is 2.5; a number of denoising steps is whole, and 2 or more",
    ),
    "a step": ('{"prompt": "a", "T": 1}', {"steps_column": "T"}, "its 'T' is 1; a number of"),
    "steps in words": ('{"prompt": "a", "T": "two"}', {"steps_column": "T"}, "its 'T' is 'two'"),
    "steps that are true": ('{"prompt": "a", "T": true}', {"steps_column": "T"}, "'T' is True"),
    "steps that never end": (
        '{"prompt": "a", "T": Infinity}',
        {"steps_column": "T"},
        "its 'T' is inf; a number of denoising steps is whole, and 2 or more",
    ),
    "more steps than the most": (
        '{"prompt": "a", "T": 9}',
        {"steps_column": "T"},
        "line 1: its 'T' is 9, but rollout.num_steps, the most that memory and plans count with, "
        "is 8; set that to as many as any prompt has",
    ),
    "a split that is not there": (
        '{"prompt": "a", "s": "test"}',
        {"split_column": "s"},
        "has no row whose 's' is 'train', but 'test'; correct prompts.split_column",
    ),
    "too few for a fraction": (
        '{"prompt": "a"}',
        {"evaluation_fraction": 0.5},
        "that leaves none for evaluation",
    ),
}


@pytest.mark.parametrize(("content", "settings", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_wrong_with_a_row_is_said_with_its_place(content, settings, message, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text(content)
    with pytest.raises(UserError) as error:
        train_prompts(config_of(train=str(path), **settings))
    assert str(path) in str(error.value)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("prompts.txt", None),
        ("prompts.txt", b""),
        ("prompts.txt", b"\n \n"),
        ("prompts.txt", b"\xff\xfe\x00"),
        ("prompts.parquet", b"not parquet"),
        ("prompts.csv", b"prompt,n\na,1,2\n"),
        ("prompts.csv", b'prompt\n"a\n'),
        ("prompts.json", b"[]"),
        ("data-*.parquet", None),
        ("state.json", b"{}"),
    ],
)
def test_a_file_that_cannot_be_read_is_a_config_error(name, content, tmp_path):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    named = tmp_path if name == "state.json" else path
    with pytest.raises(UserError, match=str(tmp_path)):
        train_prompts(config_of(train=str(named)))


@pytest.mark.parametrize(
    ("write", "file", "was", "damaged"),
    [
        (write_parquet, "prompts.parquet", b"caption", b"c\xffption"),
        (write_saved, "data-00000-of-00002.arrow", b"caption", b"c\xffption"),
        # where texts end: the second one would have fewer than no characters
        (write_saved, "data-00001-of-00002.arrow", pack("<3i", 0, 13, 32), pack("<3i", 0, 99, 32)),
    ],
    ids=["column of parquet", "column of arrow", "text of arrow"],
)
def test_a_damaged_table_is_a_config_error(write, file, was, damaged, tmp_path):
    path, train = tmp_path / file, write(tmp_path)
    content = path.read_bytes()
    assert was in content
    path.write_bytes(content.replace(was, damaged))
    with pytest.raises(UserError, match=f"cannot read the .* {tmp_path}"):
        train_prompts(config_of(train=train, **SETTINGS))


def test_a_folder_with_several_splits_is_refused(tmp_path):
    write_pattern(tmp_path)
    with pytest.raises(UserError, match=r"the splits test, train; give one, as in .*/test-\*"):
        train_prompts(config_of(train=str(tmp_path), column="caption"))
    saved = tmp_path / "saved"
    (saved / "train").mkdir(parents=True)
    write_saved(saved / "train")
    (saved / "dataset_dict.json").write_text('{"splits": ["train"]}')
    with pytest.raises(UserError, match="the splits train; give one, as in"):
        train_prompts(config_of(train=str(saved), column="caption"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"evaluation": None}, "nothing says which prompts are for evaluation"),
        ({"split_column": "s", "evaluation_fraction": 0.1}, "use one of them"),
        ({"evaluation_fraction": math.nan}, "finite"),
    ],
)
def test_splits_that_contradict_each_other_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        config_of(**settings)


def test_what_guidance_steers_away_from_stands_in_a_column(tmp_path):
    rows = [{"prompt": "a", "not": "b"}, {"prompt": "a"}, {"prompt": "c", "not": ""}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    settings = {"train": str(tmp_path / "a.jsonl"), "evaluation_fraction": 0.5}
    config = config_of(**settings, negative_column="not")
    found = [*train_prompts(config), *evaluation_prompts(config)]
    assert {(own.text, own.negative) for own in found} == {("a", "b"), ("a", None), ("c", "")}
    assert len({own.key for own in found}) == 3
    assert len({own.normal_key for own in found}) == 2  # what is asked for
    assert {own.text for own in train_prompts(config)} in ({"a"}, {"c"})
    assert config_of(**settings).prompts.are_texts
    assert not config.prompts.are_texts


@pytest.mark.parametrize("value", [7, ["b"], True])
def test_a_negative_that_is_no_text_is_told(value, tmp_path):
    rows = [{"prompt": "a", "not": value}, {"prompt": "b"}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = config_of(
        train=str(tmp_path / "a.jsonl"), evaluation_fraction=0.5, negative_column="not"
    )
    with pytest.raises(UserError, match=r"line 1: its 'not' is .* which is no negative prompt"):
        train_prompts(config)
