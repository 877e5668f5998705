"""Tiny models of every family, for tests: their names, and their policies."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest

from digen_core.config import families
from digen_core.config.families import VIDEO_FAMILIES
from digen_core.models.policy import ALL_PARTS, Part, Policy
from support.tiny_policies import load

FAMILIES = tuple(families.FAMILIES)
KINDS = tuple(f"{name}-{kind}" for name, row in families.FAMILIES.items() for kind in row.kinds)
QWEN_EDITORS = ("qwen_image-edit", "qwen_image-edit-plus")
EDITORS = (*QWEN_EDITORS, "wan-i2v", "wan-i2v-a14b", "hunyuan_video15-i2v")
"""Names of the tiny models that take no prompt without a source image: FAMILY-KIND."""
KONTEXT = "flux-kontext"
"""That of one which is shown a source image, and is a plain FLUX without."""
FLF2V = "wan-flf2v"
"""That of one which takes no prompt without two."""
DISTILLED = "hunyuan_video15-i2v-distilled"
"""That of one which is told where steps end, so that their noise levels have to be named."""
MODELS = (
    *FAMILIES,
    *(kind for kind in KINDS if kind not in (*EDITORS, KONTEXT, FLF2V, DISTILLED)),
)
"""Names of the other tiny models: of each family the plain one, and FAMILY-KIND."""
GUIDED = (
    *("flux2", "sd3", "qwen_image", "qwen_image21", "z_image", "sana"),
    *("wan", "hunyuan_video15", "ltx2"),
)
PUBLISHED = {
    "flux": "FLUX.1-dev",
    "flux2": "FLUX.2-klein-base-4B",
    "sd3": "stable-diffusion-3.5-medium",
    "qwen_image": "Qwen-Image",
    "qwen_image21": "Qwen-Image-2.1",
    "z_image": "Z-Image-Turbo",
    "sana": "Sana_1600M_1024px_diffusers",
    "wan": "Wan2.1-T2V-14B-Diffusers",
    "hunyuan_video": "HunyuanVideo",
    "ltx2": "LTX-2",
    "hunyuan_video15": "HunyuanVideo-1.5-Diffusers-480p_t2v",
}
"""Name of a published model, whose settings are shipped, of each family."""
HEIGHT, WIDTH, TOKENS = 32, 48, 24
LEVELS = (1.0, 0.9375, 0.8333333, 0.625)
"""Noise levels of four steps: of a shift of 5."""
OF_KIND: dict[str, dict[str, Any]] = {
    **{name: {"guidance_scale_2": 2.0} for name in ("wan-a14b", "wan-i2v-a14b")},
    DISTILLED: {"sigmas": LEVELS},
}
"""What some models are used with beside that."""
NEGATIVE = "blurry"
ROUNDED_TO_FLOAT32 = ("wan", "z_image", "ltx2", "sana")
"""Families whose blocks compute parts in float32 whatever the dtype: rounding shows in 6e-8."""
AT_NIGHT = tuple(pytest.param(editor, marks=pytest.mark.nightly) for editor in EDITORS)
"""Editors, for what each change shows on the models that they are like."""
OFTEN = ("flux", "sd3", "wan")
"""Models on which each change tries what takes long."""
EDITED = {"train": "edits.jsonl", "image_column": "image", "evaluation_fraction": 0.5}
"""Prompts with source images, as a config names them."""


def sliced(models: Iterable[str], *values: Any, often: Collection[str] = OFTEN) -> list[Any]:
    """Parameters of a test: each model with the values, marked ``families`` if not in ``often``."""
    return [
        pytest.param(name, *values, marks=[pytest.mark.families] * (name not in often))
        for name in models
    ]


def family_of(model: str) -> str:
    """The family of one of ``MODELS``."""
    return model.partition("-")[0]


def tolerance_of(model: str) -> float:
    """How near weights of one of ``MODELS`` in float64 come to those of sums in another order."""
    return 1e-6 if family_of(model) in ROUNDED_TO_FLOAT32 else 1e-10


def kind_of(model: str) -> str:
    """The kind of one of ``MODELS``, of its family's; empty: the plain one."""
    return model.partition("-")[2]


def frames_of(model: str) -> int:
    """The frames of the tests' samples: videos where the family makes them."""
    return 5 if family_of(model) in VIDEO_FAMILIES else 1


def load_tiny(
    folder: str, name: str, dtype: str = "float32", parts: frozenset[Part] = ALL_PARTS, **model: Any
) -> Policy:
    """Load a policy at the tests' sizes, of one of ``MODELS``."""
    defaults = {
        "height": HEIGHT,
        "width": WIDTH,
        "num_frames": frames_of(name),
        "max_sequence_length": TOKENS,
        "guidance_scale": 3.0,
        "negative_prompt": NEGATIVE,
        "source_image": name in (*EDITORS, KONTEXT, DISTILLED),
        **OF_KIND.get(name, {}),
    }
    return load(folder, dtype, parts, family=family_of(name), **defaults | model)
