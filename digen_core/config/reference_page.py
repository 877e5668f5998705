"""The configuration reference: every key of a config with its values, default and meaning."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from digen_core.config.families import FAMILIES, Defaults
from digen_core.config.keys import NAME, entry_of, tables_of
from digen_core.config.model import EMBEDDED, EMBEDDED_DEFAULTS, EMBEDDED_EDITOR
from digen_core.config.rewards import REWARD_TYPES
from digen_core.config.run import RunConfig
from digen_core.config.toml import literal

TITLE: Final = """\
# Configuration

Every key that a run's TOML file or its command line may set, made from the config's own help texts
by `digen config reference > docs/configuration.md` (tested). `digen config show CONFIG` prints a
whole config with the values that hold. On a command line a key is an option:
`--rollout.group-size 8`. TOML has no null; the text "null" stands for it.
"""

_TYPES: Final = {"integer": "whole number", "number": "number", "string": "text"}
_BOUNDS: Final = {
    "minimum": ">=",
    "exclusiveMinimum": ">",
    "maximum": "<=",
    "exclusiveMaximum": "<",
}


def reference() -> str:
    """Return the page, in Markdown."""
    lines = [TITLE, *_section("Top of the file", RunConfig)]
    for name, field in RunConfig.model_fields.items():
        tables = tables_of(field)
        for model in tables:
            which = ""
            if len(tables) > 1:
                which = f', type = "{model.model_fields["type"].default}"'
            lines += _sections(name, model, which)
        if name == "model":
            lines += _defaults_of_models()
    for kind, reward in REWARD_TYPES.items():
        lines += _section(f'[rewards.NAME], type = "{kind}"', reward)
    return "\n".join(lines).rstrip() + "\n"


def _defaults_of_models() -> Iterator[str]:
    """Yield what stands for "the model's" in the table of models."""
    rows = {f"`{family}`": row.defaults for family, row in FAMILIES.items()}
    rows |= dict.fromkeys((f"`{EMBEDDED}`", f"`{EMBEDDED_EDITOR}`"), EMBEDDED_DEFAULTS)
    headings = [f"`{name}`" for name in Defaults._fields[:-1]] + ["`evaluation.num_steps`"]
    yield from ("Defaults that are the model's, by `family`, and of the embedded models:", "")
    yield from (f"| | {' | '.join(headings)} |", f"|---{'|---' * len(headings)}|")
    yield from (f"| {name} | {' | '.join(map(str, found))} |" for name, found in rows.items())
    yield from (
        "",
        "They are those of the family's pipeline in diffusers, but the sizes of videos, which are "
        "those that FlowGRPO (wan) and DanceGRPO (hunyuan_video) trained on; hunyuan_video15 has "
        "those of hunyuan_video, and the guidance of its published models, and ltx2 half its "
        "pipeline's sides and two seconds. The pipeline of qwen_image21 cuts no prompt: it has the "
        "tokens of qwen_image.",
        "",
    )


def _sections(
    name: str, model: type[BaseModel], which: str = "", meaning: str | None = None
) -> Iterator[str]:
    """Yield the section of a table, then those of the tables in it."""
    yield from _section(f"[{name}]{which}", model, meaning)
    for key, field in model.model_fields.items():
        entry = entry_of(field)
        label = f"{name}.{key}" if entry is None else f"{name}.{key}.{NAME}"
        for inner in tables_of(entry or field):
            yield from _sections(label, inner, meaning=field.description)


def _section(heading: str, model: type[BaseModel], meaning: str | None = None) -> Iterator[str]:
    properties = model.model_json_schema()["properties"]
    yield from (f"## {heading}", "")
    if model is not RunConfig and model.__doc__:
        yield from (" ".join(f"{model.__doc__} {meaning or ''}".split()), "")
    yield from ("| key | value | default | meaning |", "|---|---|---|---|")
    for key, field in model.model_fields.items():
        if key == "type" or (tables_of(entry_of(field) or field) and key != "rewards"):
            continue
        meaning = " ".join((field.description or "").split()).replace("|", "\\|")
        yield f"| `{key}` | {_values(properties[key])} | {_default(field)} | {meaning} |"
    yield ""


def _default(field: FieldInfo) -> str:
    if field.default_factory_takes_validated_data:
        return "the model's"
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "none: it must be set"
    if isinstance(value, dict):
        return "`shapes = 1.0`" if value else "`{}`"
    return f"`{literal(value)}`"


def _values(schema: Mapping[str, Any]) -> str:
    """Say which values a key takes, as its JSON schema does."""
    if "anyOf" in schema:
        return " or ".join(_values(part) for part in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        choices = schema.get("enum", [schema.get("const")])
        return ", ".join(f'`"{choice}"`' for choice in choices)
    kind = schema.get("type")
    if kind == "null":
        return "null"
    if kind == "boolean":
        return "true or false"
    if kind == "array":
        return _list(schema)
    if kind == "object":
        return "table"
    bounds = [f"{sign} {_plain(schema[name])}" for name, sign in _BOUNDS.items() if name in schema]
    return " ".join([_TYPES[str(kind)], *[" and ".join(bounds)] * bool(bounds)])


def _plain(bound: float) -> str:
    return str(bound) if isinstance(bound, int) else f"{bound:g}"


def _list(schema: Mapping[str, Any]) -> str:
    if "prefixItems" in schema:
        return f"list of {len(schema['prefixItems'])}: {_values(schema['prefixItems'][0])}"
    return f"list: {_values(schema['items'])}"
