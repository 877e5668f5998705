"""The base of everything that is read from a file or a form, and bounds that say their reason."""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Annotated, Any, Final, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    model_validator,
)
from pydantic import GetJsonSchemaHandler as GetJson
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema


class Strict(BaseModel):
    """A config node: immutable, unknown keys are errors, attribute docstrings are the help text."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_truth_for_numbers(cls, tree: object) -> object:
        """Refuse true and false where numbers belong: Python would take them for 1 and 0."""
        for name, value in tree.items() if isinstance(tree, dict) else ():
            truth = next((own for own in _leaves(value) if isinstance(own, bool)), None)
            if truth is not None and name in cls.model_fields and _is_of_numbers(cls, name):
                raise PydanticCustomError(NO_NUMBER, "must be a number", {"of": name, "got": truth})
        return tree


NO_NUMBER: Final = "no_number"
"""The type of a table's mistake that one of its values is true or false and not a number."""


@cache
def _is_of_numbers(model: type[BaseModel], field: str) -> bool:
    """Say whether numbers are values of a field, or are in it, and true and false are not.

    Tables that are models see to their own.
    """
    kinds, found = [model.model_fields[field].annotation], set[object]()
    while kinds:
        kind = kinds.pop()
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return False
        found.add(kind)
        kinds += get_args(kind)
    return not found.isdisjoint({int, float}) and found.isdisjoint({bool, object, Any})


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, list | tuple):
        for each in value:
            yield from _leaves(each)
    else:
        yield value


@dataclass(frozen=True, slots=True)
class AtMost:
    """The largest number that a field takes, and why: a mistyped one must not fill the memory."""

    most: int
    why: str

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Check a number after everything else."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJson) -> JsonSchemaValue:
        """Say the bound in the JSON schema, as ``le`` does."""
        return {**handler(schema), "maximum": self.most}

    def _check(self, value: float) -> float:
        if not value <= self.most:
            raise PydanticCustomError(
                "too_large", "must be at most {most}: {why}", {"most": self.most, "why": self.why}
            )
        return value


_MAX_CHARACTERS: Final = 10_000
_MAX_BITS: Final = 128
_MAX_DEPTH: Final = 20
_NOT_PLAIN: Final = re.compile(r"[\x00\ud800-\udfff]")


def unusable(tree: object, depth: int = 0) -> Iterator[str]:
    """Yield what is wrong with a tree of values wherever it stands, whatever its keys mean."""
    if depth > _MAX_DEPTH:
        yield f"tables and lists nest more than {_MAX_DEPTH} deep"
        return
    inner: Iterable[object] = ()
    if isinstance(tree, dict):
        inner = chain(tree, tree.values())
    elif isinstance(tree, list | tuple):
        inner = tree
    else:
        yield from _unusable_leaf(tree)
    for value in inner:
        yield from unusable(value, depth + 1)


def _unusable_leaf(value: object) -> Iterator[str]:
    if isinstance(value, str) and len(value) > _MAX_CHARACTERS:
        yield f"a text has {len(value)} characters; use at most {_MAX_CHARACTERS}"
    elif isinstance(value, str) and not is_plain(value):
        yield f"the text {value[:100]!r} holds NUL or half a character (a surrogate)"
    elif isinstance(value, int) and value.bit_length() > _MAX_BITS:
        yield f"a number has {value.bit_length()} binary digits; use at most {_MAX_BITS}"


def is_plain(text: str) -> bool:
    """Say whether a text can be written as UTF-8, and to databases, which take no NUL."""
    return _NOT_PLAIN.search(text) is None


MAX_PATH: Final = 1000
MAX_NAME: Final = 255


def _must_be_a_path(path: str) -> str:
    names = os.fsencode(path).split(b"/")
    if "\0" in path or max(map(len, names)) > MAX_NAME or len(path) > MAX_PATH:
        raise PydanticCustomError(
            "no_path",
            "no file can be called so: a path has at most {most} characters, {name} bytes of them "
            "between two slashes, and no NUL",
            {"most": MAX_PATH, "name": MAX_NAME},
        )
    return path


PathText = Annotated[str, AfterValidator(_must_be_a_path)]
"""A path that some file might have."""

YEAR: Final = 31_536_000
"""Seconds."""

Duration = Annotated[float, AtMost(YEAR, "these are the seconds of a year")]
"""Seconds; many more overflow clocks."""
