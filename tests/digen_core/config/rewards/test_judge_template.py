"""Templates of the reward ``judge``: what is read, and one line for what cannot be."""

import os
import re

import pytest

from digen_core.config.rewards.judge_template import (
    QUESTION,
    Choice,
    Pattern,
    Rubric,
    Verdict,
    YesNo,
    check_columns,
    load_pair_template,
    load_template,
)
from digen_core.errors import UserError
from digen_core.inputs.shipped import data_folder

SHIPPED = sorted(path.name for path in data_folder("judges").iterdir())


def load_shipped(name):
    load = load_pair_template if name.startswith("pairwise") else load_template
    return load(f"digen:judges/{name}")


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_ones_ask_about_the_prompt_and_no_column(name):
    """But for that of questions, which asks what it is given and shows no prompt."""
    template, text = load_shipped(name), "a {b} c"
    asked = ("", {QUESTION: text}) if name == "question.toml" else (text, {})
    check_columns(template, list(asked[1]))
    assert text in template.texts(*asked)[1]
    assert text not in template.texts(*asked)[0]


def test_there_is_one_of_each_kind():
    assert {type(load_shipped(name)) for name in SHIPPED} == {
        YesNo, Rubric, Pattern, Choice, Verdict,
    }  # fmt: skip


def test_a_pattern_of_which_python_warns_is_taken(tmp_path):
    (tmp_path / "p.toml").write_text(
        "score = 'pattern'\nuser = 'a'\nrange = [0, 1]\npattern = '([[0-9])'"
    )
    assert isinstance(load_template(str(tmp_path / "p.toml")), Pattern)


def test_a_text_is_a_question(tmp_path):
    (tmp_path / "q.txt").write_text("\ufeffIs it {prompt}, {kind}?\n", encoding="utf-8")
    template = load_template(str(tmp_path / "q.txt"))
    assert isinstance(template, YesNo)
    assert template.columns() == {"kind"}
    assert template.texts("a", {"kind": "{prompt}"}) == ("", "Is it a, {prompt}?\n")


WRONG = {
    "no TOML": ("score = ", "is not valid TOML: "),
    "no UTF-8": (b"user = '\xff'", "is not valid TOML: 'utf-8' codec can't decode"),
    "no text": ("", "user is missing"),
    "an empty text": ("user = ''", "user: must not be empty (got '')"),
    "a number as text": ("user = 3", "user: must be a valid string (got 3)"),
    "no such way": ("score = 'yesno'", "score is 'yesno'; use yes_no, rubric, pattern"),
    "a way that is a list": ("score = ['yes_no']", "score is ['yes_no']; use yes_no"),
    "a typo": ("user = 'a'\nsistem = 'b'", "unknown key sistem; did you mean system?"),
    "a key of another": ("user = 'a'\nrange = [0, 1]", "unknown key range"),
    "no components": ("score = 'rubric'\nuser = 'a'", "components is missing"),
    "an empty rubric": (
        "score = 'rubric'\nuser = 'a'\n[components]",
        "components: must have 1 or more values (got {})",
    ),
    "a component without a range": (
        "score = 'rubric'\nuser = 'a'\n[components.x]", "components.x.range is missing",
    ),
    "a falling range": (
        "score = 'rubric'\nuser = 'a'\n[components.x]\nrange = [5, 1]",
        "components.x.range: must be the lowest and the highest score, such as [1, 5] (got [5, 1])",
    ),
    "a range of one": (
        "score = 'rubric'\nuser = 'a'\n[components.x]\nrange = [1]", "components.x.range",
    ),
    "a range without end": (
        "score = 'rubric'\nuser = 'a'\n[components.x]\nrange = [0, inf]", "must be a finite number",
    ),
    "a range of everything": (
        "score = 'rubric'\nuser = 'a'\n[components.x]\nrange = [-1e308, 1e308]",
        "must be the lowest and the highest score",
    ),
    "a component called score": (
        "score = 'rubric'\nuser = 'a'\n[components.score]\nrange = [0, 1]",
        "a component cannot be called 'score'; use letters, digits, _ and -",
    ),
    "a component with a slash": (
        "score = 'rubric'\nuser = 'a'\n[components.'a/b']\nrange = [0, 1]",
        "a component cannot be called 'a/b'",
    ),
    "weights of nothing": (
        "score = 'rubric'\nuser = 'a'\n[components.x]\nrange = [0, 1]\nweight = 0",
        "all components have the weight 0",
    ),
    "a negative weight": (
        "score = 'rubric'\nuser = 'a'\n[components.x]\nrange = [0, 1]\nweight = -1",
        "components.x.weight: must be greater than or equal to 0 (got -1)",
    ),
    "no pattern": ("score = 'pattern'\nuser = 'a'\nrange = [0, 1]", "pattern is missing"),
    "no expression": (
        "score = 'pattern'\nuser = 'a'\nrange = [0, 1]\npattern = '('",
        "pattern: is no regular expression: missing )",
    ),
    "no group": (
        "score = 'pattern'\nuser = 'a'\nrange = [0, 1]\npattern = 'x'",
        "pattern: has 0 groups; put the number, and only it, in parentheses",
    ),
    "two groups": (
        "score = 'pattern'\nuser = 'a'\nrange = [0, 1]\npattern = '(x)(y)'", "has 2 groups",
    ),
    "huge": ("#" * 200_000, "more than 131072"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_template_is_one_line(tmp_path, case):
    content, message = WRONG[case]
    path = tmp_path / "own.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        load_template(str(path))
    told = str(caught.value)
    assert str(path) in told
    assert "\n" not in told
    assert len(told) < 600


def test_what_is_no_file_is_one_line(tmp_path):
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "bytes.txt").write_bytes("ä".encode("utf-16"))
    (tmp_path / "empty.txt").write_text("")
    os.mkfifo(tmp_path / "pipe.toml")
    for name, message in {
        "folder.toml": "it is a folder, not a file",
        "bytes.txt": "save it as UTF-8",
        "empty.txt": "user: must not be empty",
        "pipe.toml": "it is a pipe, not a file",
        "none.toml": "there is no judge's template .*none.toml .*digen's: digen:judges/alignment",
    }.items():
        with pytest.raises(UserError, match=message) as caught:
            load_template(str(tmp_path / name))
        assert "\n" not in str(caught.value)


def test_a_column_that_is_not_given_is_named(tmp_path):
    (tmp_path / "q.txt").write_text("{prompt} {kind} {a.b} {_c}")
    template = load_template(str(tmp_path / "q.txt"))
    check_columns(template, ["kind", "a.b", "_c", "more"])
    with pytest.raises(UserError, match=r"it names \{kind\}, which is neither \{prompt\} nor one"):
        check_columns(template, ["a.b", "_c"])
