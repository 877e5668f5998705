"""The part of a command line that sets config keys: ``CONFIG --rollout.group-size 8 --seed=1``.

CONFIG is a file, or the name of a config or recipe that digen ships, such as shapes. Values are
TOML (8, 3e-4, [0.9, 0.95], "null"); strings need no quotes. Hyphens may stand for underscores, save
in names of yours, such as those of rewards. The last of several settings of a key counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from deployments.shipped import find_config, telling_kinds
from digen_core.config.keys import key_of_option, parse_value
from digen_core.config.load import config_of_run, load_config
from digen_core.config.run import RunConfig
from digen_core.errors import UserError
from digen_core.inputs.reading import shown

ConfigTokens = Annotated[str, Parameter(show=False, allow_leading_hyphen=True)]


@dataclass(frozen=True)
class ConfigArguments:
    """A config file and what is to be changed in it, as the user typed them."""

    path: Path | None
    settings: dict[str, str]


def parse_arguments(tokens: Sequence[str]) -> ConfigArguments:
    """Sort tokens into the config file and settings, in whatever order they come.

    Raises:
        UserError: a setting lacks its value, or a token is neither.
    """
    path: Path | None = None
    settings: dict[str, str] = {}
    rest = list(tokens)
    while rest:
        token = rest.pop(0)
        if token.startswith("--") and len(token) > 2:
            name, equals, text = token[2:].partition("=")
            if not equals:
                if not rest or rest[0].startswith("--"):
                    raise UserError(f"--{name} needs a value, as in --{name} VALUE")
                text = rest.pop(0)
            settings[key_of_option(name)] = text
        elif path is None and not token.startswith("-"):
            path = Path(token)
        else:
            raise UserError(f"unexpected argument {token!r}; settings look like --seed 1")
    return ConfigArguments(path, settings)


def require_plain(arguments: Sequence[str]) -> None:
    """Check that arguments are texts, as those of a shell are.

    Raises:
        UserError: one holds a NUL.
    """
    for argument in arguments:
        if "\0" in argument:
            raise UserError(f"the argument {shown(argument)} holds a NUL; leave it out")


def config_of(
    tokens: Sequence[str], command: str | None = None, run_dir: Path | None = None
) -> RunConfig:
    """Return the config that the tokens of a command line describe.

    Args:
        tokens: what follows the command.
        command: its name, if it cannot go without a config file.
        run_dir: folder of a run whose config takes the place of the file, if none is given.

    Raises:
        UserError: a token, key or value is wrong, or there is no such config.
    """
    arguments = parse_arguments(tokens)
    overrides = {key: parse_value(key, text) for key, text in arguments.settings.items()}
    if arguments.path is None and run_dir is not None:
        return config_of_run(run_dir, overrides)
    if command and arguments.path is None:
        raise UserError(f"which config? For example: {command} shapes")
    if arguments.path is None:
        return load_config(None, overrides)
    path = find_config(str(arguments.path))
    with telling_kinds("config", path):
        return load_config(path, overrides)
