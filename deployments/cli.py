"""The console command ``digen``.

Arguments, the config and what it names are checked before torch, Prefect or MLflow are imported:
help and mistakes show at once. A mistake of the user is one line on stderr and exit code 2; a run
that fails later is one line and exit code 1.
"""

import errno
import os
import re
import select
import signal
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, version
from io import TextIOWrapper
from typing import Any

from cyclopts import App, CycloptsError, Parameter, Token, UnusedCliTokensError, convert

from deployments.bench import training
from deployments.bench.commands import bench
from deployments.bench.gang import commands as gang_commands
from deployments.commands import (
    chaos,
    clusters,
    configs,
    exporting,
    models,
    operation,
    planning,
    runs,
    starting,
    tracking,
)
from deployments.errors import RunFailedError, RunStoppedError, one_line
from deployments.local import apply_settings
from deployments.overrides import require_plain
from deployments.stopping import install
from digen_core.config.keys import UnknownKeyError
from digen_core.errors import UserError
from digen_core.inputs.addresses import redacted
from digen_core.inputs.reading import shown
from tasks.cluster.garbage import collect_rarely

WELCOME = """\
digen: reinforcement-learning post-training of diffusion and flow-matching models

  digen train shapes                              train the embedded model; minutes on a CPU
  digen init mine.toml                            a config of your own, from a few answers
  digen recipes                                   the configs that digen ships
  digen config show shapes                        every setting with its meaning
  digen ls                                        your runs, and how they went
  digen train --resume runs/NAME                  resume a run that was interrupted
  digen evaluate runs/NAME                        judge a finished run again
  digen export runs/NAME --for comfyui            its adapter for another program, or the hub
  digen report runs/NAME                          see what its devices waited for
  digen explain runs/NAME                         see what a run that stands still waits for
  digen compare runs/NAME runs/OTHER              what differs, and the curves together
  digen replay runs/NAME 3                        train an iteration again, with other settings
  digen up                                        servers, workers and deployments to run it by
  digen --help                                    all commands; COMMAND --help shows an example
"""

NARROWEST = 10  # columns in which help can be read
NO_DOCSTRINGS = (
    "Python drops docstrings here, which digen and libraries that it uses read; unset "
    "PYTHONOPTIMIZE, or set it to 1, and leave out -OO"
)


def _version() -> str:
    try:
        return version("digen")
    except PackageNotFoundError:
        return "unknown (not installed)"


def _converted(kind: Any, tokens: Sequence[Token]) -> Any:
    """Return what an argument says, as cyclopts converts it, but no fraction rounded to an integer.

    Raises:
        ValueError: it has to be an integer.
    """
    if kind in (int, list[int]):
        for text in (token.value for token in tokens):
            if re.fullmatch(r"[+-]?\d*\.\d*[1-9]\d*", text):
                raise ValueError(f"{text} is no integer; give a whole number")
    return convert(kind, tokens)


app = App(
    name="digen",
    default_parameter=Parameter(converter=_converted, negative_iterable=()),  # no --empty-names
    help="Reinforcement-learning post-training of diffusion and flow-matching models.",
    version=_version,
    help_format="plaintext",
    suppress_keyboard_interrupt=False,
)
_pretrain = App(name="pretrain", help="Make an embedded base model from nothing.")
_config = App(name="config", help="Look at configs.")
_cluster = App(name="cluster", help="Look at clusters, and start their workers elsewhere.")
app.command(
    runs.train,
    usage="Usage: digen train [CONFIG] [--resume RUN] [--KEY VALUE ...]",
)
app.command(runs.evaluate)
app.command(runs.pause)
app.command(runs.cancel)
app.command(runs.ls)
app.command(starting.init)
app.command(starting.recipes)
app.command(runs.report)
app.command(runs.explain)
app.command(tracking.compare)
app.command(tracking.sync)
app.command(exporting.export)
app.command(runs.replay, usage="Usage: digen replay RUN ITERATION [--KEY VALUE ...]")
app.command(operation.up)
app.command(operation.down)
app.command(operation.status)
app.command(operation.worker)
app.command(planning.simulate)
app.command(
    planning.plan, usage="Usage: digen plan CONFIG --cluster CLUSTER [--json] [--KEY VALUE ...]"
)
app.command(
    planning.size, usage="Usage: digen size [CONFIG] [--json | --markdown] [--KEY VALUE ...]"
)
app.command(
    chaos.chaos,
    usage="Usage: digen chaos CONFIG [--seed S] [--stories N] [--only KIND ...] [--KEY VALUE ...]",
)
app.command(models.make_tiny)
app.command(models.convert_hps)
_pretrain.command(models.shapes)
_pretrain.command(models.shapes_edit)
_config.command(configs.show, usage="Usage: digen config show [CONFIG] [--KEY VALUE ...]")
_config.command(configs.reference)
_cluster.command(clusters.show)
bench.command(gang_commands.gang)
bench.command(
    gang_commands.stages,
    usage="Usage: digen bench stages CONFIG [--gbit-per-second N] [--latency S] [--KEY VALUE ...]",
)
bench.command(training.layouts)
bench.command(
    training.learning,
    usage="Usage: digen bench learning CONFIG [--layout NAME ...] [--KEY VALUE ...]",
)
bench.command(
    training.algorithms,
    usage="Usage: digen bench algorithms CONFIG [--only NAME ...] [--KEY VALUE ...]",
)
bench.command(
    training.soak,
    usage="Usage: digen bench soak CONFIG [--every-seconds S] [--seed S] [--KEY VALUE ...]",
)
bench.command(
    training.recipe,
    usage="Usage: digen bench recipe NAME [--iterations N] [--write] [--KEY VALUE ...]",
)
bench.command(training.pictures)
bench.command(training.golden)
for _group in (_pretrain, _config, _cluster, bench):
    app.command(_group)


def _reflowed(text: str) -> str:
    """Return a docstring with each paragraph, or argument, in one line, which a terminal breaks."""
    lines: list[str] = []
    indent = -1  # of arguments; -1: they have not begun
    for line in text.splitlines():
        words, depth = line.strip(), len(line) - len(line.lstrip())
        if indent < 0:
            goes_on = bool(lines and lines[-1].strip()) and "Example: " not in lines[-1] + line
        else:
            indent = indent or depth
            goes_on = depth > indent
        if words.endswith(":") and words[:-1].isalpha():  # Args:
            indent, goes_on = 0, False
        if words and goes_on:
            lines[-1] += f" {words}"
        else:
            lines.append(line)
    return "\n".join(lines)


def _reflow(commands: App) -> None:
    """Have the help of commands fill the terminal's width, whatever that is."""
    for name in commands:
        if name.startswith("-"):  # --help and --version
            continue
        if function := commands[name].default_command:
            function.__doc__ = _reflowed(function.__doc__ or "")
        _reflow(commands[name])


_reflow(app)
app.register_install_completion_command(
    help="Let the shell complete commands and options (bash, zsh, fish, PowerShell), and exit.",
)


def run(arguments: Sequence[str]) -> int:
    """Do what a command line says; return the exit code."""
    if not arguments:
        sys.stdout.write(WELCOME)
        return 0
    try:
        code = _call(arguments)
    except UnusedCliTokensError as error:
        first = (error.unused_tokens or [""])[0]
        return _fail(f"unexpected argument {shown(first)}; --help shows what it takes", 2)
    except UnknownKeyError as error:
        return _fail(_option_like(arguments, error.key) or error, 2)
    except (UserError, CycloptsError) as error:
        return _fail(_command_for(arguments) or error, 2)
    except RunFailedError as error:
        return _fail(error, 1)
    except RunStoppedError as error:
        return _fail(error, 130)
    except KeyboardInterrupt:
        return _fail("stopped", 130)
    return code if isinstance(code, int) else 0


OTHER_WORDS = {
    "resume": "digen train --resume RUN",
    "continue": "digen train --resume RUN",
    "stop": "digen cancel RUN",
    "kill": "digen cancel RUN",
    "eval": "digen evaluate RUN",
    "list": "digen ls",
    "runs": "digen ls",
    "configs": "digen recipes",
    "new": "digen init FILE",
    "help": "digen --help",
}
"""What other programs call a command -> what does it here."""


def _command_for(arguments: Sequence[str]) -> str | None:
    """Say which command does what a word of other programs means; None if it is one of ours."""
    word = arguments[0]
    command = OTHER_WORDS.get(word)
    if command is None or word in app:
        return None
    run = next((a for a in arguments[1:] if not a.startswith("-")), "RUN")
    return f"there is no command {word}; use: {command.replace('RUN', run)}"


def _call(arguments: Sequence[str]) -> object:
    """Call the command of a command line.

    Raises:
        UserError: the system refuses a file or folder that it names, before anything starts; what
            has started reports its failures itself.
    """
    require_plain(arguments)
    try:
        return app(
            list(arguments), exit_on_error=False, print_error=False, result_action="return_value"
        )
    except OSError as error:
        if error.filename is None:
            raise
        named = shown(os.fspath(error.filename))
        raise UserError(f"cannot use {named}: {error.strerror}") from error


def _option_like(arguments: Sequence[str], key: str) -> str | None:
    """Say which of the command's own options an unknown key may be a typo of."""
    path, apps, _ = app.parse_commands(list(arguments))
    if not path:
        return None
    collection = apps[-1].assemble_argument_collection(default_parameter=app.default_parameter)
    options = [name for argument in collection for name in argument.names]
    typed = "--" + key.replace("_", "-")
    near = get_close_matches(typed, [o for o in options if o.startswith("--")], 1, 0.8)
    return f"unknown option {typed}; did you mean {near[0]}?" if near else None


def main() -> None:
    """Entry point of the console command."""
    if sys.flags.optimize > 1:
        sys.exit(_fail(NO_DOCSTRINGS, 2))
    collect_rarely()
    install()
    apply_settings()
    _drop_width()
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # of a terminal that is not UTF-8
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        if not _is_unread():
            raise
        _forget_output()
        code = 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
            raise
        _forget_output()
        code = _fail(f"cannot write: {error.strerror}; make room, or write elsewhere", 2)
    sys.exit(code)


def _drop_width() -> None:
    """Drop a width that is none, such as the 0 of a terminal that nobody sees: help would not end.

    What is printed is then as wide as the terminal, or 80.
    """
    width = os.environ.get("COLUMNS", "")
    if width.isdecimal() and int(width) < NARROWEST:
        del os.environ["COLUMNS"]


def _forget_output() -> None:
    """Have what is left of the output go nowhere: it would fail again at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_unread() -> bool:
    """Say whether nobody reads the output any more, as head that has seen enough."""
    pipe = select.poll()
    pipe.register(sys.stdout.fileno(), 0)
    return any(found & select.POLLERR for _, found in pipe.poll(0))


def _fail(error: object, code: int) -> int:
    """Print one line to stderr; of addresses that it quotes, nothing secret."""
    sys.stderr.write(f"digen: {one_line(redacted(str(error)))}\n")
    return code
