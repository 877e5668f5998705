"""Write a config as TOML that :func:`digen_core.config.load.load_config` reads back."""

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from digen_core.config.rewards.keys import NULL
from digen_core.config.run import RunConfig

_WIDTH = 100


def as_toml(config: RunConfig) -> str:
    """Write all of a config as TOML, each key under its help text; load_config reads it back.

    Beside an "auto" that the config settles stands what it comes to.
    """
    settled = {
        "rollout.fragment_size": config.fragment_size,
        "evaluation.num_steps": config.evaluation_steps,
    }
    return "\n".join(_lines(config, "", settled)) + "\n"


def _lines(node: BaseModel, prefix: str, settled: Mapping[str, int]) -> Iterator[str]:
    """Yield the node's own values, then its tables: TOML wants them in this order."""
    tables: list[tuple[str, str | None, Any]] = []
    for name, field in type(node).model_fields.items():
        value = getattr(node, name)
        if isinstance(value, BaseModel | dict):
            tables.append((name, field.description or type(value).__doc__, value))
            continue
        yield from _comment(field.description)
        now = settled.get(prefix + name) if value == "auto" else None
        yield f"{name} = {literal(value)}" + ("" if now is None else f" # now {now}")
    for name, text, value in tables:
        yield from ("", *_comment(text), f"[{prefix}{name}]")
        if isinstance(value, BaseModel):
            yield from _lines(value, f"{prefix}{name}.", settled)
        else:
            for key, item in value.items():
                label = key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else literal(key)
                if isinstance(item, BaseModel):
                    yield from ("", *_comment(type(item).__doc__), f"[{prefix}{name}.{label}]")
                    yield from _lines(item, f"{prefix}{name}.{label}.", settled)
                else:
                    yield f"{label} = {literal(item)}"


def _comment(text: str | None) -> list[str]:
    if not text:
        return []
    return textwrap.wrap(
        " ".join(text.split()), _WIDTH, initial_indent="# ", subsequent_indent="# "
    )


def literal(value: Any) -> str:
    """Return a value as TOML."""
    if value is None:
        return f'"{NULL}"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, BaseModel):  # in a list
        pairs = (f"{name} = {literal(own)}" for name, own in value)
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
