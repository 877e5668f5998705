"""Every command that a page or a help text prints is one that works, up to where it would begin.

A command that is added to README.md, docs/ or a docstring is checked without being named here.
"""

import re
import sys
from pathlib import Path

import pytest

from deployments.cli import WELCOME, run
from support.cli_commands import COMMANDS, examples_of
from support.pages import PAGES, ROOT, Printed, parts_of, read_page
from support.printed_checks import Reader

pytestmark = pytest.mark.slow

NOT_COMMANDS = {"make version 0"}  # what a task is called


@pytest.fixture
def reader(tmp_path, monkeypatch, capfd):
    folder = tmp_path / "here"
    folder.mkdir()
    before = set(sys.modules)
    yield Reader(folder, monkeypatch, capfd)
    for name in set(sys.modules) - before:  # a page's own modules
        if getattr(sys.modules[name], "__file__", None) == str(folder / f"{name}.py"):
            del sys.modules[name]


def type_all(reader: Reader, commands: list[Printed]) -> None:
    for command in commands:
        if command.text in NOT_COMMANDS:
            continue
        try:
            reader.type(command)
        except BaseException as error:
            error.add_note(str(command))
            raise


@pytest.mark.ci_but_one
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_commands_of_a_page_work(page, reader):
    found = read_page(page.read_text())
    for name, content in found.files.items():
        Path(name).write_text(content)
    type_all(reader, found.commands)


def test_the_examples_of_all_commands_work(reader):
    for name in COMMANDS:
        examples = examples_of(name)
        assert examples, f"the help of digen {name} has no example"
        assert all(re.match(rf"digen {name}( |$)", example) for example in examples)
        type_all(reader, [Printed(0, example) for example in examples])


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_are_in_the_help(name, capsys):
    assert run([*name.split(), "--help"]) == 0
    assert f"Example: digen {name}" in capsys.readouterr().out


def test_what_digen_says_when_it_is_called_alone_works(reader):
    lines = re.findall(r"^  (digen .*?)(?:  |$)", WELCOME, re.MULTILINE)
    assert len(lines) > 5
    type_all(reader, [Printed(0, line) for line in lines])


PAGE = """\
Call `digen bench
overhead CONFIG`; `digen train` has help.

<!-- file: mine.toml -->

    seed = 3

Then

    $ digen train mine.toml --sead 1
    digen: unknown key sead; did you mean
    seed?
    $ A=. digen train mine.toml   # fine
    it trains

<!-- file: a.py -->

```python
import digen
```

    digen config show mine.toml \\
        --seed 4 > other.toml
    and this is none
    digen train other.toml
"""


def test_a_page_is_taken_apart():
    page = read_page(PAGE)
    assert page.files == {"mine.toml": "seed = 3\n\n", "a.py": "import digen\n\n"}
    assert page.commands == [
        Printed(1, "digen bench overhead CONFIG", is_mention=True),
        Printed(2, "digen train", is_mention=True),
        Printed(
            10, "digen train mine.toml --sead 1", "digen: unknown key sead; did you mean seed?"
        ),
        Printed(13, "A=. digen train mine.toml   # fine", "it trains"),
        Printed(22, "digen config show mine.toml --seed 4 > other.toml"),
        Printed(25, "digen train other.toml"),
    ]


def test_a_command_line_is_taken_apart():
    assert parts_of("a 'b; c' > d && e --f='{g = 1}' | h # i") == [
        ["a", "b; c"], [">", "d"], ["&&", "e", "--f={g = 1}"], ["|", "h"],
    ]  # fmt: skip


BROKEN = {
    "an option that there is not": "digen evaluate runs/NAME --prompt x",
    "a command that there is not": "digen trian shapes",
    "a config that there is not": "digen train shapez",
    "a file that no command has made": "digen train mine.toml",
    "a key that there is not": "digen train shapes --rollout.group-sise 8",
    "values that do not go together": "digen train shapes --rollout.fragment-size 5",
    "prompts that are not there": "digen train shapes --prompts.train missing.txt",
    "a model that is not there": "digen train shapes --model.path missing",
    "a reward that is not there": "digen train shapes --rewards.my_rewards:gone 1",
    "a cluster that there is not": "digen plan shapes --cluster 3-cores",
    "a target that there is not": "make trian",
    "an argument of a target": 'make train ARGS="--sead 1"',
    "a deployment that there is not": "prefect deployment run post-train/shapez",
    "a parameter that is refused": "prefect deployment run post-train/shapes -p config={'a':1}",
    "an option of another program": "mlflow ui --backend sqlite:///x",
    "constraints that are not there": "pip install -c requirements.txt .",
    "a program that nothing checks": "kubectl apply",
    "code that is none": "python -c 'import'",
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_a_broken_command_is_found(text, reader):
    with pytest.raises((Exception, SystemExit)):
        reader.type(Printed(1, text))


@pytest.mark.parametrize("options", ["", "--fleet"])
def test_a_plan_that_a_page_prints_is_not_made(options, reader):
    reader.type(Printed(1, f"digen plan shapes --cluster 2-cores {options} > plan.txt"))
    assert Path("plan.txt").read_text() == ""


def test_an_answer_that_is_not_what_is_said_is_found(reader):
    reader.type(
        Printed(1, "digen train shapes --seed x", "digen: ... seed: must be a valid integer")
    )
    for wrong in ("digen: seed: must be positive", ""):
        with pytest.raises(AssertionError):
            reader.type(Printed(1, "digen train shapes --seed x", wrong))
    with pytest.raises(AssertionError):
        reader.type(Printed(1, "digen train shapes", "digen: the seed is wrong"))
