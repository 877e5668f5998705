"""Suites: published protocols that say which prompts, rewards and samples judge a model.

Importing this module must not import torch.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from digen_core.data.kinds import (
    COMPBENCH_COLUMNS,
    COMPBENCH_KINDS,
    JUDGED,
    VBENCH_COLUMNS,
    VBENCH_KINDS,
    kinds_of,
    text_at,
)
from digen_core.data.prompts import Prompt
from digen_core.data.published import (
    DPG_CATEGORIES,
    DPG_COLUMNS,
    GENEVAL_COLUMNS,
    GENEVAL_TASKS,
)
from digen_core.errors import ConfigError
from digen_core.inputs.reading import shown

SuiteName = Literal["geneval", "ocr", "drawbench", "dpg", "dpg-blip", "t2i-compbench", "vbench"]

Table = Mapping[str, Any]
"""What a config says of a reward."""

_B32: Final = {"path": "openai/clip-vit-base-patch32"}


@dataclass(frozen=True, slots=True)
class Suite:
    """A published protocol."""

    rewards: Mapping[str, Table]  # by their types, which are their names in reports
    shown: Mapping[str, str]  # values of its table in their order, and what they are called there
    samples_per_prompt: int
    num_prompts: int | None = None  # None: not known
    columns: tuple[str, ...] = ()  # of metadata, that the rewards get
    factor: float = 1.0  # of values, where it shows them
    factors: Mapping[str, float] = field(default_factory=dict)  # of those that have another
    num_decimals: int = 2  # that it shows
    # Where a prompt is judged by its kind:
    kind_column: str | None = None  # of metadata, that says which one, or lists several
    models: Mapping[str, Table] = field(default_factory=dict)  # of rewards, not the run's own
    if_named: frozenset[str] = frozenset()  # rewards that judge where settings name them
    without: Mapping[str, str] = field(default_factory=dict)  # what digen leaves out -> it needs;
    # and what rewards judge that are to be named -> what is published of it is by

    @property
    def judges(self) -> dict[str, str]:
        """The kinds of prompts that it judges, and by which reward."""
        column = self.kind_column or ""
        return {kind: own for own in self.rewards for kind in JUDGED.get(own, {}).get(column, ())}

    def judges_with(self, named: Collection[str]) -> dict[str, str]:
        """Return the kinds of prompts that it judges where settings name rewards."""
        left_out = self.if_named.difference(named)
        return {kind: own for kind, own in self.judges.items() if own not in left_out}

    def needs_for(self, kind: str) -> str:
        """Return what it takes to judge a kind that is left out."""
        own = self.judges.get(kind)
        return f"{self.without[kind]}, or {own}" if own else self.without[kind]


def _of_kinds(kinds: Mapping[str, str], column: str) -> dict[str, str]:
    """Return what a table shows of kinds of prompts, by their titles."""
    rewards = {kind: own for own, known in JUDGED.items() for kind in known.get(column, ())}
    return {f"{rewards[kind]}/{kind}": title for kind, title in kinds.items()}


def _dpg_bench(reward: str) -> Suite:
    """Return DPG-Bench, whose questions a reward answers."""
    categories = {f"{reward}/{category}": title for category, title in DPG_CATEGORIES.items()}
    return Suite(
        rewards={reward: {}},
        shown={**categories, f"{reward}/score": "Overall"},
        samples_per_prompt=4,
        num_prompts=1065,
        columns=DPG_COLUMNS,
        factor=100,
    )


SUITES: Final[Mapping[SuiteName, Suite]] = {
    "geneval": Suite(
        rewards={"geneval": {"counts": "correct"}},
        shown={
            f"geneval/{task}": title
            for task, title in {"overall": "Overall", **GENEVAL_TASKS}.items()
        },
        samples_per_prompt=4,
        num_prompts=553,
        columns=GENEVAL_COLUMNS,
    ),
    "ocr": Suite(rewards={"ocr": {}}, shown={"ocr/score": "OCR accuracy"}, samples_per_prompt=1),
    "drawbench": Suite(
        rewards={"pickscore": {}, "image_reward": {}},
        shown={"pickscore/score": "PickScore", "image_reward/score": "ImageReward"},
        samples_per_prompt=1,
        num_prompts=200,
    ),
    "dpg": _dpg_bench("dpg"),
    "dpg-blip": _dpg_bench("dpg_blip"),
    "t2i-compbench": Suite(
        rewards={
            "blip_vqa": {},
            "clipscore": {"counts": "cosine", "text_column": None, "antialias": True},
            "judged_kinds": {"takes": "images"},
        },
        if_named=frozenset({"judged_kinds"}),
        models={"clipscore": _B32},
        shown=_of_kinds(COMPBENCH_KINDS, "category"),
        samples_per_prompt=10,
        columns=COMPBENCH_COLUMNS,
        num_decimals=4,
        kind_column="category",
        without={
            "spatial": "UniDet",
            "3d_spatial": "UniDet and a model of depth",
            "numeracy": "UniDet",
            "complex": "UniDet, as one of three scores that are mixed",
        },
    ),
    "vbench": Suite(
        rewards={
            "subject_consistency": {},
            "consistency": {"antialias": False},
            "temporal_flickering": {},
            "aesthetic": {"antialias": False, "frame_stride": 1},
            "clipscore": {
                "counts": "cosine",
                "text_column": "auxiliary_info.appearance_style.appearance_style",
                "antialias": True,
                "frame_stride": 1,
            },
            "judged_kinds": {"takes": "videos"},
        },
        if_named=frozenset({"judged_kinds"}),
        models={"subject_consistency": {}, "consistency": _B32, "aesthetic": {}, "clipscore": _B32},
        shown=_of_kinds(VBENCH_KINDS, "dimension"),
        samples_per_prompt=5,
        num_prompts=416,
        columns=VBENCH_COLUMNS,
        factor=100,
        factors={"aesthetic/aesthetic_quality": 10},  # of scores that are a tenth of the reward's
        kind_column="dimension",
        without={
            "the static filter of temporal_flickering": "RAFT",
            "motion_smoothness": "AMT",
            "dynamic_degree": "RAFT",
            "imaging_quality": "MUSIQ",
            "object_class": "GRiT",
            "multiple_objects": "GRiT",
            "human_action": "UMT",
            "color": "GRiT",
            "spatial_relationship": "GRiT",
            "scene": "Tag2Text",
            "temporal_style": "ViCLIP",
            "overall_consistency": "ViCLIP",
        },
    ),
}


def rewards_for(
    name: str, suite: Suite, prompts: Sequence[Prompt], named: Collection[str] = ()
) -> list[str]:
    """Return the rewards of a suite that judge some of the prompts.

    Args:
        name: what the suite is called in errors.
        suite: that judges prompts by their kinds.
        prompts: that are to be sampled.
        named: rewards that settings name.

    Raises:
        ConfigError: some are of kinds that it does not judge, or lack the text that they are
            compared with.
    """
    column, judges = suite.kind_column or "", suite.judges_with(named)
    kinds = [kinds_of(prompt.metadata, column) for prompt in prompts]
    others = [prompt for prompt, own in zip(prompts, kinds, strict=True) if not judges.keys() & own]
    if others:
        first = ", ".join(
            f"{shown(kind)} (which needs {suite.needs_for(kind)})"
            if kind in suite.without
            else shown(kind)
            for kind in kinds_of(others[0].metadata, column)
        )
        raise ConfigError(
            f"{len(others)} of {len(prompts)} prompts are of a kind that the {name} does "
            f"not judge, the first ({others[0].origin}) having the {column} {first}; keep those of "
            f"{', '.join(judges)}"
        )
    needed = {judges[kind] for own in kinds for kind in own if kind in judges}
    for reward in needed:
        _check_texts(suite, reward, prompts)
    return [own for own in suite.rewards if own in needed]


def _check_texts(suite: Suite, reward: str, prompts: Sequence[Prompt]) -> None:
    """Check that prompts which a reward compares with a text of their rows have one."""
    place = suite.rewards[reward].get("text_column")
    if place is None:
        return
    column = suite.kind_column or ""
    for prompt in prompts:
        is_judged = any(suite.judges.get(k) == reward for k in kinds_of(prompt.metadata, column))
        try:
            is_without = is_judged and text_at(prompt.metadata, place) is None
        except ValueError as error:
            raise ConfigError(f"{prompt.origin} cannot be judged: {error}") from error
        if is_without:
            raise ConfigError(
                f"{prompt.origin} has nothing in {place!r}; the text that its samples are compared "
                "with must stand there"
            )
