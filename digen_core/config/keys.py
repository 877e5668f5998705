"""The dotted keys of a config: which there are, and what is meant by one that there is not.

Where the user names what is in a table, NAME stands for the names: cluster.reward_workers.NAME.
"""

from difflib import get_close_matches
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from digen_core.config.rewards.keys import kind_of_option, split_key
from digen_core.config.run import RunConfig
from digen_core.errors import ConfigError
from digen_core.inputs.reading import parse_toml

NAME: Final = "NAME"


class UnknownKeyError(ConfigError):
    """A command line sets a key that configs do not have."""

    def __init__(self, key: str) -> None:
        super().__init__(f"unknown key {key}; {suggestion(key)}")
        self.key = key


@cache
def known_keys(model: type[BaseModel] = RunConfig, prefix: str = "") -> dict[str, FieldInfo]:
    """Return every dotted key with its field; tables come before the keys in them.

    What a reward is called, and has, `rewards.keys` knows.
    """
    keys: dict[str, FieldInfo] = {}
    for name, field in model.model_fields.items():
        key, holder = prefix + name, field
        keys[key] = field
        entry = entry_of(field)
        if entry is not None and key != "rewards":
            key, holder = f"{key}.{NAME}", entry
            keys[key] = entry
        for table in tables_of(holder):
            for inner_key, inner in known_keys(table, f"{key}.").items():
                keys.setdefault(inner_key, inner)
    return keys


def tables_of(field: FieldInfo) -> list[type[BaseModel]]:
    """Return the models of a field that is a table: several if one of its keys names which."""
    kinds = [field.annotation]
    if get_origin(field.annotation) is not dict:
        kinds += get_args(field.annotation)
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]


def entry_of(field: FieldInfo) -> FieldInfo | None:
    """Return what a table has under each name; None: the names are not the user's."""
    if get_origin(field.annotation) is not dict:
        return None
    entry = FieldInfo.from_annotation(get_args(field.annotation)[1])
    entry.description = field.description
    return entry


def field_of(key: str) -> FieldInfo | None:
    """Return the field of a dotted key, in which the user's names may be."""
    return known_keys().get(_without_names(key))


def _without_names(key: str) -> str:
    parts = key.split(".")
    for place in range(1, len(parts)):
        if ".".join([*parts[:place], NAME]) in known_keys():
            parts[place] = NAME
    return ".".join(parts)


def key_of_option(option: str) -> str:
    """Return the dotted key of an option such as model.max-sequence-length: only names keep "-"."""
    if option.startswith("rewards."):
        name, own = split_key(option.removeprefix("rewards."))
        return ".".join(filter(None, ("rewards", name, own.replace("-", "_"))))
    key = option.replace("-", "_")
    pairs = zip(option.split("."), key.split("."), _without_names(key).split("."), strict=True)
    return ".".join(typed if known == NAME else part for typed, part, known in pairs)


def parse_value(key: str, text: str) -> Any:
    """Return the value that ``text`` on a command line means for ``key``: TOML, or a bare word.

    Raises:
        ConfigError: there is no such key, or it is a table of keys.
    """
    field = field_of(key)
    if field is not None:
        kind = field.annotation
    elif key.startswith("rewards."):
        kind = kind_of_option(key)
    else:
        raise UnknownKeyError(key)
    if field is not None and tables_of(field) and not _is_value(kind):
        known = _without_names(key)
        inner = next(name for name in known_keys() if name.startswith(f"{known}."))
        raise ConfigError(
            f"{key} is a table of keys; set one of them, for example {key}{inner[len(known) :]}"
        )
    try:
        value = parse_toml(f"value = {text}")["value"]
    except ValueError:
        return text
    return text if _is_text(kind) and not isinstance(value, str) else value


def _is_value(kind: Any) -> bool:
    """Return whether a key with keys of its own can be set as a whole: to null, or to a list."""
    return NoneType in get_args(kind) or get_origin(kind) is tuple


def longest_known(location: str) -> str:
    """Return the key at a location: a union adds its members' names, and a list its indices."""
    key = location
    while key and field_of(key) is None and not key.startswith("rewards."):
        key = key.rpartition(".")[0]
    return key or "the config"


OTHER_NAMES: Final = {
    "lr": "train.learning_rate",
    "learning_rate": "train.learning_rate",
    "steps": "num_iterations",
    "epochs": "num_iterations",
    "max_steps": "num_iterations",
    "iterations": "num_iterations",
    "batch_size": "rollout.prompts_per_iteration",
    "num_generations": "rollout.group_size",
    "beta": "algorithm.kl_coefficient",
    "lora_rank": "train.lora.rank",
    "lora_alpha": "train.lora.alpha",
    "weight_decay": "train.weight_decay",
    "output_dir": "tracking.runs_dir",
    "resolution": "model.height",
    "guidance": "model.guidance_scale",
    "cfg": "model.guidance_scale",
    "resume_from_checkpoint": "--resume RUN",
}
"""What other programs call a key, with or without a table before it -> the key."""


def suggestion(key: str) -> str:
    """Return "did you mean ...?" for an unknown dotted key, or where all keys are listed."""
    parent, _, leaf = key.rpartition(".")
    table = _without_names(parent)
    by_leaf: dict[str, list[str]] = {}
    for known in known_keys():
        by_leaf.setdefault(known.rpartition(".")[2], []).append(known)
    if leaf in OTHER_NAMES and leaf not in by_leaf:
        return f"did you mean {OTHER_NAMES[leaf]}?"
    siblings = [k.rpartition(".")[2] for k in known_keys() if k.rpartition(".")[0] == table]
    if leaf in by_leaf:
        return f"did you mean {' or '.join(by_leaf[leaf])}?"
    if near := get_close_matches(leaf, siblings, 1, 0.6):
        return f"did you mean {f'{parent}.' if parent else ''}{near[0]}?"
    if near := get_close_matches(leaf, by_leaf, 1, 0.8) or get_close_matches(key, known_keys(), 1):
        return f"did you mean {' or '.join(by_leaf.get(near[0], near))}?"
    return "'digen config show' lists all keys"


def _is_text(annotation: Any) -> bool:
    """Return whether a field takes strings only, or strings and null."""
    kind, inner = get_origin(annotation), get_args(annotation)
    if kind is Annotated:
        return _is_text(inner[0])
    if kind in (Union, UnionType):
        return all(map(_is_text, inner))
    if kind is Literal:
        return all(isinstance(choice, str) for choice in inner)
    return annotation in (str, NoneType)
