"""Unions of dataclasses in JSON: each object has the name of its class beside its fields."""

from dataclasses import dataclass
from typing import Any, Final, get_args

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

TAG: Final = "type"


@dataclass(frozen=True, slots=True)
class Tagged:
    """Beside a union in an annotation: it is written, and read, by the names of its classes."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Choose the class by the tag, whose place no field takes."""
        return core_schema.tagged_union_schema(
            {choice.__name__: handler.generate_schema(choice) for choice in get_args(source)},
            discriminator=_name_of,
            serialization=core_schema.wrap_serializer_function_ser_schema(_with_tag),
        )


def _name_of(value: Any) -> Any:
    """Return the name of a value's class, or of that of an object that was read."""
    return value.get(TAG) if isinstance(value, dict) else type(value).__name__


def _with_tag(value: Any, fields_of: core_schema.SerializerFunctionWrapHandler) -> dict[str, Any]:
    return {TAG: type(value).__name__, **fields_of(value)}
