"""The ``rewards`` table as it is written: names, types that are left out, dotted keys, mistakes."""

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

from digen_core.config.rewards import REWARD_TYPES
from digen_core.config.rewards.base import RewardBase

NULL: Final = "null"
"""What stands for None in a table of TOML, which has no null."""

_NAME: Final = re.compile(r"[A-Za-z0-9_-]+|[\w.-]+:\w+")


def with_types(rewards: object) -> object:
    """Write out what a ``rewards`` table leaves to be understood; leave the rest to pydantic.

    A number is a weight. Without a type, a name with a colon is a function of that name, and any
    other name is the type.

    Raises:
        ValueError: a name is neither ``module:function`` nor made of letters, digits, _ and -.
    """
    if not isinstance(rewards, Mapping):
        return rewards
    return {name: _with_type(str(name), value) for name, value in rewards.items()}


def _with_type(name: str, value: object) -> object:
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"the reward name {name!r} is neither module:function nor made of letters, digits, "
            "_ and - only; rename it."
        )
    if isinstance(value, RewardBase):
        return value
    table = dict(value) if isinstance(value, Mapping) else {"weight": value}
    table.setdefault("type", "function" if ":" in name else name)
    if table["type"] == "function" and ":" in name:
        table.setdefault("function", name)
    return table


def number_or_any_table(schema: dict[str, Any]) -> None:
    """Let the JSON schema take what ``with_types`` takes: a weight, or a table without its type."""
    tables = schema["additionalProperties"]["oneOf"]
    schema["additionalProperties"] = {"anyOf": [{"type": "number", "title": "weight"}, *tables]}


def split_key(key: str) -> tuple[str, str]:
    """Split what follows ``rewards.`` in a dotted key into a reward's name and its option.

    Module names have dots, functions have none: "my.judges:beauty.weight" is the weight of
    "my.judges:beauty". Without an option, the second string is empty.
    """
    module, colon, rest = key.rpartition(":")
    name, _, option = rest.partition(".")
    return module + colon + name, option


def unknown_reward(name: str) -> str:
    """Say that there is no such type of reward, and what there is."""
    near = get_close_matches(name, REWARD_TYPES, 1)
    hint = f"did you mean {near[0]}?" if near else f"its type is one of {', '.join(REWARD_TYPES)}."
    return f"unknown reward {name!r}; {hint} Your own is named module:function"


def unknown_option(parts: Sequence[str], kind: str) -> str:
    """Say what a reward of a type has in the place of a key that it does not have.

    Args:
        parts: of the key: "rewards", the reward's name, the option.
        kind: the reward's type.
    """
    known = list(REWARD_TYPES[kind].model_fields)
    near = get_close_matches(parts[2], known, 1)
    return f"did you mean rewards.{parts[1]}.{near[0]}?" if near else f"it has {', '.join(known)}"


def kind_of_option(key: str) -> Any:
    """Return the annotation of a reward's option, or float: that of its weight."""
    _, option = split_key(key.removeprefix("rewards."))
    fields = [kind.model_fields.get(option) for kind in REWARD_TYPES.values()]
    return next((field.annotation for field in fields if field), float)


def key_in_reward(rewards: Any, key: str, value: Any) -> list[str]:
    """Return the path to a reward's option; one that was a weight so far becomes a table for it."""
    name, option = split_key(key)
    if not isinstance(rewards, dict):
        return ["rewards", name]
    is_table = isinstance(rewards.get(name), dict)
    if option and name in rewards and not is_table:
        rewards[name] = {"weight": rewards[name]}
    if is_table and not option and not isinstance(value, dict):
        option = "weight"
    return ["rewards", name, *filter(None, option.split("."))]


def without_type(location: Sequence[int | str]) -> tuple[list[str], str | None]:
    """Return the parts of a key, and the type of the reward it is in, which pydantic puts there."""
    parts = [str(part) for part in location]
    if parts[:1] == ["rewards"] and len(parts) > 2:
        return parts[:2] + parts[3:], parts[2]
    return parts, None
