"""Configs as text: read TOML and command-line values, and explain what is wrong with them.

TOML has no null, so the string "null" stands for it where a key may be null: lora = "null".
"""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from digen_core.config import ConfigError, RunConfig
from digen_core.reward_keys import (
    NULL,
    key_in_reward,
    kind_of_option,
    unknown_option,
    unknown_reward,
    with_nones,
    without_type,
)

CONFIG_OF_RUN = "config.json"  # in the folder of a run
_MESSAGES = {"model_type": "is a table of keys", "missing": "a value is missing"}


class UnknownKeyError(ConfigError):
    """A command line sets a key that configs do not have."""

    def __init__(self, key: str) -> None:
        super().__init__(f"unknown key {key}; {suggestion(key)}")
        self.key = key


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
    others = {str(path.parent) for path in run_dir.parent.glob(f"*/{CONFIG_OF_RUN}")}
    near = get_close_matches(str(run_dir), others, 1)
    hint = f"did you mean {near[0]}?" if near else "give one such as runs/NAME"
    raise ConfigError(f"there is no run folder {run_dir}; {hint}")


def config_of_run(run_dir: Path, overrides: Mapping[str, Any] | None = None) -> RunConfig:
    """Return the config that a run kept, with ``overrides`` (dotted keys to values) laid over it.

    Raises:
        ConfigError: the folder is not a run's, or a key or value is wrong.
    """
    try:
        tree = json.loads((run_dir / CONFIG_OF_RUN).read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise ConfigError(f"{run_dir} is no run: it has no readable {CONFIG_OF_RUN}") from error
    for key, value in (overrides or {}).items():
        _lay(tree, key, value)
    try:
        return RunConfig.model_validate(_with_nulls(tree, RunConfig))
    except ValidationError as error:
        source = " and ".join(
            [str(run_dir / CONFIG_OF_RUN)] + ["the command line"] * bool(overrides)
        )
        raise ConfigError(f"{source}: {describe(error)}") from error


def parse_value(key: str, text: str) -> Any:
    """Return the value that ``text`` on a command line means for ``key``: TOML, or a bare word.

    Raises:
        ConfigError: there is no such key, or it is a table of keys.
    """
    field, parent = known_keys().get(key), known_keys().get(key.rpartition(".")[0])
    if field is not None:
        kind = field.annotation
    elif key.startswith("rewards."):
        kind = kind_of_option(key)
    elif parent is not None and get_origin(parent.annotation) is dict:
        kind = get_args(parent.annotation)[1]
    else:
        raise UnknownKeyError(key)
    if field is not None and tables_of(field) and NoneType not in get_args(kind):
        inner = next(name for name in known_keys() if name.startswith(f"{key}."))
        raise ConfigError(f"{key} is a table of keys; set one of them, for example {inner}")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return text if _is_text(kind) and not isinstance(value, str) else value


def describe(error: ValidationError) -> str:
    """Say all of a validation error in one line: each key, what is wrong, and its value."""
    problems: dict[str, list[str]] = {}
    values: dict[str, str] = {}
    for item in error.errors():
        parts, kind = without_type(item["loc"])
        location = _location(parts)
        if item["type"] == "extra_forbidden":
            hint = unknown_option(parts, kind) if kind else suggestion(location)
            if location in known_keys():  # of another algorithm
                hint = f"{parts[0]}.type {parts[1]} has none"
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
        key = _longest_known(location)
        message = _MESSAGES.get(item["type"], item["msg"].removeprefix("Value error, "))
        if item["type"] == "value_error":  # of a combination; it names the keys and their values
            problems[message.removesuffix(".")] = []
        else:
            problems.setdefault(key, []).append(message.replace("Input should be", "must be"))
            values[key] = _got(item["input"], item.get("ctx", {}).get("expected", ""))
    return "; ".join(
        key + (f": {' or '.join(messages)}" if messages else "") + values.get(key, "")
        for key, messages in problems.items()
    )


def _got(value: object, choices: str) -> str:
    """Return the value that was given, and which of the choices, if any, it may be a typo of."""
    near = get_close_matches(str(value), re.findall("'([^']*)'", str(choices)), 1)
    return f" (got {value!r}" + (f"; did you mean {near[0]!r}?)" if near else ")")


def describe_fields(error: ValidationError, model: type[BaseModel]) -> str:
    """Say all of a validation error of another file than a config in one line."""
    problems = []
    for item in error.errors():
        key = ".".join(str(part) for part in item["loc"])
        message = item["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
        if item["type"] == "extra_forbidden":
            name = ".".join(part for part in item["loc"] if isinstance(part, str))
            near = get_close_matches(name, known_keys(model), 1)
            problems.append(f"unknown key {key}" + (f"; did you mean {near[0]}?" if near else ""))
        elif item["type"] == "missing":
            problems.append(f"{key} is missing")
        else:
            problems.append(f"{key}: {message} (got {item['input']!r})" if key else message)
    return "; ".join(problems)


def _location(parts: Sequence[str]) -> str:
    """Return the dotted key of a path, without the names that a choice of tables adds."""
    if len(parts) > 1 and f"{parts[0]}.type" in known_keys():
        parts = [parts[0], *parts[2:]]
    return ".".join(parts)


def _longest_known(location: str) -> str:
    """Return the key at a location: a union adds its members' names, and a list its indices."""
    key = location
    while key and key not in known_keys() and not key.startswith("rewards."):
        key = key.rpartition(".")[0]
    return key or "the config"


def suggestion(key: str) -> str:
    """Return "did you mean ...?" for an unknown dotted key, or where all keys are listed."""
    parent, _, leaf = key.rpartition(".")
    by_leaf: dict[str, list[str]] = {}
    for known in known_keys():
        by_leaf.setdefault(known.rpartition(".")[2], []).append(known)
    siblings = [k.rpartition(".")[2] for k in known_keys() if k.rpartition(".")[0] == parent]
    if leaf in by_leaf:
        return f"did you mean {' or '.join(by_leaf[leaf])}?"
    if near := get_close_matches(leaf, siblings, 1, 0.6):
        return f"did you mean {f'{parent}.' if parent else ''}{near[0]}?"
    if near := get_close_matches(leaf, by_leaf, 1, 0.8) or get_close_matches(key, known_keys(), 1):
        return f"did you mean {' or '.join(by_leaf.get(near[0], near))}?"
    return "'digen config show' lists all keys"


@cache
def known_keys(model: type[BaseModel] = RunConfig, prefix: str = "") -> dict[str, FieldInfo]:
    """Return every dotted key with its field; tables come before the keys in them."""
    keys: dict[str, FieldInfo] = {}
    for name, field in model.model_fields.items():
        keys[prefix + name] = field
        for table in tables_of(field):
            for key, inner in known_keys(table, f"{prefix}{name}.").items():
                keys.setdefault(key, inner)
    return keys


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        others = {other.stem: other for other in sorted(path.parent.glob("*.toml"))}
        near = get_close_matches(path.stem, others, 1)
        hint = f"; did you mean {others[near[0]]}?" if near else ""
        raise ConfigError(f"cannot read the config file {path}: {error.strerror}{hint}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


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
    result: dict[str, Any] = {}
    for name, value in tree.items():
        field = model.model_fields.get(name)
        if name == "rewards" and isinstance(value, dict):
            value = {key: with_nones(item) for key, item in value.items()}
        elif field is not None and value == NULL and NoneType in get_args(field.annotation):
            value = None
        elif field is not None and isinstance(value, dict):
            for table in tables_of(field):
                value = _with_nulls(value, table)
        result[name] = value
    return result


def _is_text(annotation: Any) -> bool:
    """Return whether a field takes strings only, or strings and null."""
    kinds = get_args(annotation) if get_origin(annotation) in (Literal, UnionType) else [annotation]
    return all(kind in (str, NoneType) or isinstance(kind, str) for kind in kinds)


def tables_of(field: FieldInfo) -> list[type[BaseModel]]:
    """Return the models of a field that is a table: several if one of its keys names which."""
    kinds = (field.annotation, *get_args(field.annotation))
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
