"""Typos get a suggestion, and the shell completes; the examples are checked in tests/printed."""

import os
import re
import shlex
import subprocess
import sys

import pytest

from deployments.cli import WELCOME, app, run
from support.cli_commands import COMMANDS
from support.small_disk import small_disk


def test_there_are_commands():
    assert {"train", "replay", "bench overhead", "config show", "cluster show"} <= COMMANDS.keys()


@pytest.mark.parametrize("name", [name for name in COMMANDS if len(name) > 2])
def test_a_typo_in_any_command_gets_a_suggestion(name, capsys):
    *group, word = name.split()
    typo = word[:-2] + word[-1] + word[-2]  # the last two letters in each other's place
    assert run([*group, typo]) == 2
    assert f'Did you mean "{word}"?' in capsys.readouterr().err


def own_options():
    for name, found in COMMANDS.items():
        for argument in found.assemble_argument_collection(default_parameter=app.default_parameter):
            for option in argument.names:
                if re.fullmatch("--[a-z-]{4,}", option) and not option.startswith("--no-"):
                    yield name, option


@pytest.mark.parametrize(("name", "option"), list(own_options()))
def test_a_typo_in_any_option_gets_a_suggestion(name, option, capsys):
    typo = option[:-1] + "x"
    required = {
        "evaluate": ["x"],
        "report": ["x"],
        "explain": ["x"],
        "bench recipe": ["dance_grpo_wan"],
        "export": ["x", "--for", "hub"],
        "simulate": ["B"],
        "make-tiny": ["wan", "x"],
        "convert-hps": ["x.pt", "x"],
        "plan": ["--cluster", "2-cores"],
    }
    assert run([*name.split(), *required.get(name, []), typo, "3"]) == 2
    assert re.search(f"[Dd]id you mean {option}", capsys.readouterr().err)


def test_digen_alone_says_what_to_do_next(capsys):
    assert run([]) == 0
    assert capsys.readouterr().out == WELCOME


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


OUTPUTS = {"short": [], "long": ["config", "show", "shapes"], "a table": ["recipes"]}


PROGRAM = "from deployments.cli import main; main()"
TRAINING = """
from deployments.views.live_view import LiveView
from digen_core.config.run import RunConfig
with LiveView(RunConfig(), "a-run"):
    print("it goes on")
"""


def printed(*command, **variables):
    """Return what a process prints in which digen is called so."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *command],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_help_ends_where_a_terminal_has_no_width():
    """As variables say of one that nobody sees, in which a program has another one run."""
    found = printed("train", "--help", COLUMNS="0")
    assert found.returncode == 0
    assert found.stdout == printed("train", "--help", COLUMNS="80").stdout


def test_python_without_docstrings_is_refused():
    found = printed("config", "show", "shapes", PYTHONOPTIMIZE="2")
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.startswith("digen: Python drops docstrings here, ")
    assert printed("config", "show", "shapes", PYTHONOPTIMIZE="1").returncode == 0


@pytest.mark.parametrize(
    "command",
    [*([PROGRAM, *own] for own in OUTPUTS.values()), [TRAINING]],
    ids=[*OUTPUTS, "a training"],
)
def test_output_that_nobody_reads_is_no_failure(command):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        found = subprocess.run(
            [sys.executable, "-c", *command],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writer)
    assert (found.returncode, found.stderr) == (141, "")


@pytest.mark.parametrize("command", [[], ["config", "show", "shapes"]], ids=["short", "long"])
def test_output_on_a_full_disk_is_one_line(command):
    with open("/dev/full", "w") as full:
        found = subprocess.run(
            [sys.executable, "-c", "from deployments.cli import main; main()", *command],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    told = "digen: cannot write: No space left on device; make room, or write elsewhere\n"
    assert (found.returncode, found.stderr) == (2, told)


def test_files_for_a_cluster_are_written_whole_or_not_at_all(tmp_path, capsys):
    with small_disk(100):
        assert run(["cluster", "show", "8x-h100", "--for", "slurm", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"digen: cannot write to {tmp_path}: File too large\n"
    assert not list(tmp_path.iterdir())


def test_output_to_what_is_not_utf_8_is_shown_as_far_as_it_can_be():
    command = [sys.executable, "-c", "from deployments.cli import main; main()", "ls", "--help"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "100"}
    found = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert (found.returncode, found.stderr) == (0, b"")
    assert b"After ? stands" in found.stdout  # ±
