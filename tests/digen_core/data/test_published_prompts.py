"""Published prompt sets are read in their own formats, and what is like them is not guessed."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from digen_core.config.run import RunConfig
from digen_core.data.prompts import evaluation_prompts, train_prompts
from digen_core.errors import UserError

PAIR = ["a photo of a bench", "a photo of two clocks"]
GENEVAL = [
    {"tag": "single_object", "include": [{"class": "bench", "count": 1}], "prompt": PAIR[0]},
    {
        "tag": "counting",
        "include": [{"class": "clock", "count": 2}],
        "exclude": [{"class": "clock", "count": 3}],
        "prompt": PAIR[1],
    },
]
TAGS = [{"tag": row["tag"], "exclude": row.get("exclude")} for row in GENEVAL]
DRAWBENCH = 'Prompts,Category\nA red car.,Colors\n"A sign, ""Open"".",Text\n'
PARTI = (
    "Prompt\tCategory\tChallenge\tNote\nwood\tAbstract\tBasic\tOf five elements\n"
    '"Hi" on a wall, in 2" letters\tArts\tComplex\t\n'
)
VBENCH = [
    {"prompt_en": "a toilet, frozen", "dimension": ["temporal_flickering"]},
    {
        "prompt_en": "a bird and a cat",
        "dimension": ["multiple_objects"],
        "auxiliary_info": {"multiple_objects": {"object": "bird and cat"}},
    },
]
DPG_COLUMNS = (
    "item_id,text,keywords,proposition_id,dependency,category_broad,category_detailed,tuple,"
    "question_natural_language"
)
DPG = (
    f"{DPG_COLUMNS}\n7,A cat on a mat.,,1,0,entity,whole,entity - whole (cat),Is there a cat?\n"
    "7,A cat on a mat.,,2,0,entity,whole,entity - whole (mat),Is there a mat?\n"
    'vrd1,"A sign, lit.",,1,0,entity,whole,entity - whole (sign),Is there a sign?\n'
)
VIDPROM = "uuid,prompt,time,toxicity\n1,a fox runs,2023,0.1\n2,waves,2023,0.2\n"


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


# file -> its content, the metadata columns that are asked for, the prompts and their metadata
FILES = {
    "evaluation_metadata.jsonl": (lines(GENEVAL), ["tag", "exclude"], PAIR, TAGS),
    "one.jsonl": (lines(GENEVAL[:1]), ["tag", "exclude"], PAIR[:1], TAGS[:1]),
    "DrawBench.csv": (
        DRAWBENCH,
        ["Category"],
        ["A red car.", 'A sign, "Open".'],
        [{"Category": "Colors"}, {"Category": "Text"}],
    ),
    "PartiPrompts.tsv": (
        PARTI,
        ["Challenge"],
        ["wood", '"Hi" on a wall, in 2" letters'],
        [{"Challenge": "Basic"}, {"Challenge": "Complex"}],
    ),
    "VBench_full_info.json": (
        json.dumps(VBENCH),
        ["dimension", "auxiliary_info"],
        ["a toilet, frozen", "a bird and a cat"],
        [
            {"dimension": row["dimension"], "auxiliary_info": row.get("auxiliary_info")}
            for row in VBENCH
        ],
    ),
    "dpg_bench.csv": (
        DPG,
        ["item_id", "dependency", "tuple"],
        ["A cat on a mat.", "A sign, lit."],
        [
            {
                "item_id": "7",
                "dependency": ["0", "0"],
                "tuple": ["entity - whole (cat)", "entity - whole (mat)"],
            },
            {"item_id": "vrd1", "dependency": ["0"], "tuple": ["entity - whole (sign)"]},
        ],
    ),
    "VidProM_unique.csv": (
        VIDPROM,
        ["uuid"],
        ["a fox runs", "waves"],
        [{"uuid": "1"}, {"uuid": "2"}],
    ),
    "anime.json": (json.dumps(["a girl", " a robot "]), [], ["a girl", "a robot"], [{}, {}]),
    "test.txt": ("a\u2028b\r\nc\x0cd\re\n\n", [], ["a\u2028b", "c\x0cd", "e"], [{}, {}, {}]),
}


def config_of(train, evaluation="others.txt", columns=(), **prompts):
    tree = {"train": str(train), "evaluation": str(evaluation), "metadata_columns": columns}
    return RunConfig.model_validate({"prompts": tree | prompts})


@pytest.mark.parametrize("name", FILES)
def test_a_published_file_is_read_as_it_is(name, tmp_path):
    content, columns, texts, metadata = FILES[name]
    (tmp_path / name).write_text(content, encoding="utf-8", newline="")
    found = train_prompts(config_of(tmp_path / name, columns=columns))
    assert [prompt.text for prompt in found] == texts
    assert [prompt.metadata for prompt in found] == metadata


def test_the_same_tables_in_parquet(tmp_path):
    """As the hub keeps them: only the columns that are used are read."""
    path = tmp_path / "drawbench.parquet"
    rows = [{"Prompts": "A red car.", "Category": "Colors", "n": 1}]
    pq.write_table(pa.Table.from_pylist(rows), path)
    (found,) = train_prompts(config_of(path, columns=["Category"]))
    assert (found.text, found.metadata) == ("A red car.", {"Category": "Colors"})
    questions = [{"item_id": 7, "text": "A cat.", "proposition_id": n} for n in (1, 2)]
    pq.write_table(pa.Table.from_pylist(questions), path)
    (found,) = train_prompts(config_of(path))
    assert (found.text, found.origin) == ("A cat.", f"{path} row 1")


def test_a_column_that_is_named_is_taken_as_it_is(tmp_path):
    """Nothing is renamed, and no rows are put together, when the table has what is asked for."""
    path = tmp_path / "dpg_bench.csv"
    path.write_text(DPG)
    found = train_prompts(config_of(path, column="text"))
    assert [prompt.text for prompt in found] == [
        "A cat on a mat.",
        "A cat on a mat.",
        "A sign, lit.",
    ]


def test_a_table_that_is_told_by_nothing_has_to_be_named(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("Prompts,Kind\na cat,1\n")
    with pytest.raises(UserError, match=r"has no column 'prompt', .* it has Prompts, Kind"):
        train_prompts(config_of(path))
    path.write_text("Prompts,Category,Prompt,Challenge\na,b,c,d\n")  # both of two
    with pytest.raises(UserError, match="has no column 'prompt', which"):
        train_prompts(config_of(path))


def write(folder, files):
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")


KINDS = ("color", "shape", "texture", "spatial", "non_spatial", "complex", "numeracy")
COMPBENCH = {
    f"{kind}_{part}.txt": f"{kind} {part}\n" for kind in KINDS for part in ("train", "val")
}
COMPBENCH |= {"color.txt": "all\n", "color_val_seen.txt": "seen\n", "complex_val_action.txt": "x\n"}
STYLES = ("anime", "concept-art", "paintings", "photo")
HPD = {f"{style}.json": json.dumps([f"{style} 1", f"{style} 2"]) for style in STYLES}
HPD["drawbench.json"] = '["of another benchmark"]'

# folder -> its files, the column that says which, and the prompts of both parts with its value
FOLDERS = {
    "flow_grpo's texts": (
        {"train.txt": "a\nb\n", "test.txt": "c\n", "README.md": "# x"},
        None,
        [("a", None), ("b", None)],
        [("c", None)],
    ),
    "flow_grpo's GenEval": (
        {"train_metadata.jsonl": lines(GENEVAL[:1]), "test_metadata.jsonl": lines(GENEVAL[1:])},
        "tag",
        [(PAIR[0], "single_object")],
        [(PAIR[1], "counting")],
    ),
    "GenEval": (
        {"evaluation_metadata.jsonl": lines(GENEVAL), "generation_prompts.txt": "\n".join(PAIR)},
        "tag",
        [(PAIR[0], "single_object"), (PAIR[1], "counting")],
        [(PAIR[0], "single_object"), (PAIR[1], "counting")],
    ),
    "T2I-CompBench": (
        COMPBENCH,
        "category",
        [(f"{kind} train", kind) for kind in KINDS],
        [(f"{kind} val", kind) for kind in KINDS],
    ),
    "HPDv2": (
        HPD,
        "style",
        [(f"{style} {n}", style) for style in STYLES for n in (1, 2)],
        [(f"{style} {n}", style) for style in STYLES for n in (1, 2)],
    ),
    "DPG-Bench": (
        {"vrd1.txt": "A sign, lit.", "12.txt": "A cat.\n", ".hidden.txt": "x", "run.sh": "y"},
        "item_id",
        [("A cat.", "12"), ("A sign, lit.", "vrd1")],
        [("A cat.", "12"), ("A sign, lit.", "vrd1")],
    ),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_published_folder_gives_each_key_its_part(name, tmp_path):
    files, column, train, evaluation = FOLDERS[name]
    write(tmp_path, files)
    config = config_of(tmp_path, tmp_path, columns=[column] if column else [])
    for read, wanted in ((train_prompts, train), (evaluation_prompts, evaluation)):
        found = read(config)
        assert [(prompt.text, prompt.metadata.get(column)) for prompt in found] == wanted
        assert all(prompt.origin.startswith(f"{tmp_path}/") for prompt in found)


REFUSED = {
    "nothing": ({}, "holds nothing, and is no folder of prompts that is known for prompts.train"),
    "a lone test set": ({"test.txt": "a"}, "holds test.txt, and is no folder .* as in .*/test.txt"),
    "lists of one's own": ({"a.txt": "a", "b.txt": "b"}, "holds a.txt, b.txt, and is no folder"),
    "numbered lists": (
        {"1.txt": "a\nb\n", "2.txt": "c"},
        "1.txt holds 2 lines, where a folder of such names has a prompt in each file; name one",
    ),
    "a numbered file without a prompt": ({"1.txt": "\n", "2.txt": "c"}, "1.txt holds 0 lines"),
    "numbered files beside a table": ({"1.txt": "a", "p.csv": "prompt\na\n"}, "is no folder of"),
    "two sets": (
        {"train.txt": "a", "train_metadata.jsonl": lines(GENEVAL)},
        "may be a folder of flow_grpo's texts or flow_grpo's GenEval; name one of its files, as in",
    ),
    "a set beside Parquet": ({"train.txt": "a", "x.parquet": ""}, "is no folder of prompts"),
    "part of a benchmark": ({"anime.json": "[]", "photo.json": "[]"}, "is no folder of prompts"),
    "a binary file": ({"train.txt": "\x00\ud800"}, r"train.txt"),
}


@pytest.mark.parametrize(("files", "message"), REFUSED.values(), ids=REFUSED)
def test_a_folder_that_is_ambiguous_is_refused_in_a_line(files, message, tmp_path):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(UserError, match=message) as error:
        train_prompts(config_of(tmp_path))
    assert "\n" not in str(error.value)


DEEP = "[" * 100_000
BAD = {
    "a deep list": ("p.json", DEEP, "p.json is not JSON: it nests too deeply"),
    "JSON Lines by another name": (
        "p.json",
        lines(GENEVAL),
        "p.json is not JSON: Extra data: .*; JSON Lines, an object a line, are named .jsonl",
    ),
    "an object": ("p.json", '{"prompt": "a"}', "not a list of texts or a list of objects; write"),
    "a list of both": ("p.json", '["a", {"prompt": "b"}]', "not a list of texts or a list of obj"),
    "a list of lists": ("p.json", '[["a"]]', "not a list of texts or a list of objects"),
    "an empty list": ("p.json", "[]", "holds no prompt"),
    "a key twice": ("p.json", '[{"prompt": "a", "prompt": "b"}]', "has the key 'prompt' twice"),
    "a NUL": ("p.json", '["a\\u0000b"]', "p.json item 1 is no prompt"),
    "half a character": ("p.json", '["\\ud800"]', "p.json item 1 is no prompt"),
    "no text": ("p.json", '[{"prompt_en": 1, "dimension": []}]', "item 1 has no prompt"),
    "binary": ("p.json", b"\xff\xfe[\x00", "cannot read the prompt file .*; save it as UTF-8"),
    "a wide row": ("p.tsv", "Prompt\tCategory\tChallenge\na\tb\n", "line 2 has another number"),
    "another table": ("p.tsv", "a prompt\nanother\n", "has no column 'prompt', which"),
    "a column twice": ("p.tsv", "prompt\tprompt\na\tb\n", "has the columns prompt twice"),
    "an item of two texts": (
        "p.csv",
        "item_id,text,proposition_id\n7,A cat.,1\n7,,2\n7,A dog.,3\n",
        "line 4 has another 'text' than .*p.csv line 2, but the same 'item_id'",
    ),
    "an item without a text": (
        "p.csv",
        "item_id,text,proposition_id\n7,,1\n",
        "line 2 has no prompt",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "content", "message"), BAD.values(), ids=BAD)
def test_a_file_that_is_wrong_is_refused_in_a_line(name, content, message, tmp_path):
    data = content if isinstance(content, bytes) else content.encode()
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=message) as error:
        train_prompts(config_of(tmp_path / name))
    assert "\n" not in str(error.value)


def test_a_saved_data_set_of_a_published_table(tmp_path):
    """Its batches are put together as one table: an item's questions may be in several files."""
    names = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    for number, name in enumerate(names):
        rows = [{"item_id": "7", "text": "A cat.", "proposition_id": number}]
        table = pa.Table.from_pylist(rows)
        with (
            pa.OSFile(str(tmp_path / name), "wb") as sink,
            pa.ipc.new_stream(sink, table.schema) as w,
        ):
            w.write_table(table)
    state = {"_data_files": [{"filename": name} for name in names]}
    (tmp_path / "state.json").write_text(json.dumps(state))
    (found,) = train_prompts(config_of(tmp_path))
    assert found.text == "A cat."
