"""Configs as text: read TOML and command-line values, and explain what is wrong with them.

TOML has no null, so the string "null" stands for it where a key may be null: lora = "null".
"""

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import NoneType
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from digen_core.config.keys import (
    entry_of,
    known_keys,
    longest_known,
    suggestion,
    tables_of,
)
from digen_core.config.rewards.keys import (
    NULL,
    key_in_reward,
    unknown_option,
    unknown_reward,
    without_type,
)
from digen_core.config.run import RunConfig
from digen_core.errors import ConfigError
from digen_core.inputs.addresses import redacted
from digen_core.inputs.reading import (
    SETTINGS_BYTES,
    UnreadableError,
    read_json_object,
    read_toml,
    shown,
)
from digen_core.strict import NO_NUMBER

CONFIG_OF_RUN = "config.json"  # in the folder of a run
_LONG: Final = 100  # characters of what is no typo
_MESSAGES: Final = {
    "model_type": "is a table of keys",
    "missing": "a value is missing",
    "tuple_type": "must be a list, as in [1, 2]",
    "too_short": "must have {min_length} or more values",
    "too_long": "must have {max_length} or fewer values",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must match {pattern}",
    "greater_than_equal": "must be greater than or equal to {ge:.15g}",
    "less_than_equal": "must be less than or equal to {le:.15g}",
}


def load_config(path: Path | str | None, overrides: Mapping[str, Any] | None = None) -> RunConfig:
    """Read a TOML file, lay ``overrides`` (dotted keys to values) over it, and check the result.

    Without a path the overrides lie over the defaults.

    Raises:
        ConfigError: the file is missing or not TOML, or a key or value is wrong.
    """
    tree = {} if path is None else _read(Path(path))
    for key, value in (overrides or {}).items():
        _lay(tree, key, value)
    source = " and ".join([str(path)] * (path is not None) + ["the command line"] * bool(overrides))
    return config_of_tree(tree, source)


def config_of_tree(tree: Mapping[str, Any], source: str) -> RunConfig:
    """Check a tree of values, in which "null" may stand for null.

    Args:
        tree: key -> value or subtree.
        source: where it comes from, for the error.

    Raises:
        ConfigError: a key or value is wrong.
    """
    try:
        return RunConfig.model_validate(_with_nulls(tree, RunConfig))
    except ValidationError as error:
        raise ConfigError(f"{source}: {describe(error)}") from error


def is_config(path: Path) -> bool:
    """Say whether a TOML file describes a run: one of its tables is a run's.

    Raises:
        ConfigError: it is not TOML.
    """
    tree = _read(path) if path.is_file() else {}
    tables = {key for key, value in tree.items() if isinstance(value, dict)}
    return not tables.isdisjoint(RunConfig.model_fields)


def require_run(run_dir: Path) -> None:
    """Check that there is a folder of this name.

    Raises:
        ConfigError: there is none; the message names one like it.
    """
    if run_dir.is_dir():
        return
    places = (run_dir.parent, run_dir.parent / "runs")  # where 'digen ls' looks, too
    others = {str(path.parent) for place in places for path in place.glob(f"*/{CONFIG_OF_RUN}")}
    near = get_close_matches(str(run_dir), others, 1)
    hint = f"did you mean {near[0]}?" if near else "give one such as runs/NAME"
    raise ConfigError(f"there is no run folder {run_dir}; {hint}")


def config_of_run(run_dir: Path, overrides: Mapping[str, Any] | None = None) -> RunConfig:
    """Return the config that a run kept, with ``overrides`` (dotted keys to values) laid over it.

    It has every key of the run's algorithm: another one's begin with their defaults.

    Raises:
        ConfigError: the folder is not a run's, or a key or value is wrong.
    """
    tree = tree_of_run(run_dir)
    algorithm, other = tree.get("algorithm"), (overrides or {}).get("algorithm.type")
    if other is not None and isinstance(algorithm, dict) and algorithm.get("type") != other:
        tree["algorithm"] = {}
    for key, value in (overrides or {}).items():
        _lay(tree, key, value)
    try:
        return RunConfig.model_validate(_with_nulls(tree, RunConfig))
    except ValidationError as error:
        source = " and ".join(
            [str(run_dir / CONFIG_OF_RUN)] + ["the command line"] * bool(overrides)
        )
        raise ConfigError(f"{source}: {describe(error)}") from error


def tree_of_run(run_dir: Path) -> dict[str, Any]:
    """Return the config that a run kept, as it stands there.

    Raises:
        ConfigError: the folder is not a run's.
    """
    require_run(run_dir)
    try:
        return read_json_object(run_dir / CONFIG_OF_RUN, "its config", SETTINGS_BYTES)
    except UnreadableError as error:
        raise ConfigError(
            f"{run_dir} is no run: it has no readable {CONFIG_OF_RUN} ({error})"
        ) from error


def describe(error: ValidationError) -> str:
    """Say all of a validation error in one line: each key, what is wrong, and its value."""
    problems: dict[str, list[str]] = {}
    values: dict[str, str] = {}
    for item in error.errors():
        if item["type"] == "default_factory_not_called":  # of a table with another mistake in it
            continue
        parts, kind = without_type(_place(item))
        location = _location(parts)
        if item["type"] == "extra_forbidden":
            hint = unknown_option(parts, kind) if kind else _why_unknown(parts)
            problems[f"unknown key {location}"] = [hint]
            continue
        if item["type"] == "union_tag_invalid" and parts[0] == "rewards":
            problems[unknown_reward(item["ctx"]["tag"])] = []
            continue
        if item["type"] == "union_tag_invalid":
            tags = item["ctx"]
            problems[f"{location}.type"] = [f"must be one of {tags['expected_tags']}"]
            values[f"{location}.type"] = _got(tags["tag"], tags["expected_tags"])
            continue
        key = longest_known(location)
        message = _message(item)
        if item["type"] == "value_error":  # of a combination; it names the keys and their values
            problems[message.removesuffix(".")] = []
        else:
            message = message.replace("Input should be", "must be")
            problems[key] = list(dict.fromkeys([*problems.get(key, []), message]))
            values[key] = _got(_given(item), item.get("ctx", {}).get("expected", ""))
    return "; ".join(
        key + (f": {' or '.join(messages)}" if messages else "") + values.get(key, "")
        for key, messages in problems.items()
    )


def _why_unknown(parts: Sequence[str]) -> str:
    """Say what a key that there is not may have been meant as."""
    location = _location(parts)
    if any("." in part for part in parts):
        return "a key in quotes is one name, with its dots; leave the quotes out"
    if location in known_keys():  # of another algorithm
        return f"{parts[0]}.type {parts[1]} has none"
    return suggestion(location)


def _place(item: ErrorDetails) -> tuple[int | str, ...]:
    """Return where a mistake is, also one that its table found."""
    return (*item["loc"], item["ctx"]["of"]) if item["type"] == NO_NUMBER else item["loc"]


def _given(item: ErrorDetails) -> object:
    return item["ctx"]["got"] if item["type"] == NO_NUMBER else item["input"]


def _message(item: ErrorDetails) -> str:
    """Say what is wrong with a value."""
    if item["type"] == "missing" and isinstance(item["loc"][-1], int):
        return "has too few values"
    words = _MESSAGES.get(item["type"])
    if words is None:
        return item["msg"].removeprefix("Value error, ")
    return words.format_map(item.get("ctx", {}))


def _got(value: object, choices: str) -> str:
    """Return the value that was given, and which of the choices, if any, it may be a typo of."""
    given = value if isinstance(value, str) and len(value) < _LONG else ""
    names = re.findall("'([^']*)'", str(choices))
    near = [name for name in names if name == f"flow_{given}"]  # grpo: that of the field
    near = near or get_close_matches(given, names, 1)
    return f" (got {redacted(shown(value))}" + (f"; did you mean {near[0]!r}?)" if near else ")")


def describe_fields(error: ValidationError, model: type[BaseModel]) -> str:
    """Say all of a validation error of another file than a config in one line."""
    problems = []
    places = [item["loc"] for item in error.errors()]
    above = {place[:length] for place in places for length in range(len(place))}
    for item in error.errors():
        if item["type"] == "too_short" and item["loc"] in above:  # it counts those that are right
            continue
        key = ".".join(str(part) for part in _place(item))
        message = _message(item).replace("Input should be", "must be")
        if item["type"] == "extra_forbidden":
            name = ".".join(part for part in item["loc"] if isinstance(part, str))
            near = get_close_matches(name, known_keys(model), 1)
            problems.append(f"unknown key {key}" + (f"; did you mean {near[0]}?" if near else ""))
        elif item["type"] == "missing":
            problems.append(f"{key} is missing")
        else:
            problems.append(f"{key}: {message}{_got(_given(item), '')}" if key else message)
    return "; ".join(problems)


def _location(parts: Sequence[str]) -> str:
    """Return the dotted key of a path, without the names that a choice of tables adds."""
    if len(parts) > 1 and f"{parts[0]}.type" in known_keys():
        parts = [parts[0], *parts[2:]]
    return ".".join(parts)


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_toml(path, "the config file")
    except UnreadableError as error:
        if path.exists():
            raise
        others = {other.stem: other for other in sorted(path.parent.glob("*.toml"))}
        near = get_close_matches(path.stem, others, 1)
        hint = f"; did you mean {others[near[0]]}?" if near else ""
        raise ConfigError(f"{error}{hint}") from error


def _lay(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in a tree; what follows ``rewards.`` is a reward's name and its option."""
    *parents, leaf = key.split(".")
    if key.startswith("rewards."):
        tree.setdefault("rewards", RunConfig().reward_weights)
        *parents, leaf = key_in_reward(tree["rewards"], key.removeprefix("rewards."), value)
    for parent in parents:
        if tree.get(parent, NULL) == NULL:
            tree[parent] = {}
        tree = tree[parent]
        if not isinstance(tree, dict):
            raise ConfigError(f"{key} cannot be set: in the config file {parent} is no table")
    tree[leaf] = value


def _with_nulls(tree: Mapping[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """Return the tree with None for "null" wherever the model allows None."""
    fields = model.model_fields
    return {
        name: _with_null(value, fields[name]) if name in fields else value
        for name, value in tree.items()
    }


def _with_null(value: Any, field: FieldInfo) -> Any:
    """Return what a field is given with None for "null" wherever it allows None."""
    if value == NULL and NoneType in get_args(field.annotation):
        return None
    if not isinstance(value, dict):
        return value
    entry = entry_of(field)
    if entry is not None:
        return {name: _with_null(item, entry) for name, item in value.items()}
    for table in tables_of(field):
        value = _with_nulls(value, table)
    return value
