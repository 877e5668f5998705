"""Merging configs: a partial one, as a tree of values, laid over a whole one.

Importing this module must not import torch.
"""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from digen_core.algorithms import DEFAULT
from digen_core.config.keys import entry_of, tables_of
from digen_core.config.rewards.keys import with_types
from digen_core.config.run import RunConfig

Tree = Mapping[str, Any]

TABLES: Final = frozenset(
    name for name, field in RunConfig.model_fields.items() if name == "rewards" or tables_of(field)
)
"""The tables of a config."""


def merge_configs(base: Tree, given: Tree) -> Tree:
    """Return a config with the keys of another laid over it.

    - A config with all of ``TABLES`` is whole, as one from a form is: it stands for itself.
    - A table is merged key by key; any other value takes the place of the one before.
    - An algorithm or a reward of another type than before is taken as it is given.
    - Of tables whose names are the user's (rewards, adapters, workers of pools) those stay that are
      given, merged with what they were; a number for a reward is its weight.

    Args:
        base: the config, as JSON or TOML has it.
        given: keys with values, likewise; wrong ones are left for the validation to find.
    """
    return given if given.keys() >= TABLES else _merge_tables(base, given, RunConfig)


def _merge_tables(base: Tree, given: Tree, model: type[BaseModel]) -> Tree:
    merged = dict(base)
    for key, value in given.items():
        field = model.model_fields.get(key)
        merged[key] = value if field is None else _merge_values(key, base.get(key), value, field)
    return merged


def _merge_values(key: str, base: Any, given: Any, field: FieldInfo) -> Any:
    if not (isinstance(base, Mapping) and isinstance(given, Mapping)):
        return given
    if key == "rewards":
        return _merge_rewards(base, given)
    if key == "algorithm":
        kinds = [tree.get("type", DEFAULT) for tree in (base, given)]
        return {**base, **given} if kinds[0] == kinds[1] or "type" not in given else given
    if entry := entry_of(field):
        return {
            name: _merge_values(name, base.get(name), own, entry) for name, own in given.items()
        }
    tables = tables_of(field)
    return _merge_tables(base, given, tables[0]) if tables else given


def _merge_rewards(base: Tree, given: Tree) -> Tree:
    try:
        before, now = with_types(base), with_types(given)
    except ValueError:  # a wrong name, which the validation reports
        return given
    assert isinstance(before, dict)
    assert isinstance(now, dict)
    return {
        name: {**before[name], **own}
        if name in before and before[name]["type"] == own["type"]
        else own
        for name, own in now.items()
    }
