"""Every command's help has an example that its parser takes; typos get a suggestion; completion."""

import inspect
import re
import shlex
import subprocess
import sys

import pytest

from deployments.cli import app, run
from deployments.overrides import parse_arguments
from digen_core.config_keys import parse_value


def commands(group=app, path=()):
    """Yield every command: the words that call it, and its app."""
    for name in group:
        if name.startswith("-"):
            continue
        found = group[name]
        if found.default_command is None or list(commands(found)):
            yield from commands(found, (*path, name))
        else:
            yield (*path, name), found


COMMANDS = {" ".join(path): found for path, found in commands()}


def examples_of(found) -> list[str]:
    """The examples in a command's help, each on one line again."""
    text = inspect.getdoc(found.default_command)
    matches = re.findall(r"Example: (.*?)(?=\n\n|\nExample:|\Z)", text, re.DOTALL)
    return [" ".join(example.split()) for example in matches]


def test_there_are_commands():
    assert {"train", "replay", "bench overhead", "config show", "cluster show"} <= COMMANDS.keys()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example_that_parses(name, capsys):
    assert run([*name.split(), "--help"]) == 0
    assert f"Example: digen {name}" in capsys.readouterr().out
    for example in examples_of(COMMANDS[name]):
        program, *words = shlex.split(example.partition(" > ")[0])
        assert program == "digen"
        assert words[: len(name.split())] == name.split()
        command, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
        assert command is COMMANDS[name].default_command
        for key, text in parse_arguments(bound.arguments.get("tokens", ())).settings.items():
            parse_value(key, text)  # refuses keys that there are not


@pytest.mark.parametrize("name", [name for name in COMMANDS if len(name) > 2])
def test_a_typo_in_any_command_gets_a_suggestion(name, capsys):
    *group, word = name.split()
    typo = word[:-2] + word[-1] + word[-2]  # the last two letters in each other's place
    assert run([*group, typo]) == 2
    assert f'Did you mean "{word}"?' in capsys.readouterr().err


def own_options():
    for name, found in COMMANDS.items():
        for argument in found.assemble_argument_collection():
            for option in argument.names:
                if re.fullmatch("--[a-z-]{4,}", option) and not option.startswith("--no-"):
                    yield name, option


@pytest.mark.parametrize(("name", "option"), list(own_options()))
def test_a_typo_in_any_option_gets_a_suggestion(name, option, capsys):
    typo = option[:-1] + "x"
    required = {
        "evaluate": ["x"],
        "report": ["x"],
        "simulate": ["B"],
        "make-tiny": ["wan", "x"],
        "convert-hps": ["x.pt", "x"],
        "plan": ["--cluster", "2-cores"],
    }
    assert run([*name.split(), *required.get(name, []), typo, "3"]) == 2
    assert re.search(f"[Dd]id you mean {option}", capsys.readouterr().err)


def test_digen_alone_says_what_to_do_next(capsys):
    assert run([]) == 0
    out = capsys.readouterr().out
    for line in out.splitlines():
        if found := re.match(r"  digen (\S+)( show)?", line):
            assert found[1].startswith("-") or "".join(found.groups("")) in COMMANDS, line


def test_completion_knows_commands_and_options(tmp_path):
    """Ask bash, as it asks when Tab is pressed."""
    script = tmp_path / "digen"
    script.write_text(app.generate_completion(prog_name="digen", shell="bash"))

    def completed(words: list[str]) -> list[str]:
        quoted = " ".join(shlex.quote(word) for word in words)
        code = (
            f"source {script}; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; "
            "_digen; printf '%s\\n' \"${COMPREPLY[@]}\""
        )
        done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
        return done.stdout.split()

    assert completed(["digen", "rep"]) == ["report", "replay"]
    assert completed(["digen", "bench", "lay"]) == ["layouts"]
    assert completed(["digen", "evaluate", "--sam"]) == ["--samples-per-prompt"]


def test_completion_installs_itself_for_the_shell(tmp_path):
    code = "from deployments.cli import run; raise SystemExit(run(['--install-completion']))"
    environment = {"HOME": str(tmp_path), "SHELL": "/bin/bash", "PATH": "/usr/bin:/bin"}
    environment["PYTHONPATH"] = ":".join(sys.path)
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True)
    assert (tmp_path / ".local/share/bash-completion/completions/digen").is_file()
