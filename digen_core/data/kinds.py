"""Kinds of prompts in published sets, which rewards judge them, and texts that their rows hold."""

from collections.abc import Mapping
from typing import Any, Final

from digen_core.inputs.reading import shown

Row = Mapping[str, Any]
"""Metadata of a prompt."""

COMPBENCH_KINDS: Final[Mapping[str, str]] = {
    "color": "Color",
    "shape": "Shape",
    "texture": "Texture",
    "spatial": "Spatial (judged)",
    "3d_spatial": "3D-spatial (judged)",
    "numeracy": "Numeracy (judged)",
    "non_spatial": "Non-spatial",
    "complex": "Complex (judged)",
}
"""T2I-CompBench's categories that digen judges, in the order of its tables, and their titles."""

COMPBENCH_COLUMNS: Final = ("category", "phrases")
"""Metadata columns of its prompts: what kind one is, and the noun phrases in it, as a list."""

VBENCH_KINDS: Final[Mapping[str, str]] = {
    "subject_consistency": "Subject consistency",
    "background_consistency": "Background consistency",
    "temporal_flickering": "Temporal flickering",
    "aesthetic_quality": "Aesthetic quality",
    "object_class": "Object class (judged)",
    "multiple_objects": "Multiple objects (judged)",
    "human_action": "Human action (judged)",
    "color": "Color (judged)",
    "spatial_relationship": "Spatial relationship (judged)",
    "scene": "Scene (judged)",
    "appearance_style": "Appearance style",
}
"""VBench's dimensions that digen judges, in the order of its tables, and their titles."""

VBENCH_COLUMNS: Final = ("dimension", "auxiliary_info")
"""Metadata columns of its prompts: a list of their dimensions, and what these ask for."""

JUDGED: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "blip_vqa": {"category": ("color", "shape", "texture")},
    "clipscore": {"category": ("non_spatial",), "dimension": ("appearance_style",)},
    "subject_consistency": {"dimension": ("subject_consistency",)},
    "consistency": {"dimension": ("background_consistency",)},
    "temporal_flickering": {"dimension": ("temporal_flickering",)},
    "aesthetic": {"dimension": ("aesthetic_quality",)},
    "judged_kinds": {
        "category": ("spatial", "3d_spatial", "numeracy", "complex"),
        "dimension": (
            "object_class",
            "multiple_objects",
            "human_action",
            "color",
            "spatial_relationship",
            "scene",
        ),
    },
}
"""Kinds of prompts that are judged by types of rewards, by the column that says the kind."""


def kinds_of(row: Row, column: str) -> list[Any]:
    """Return the kinds that a prompt is of: what its column says, or lists."""
    found = row.get(column)
    return found if isinstance(found, list) else [found]


def text_at(row: Row, place: str) -> str | None:
    """Return a text of a prompt's row, or None if there is none.

    Args:
        row: metadata.
        place: column; dots lead into objects: "auxiliary_info.style".

    Raises:
        ValueError: something else is there.
    """
    found: Any = row
    for name in place.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    if found is not None and (not isinstance(found, str) or not found.strip()):
        raise ValueError(f"its {place!r} is {shown(found, 80)}; it must be a text")
    return found
