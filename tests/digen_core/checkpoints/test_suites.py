"""Suites that judge prompts by their kinds: what each judges, leaves out, and makes of a run."""

import json

import pytest

from digen_core.checkpoints.judging import Judging, judged_config
from digen_core.checkpoints.suites import SUITES, rewards_for
from digen_core.config.load import CONFIG_OF_RUN
from digen_core.config.run import RunConfig
from digen_core.data.prompts import Prompt
from digen_core.errors import ConfigError, UserError

VBENCH = (
    "subject_consistency", "background_consistency", "temporal_flickering", "motion_smoothness",
    "dynamic_degree", "aesthetic_quality", "imaging_quality", "object_class", "multiple_objects",
    "human_action", "color", "spatial_relationship", "scene", "temporal_style", "appearance_style",
    "overall_consistency",
)  # fmt: skip
COMPBENCH = (
    "color", "shape", "texture", "spatial", "3d_spatial", "numeracy", "non_spatial", "complex"
)  # fmt: skip
STYLE = {"appearance_style": {"appearance_style": "oil painting"}}


def prompts_of(name, *kinds, named=(), **row):
    column = SUITES[name].kind_column
    rows = [Prompt("a", {**row, column: kind}, origin=f"line {n}") for n, kind in enumerate(kinds)]
    return rewards_for(f"suite {name}", SUITES[name], rows, named)


@pytest.mark.parametrize(("name", "published"), [("vbench", VBENCH), ("t2i-compbench", COMPBENCH)])
def test_each_published_kind_is_judged_or_left_out(name, published):
    suite = SUITES[name]
    left_out = {kind for kind in suite.without if kind.isidentifier() or kind[0].isdigit()}
    assert left_out | suite.judges.keys() == set(published)
    assert left_out.isdisjoint(suite.judges_with(()))
    by_name = {kind for kind, own in suite.judges.items() if own == "judged_kinds"}
    assert suite.judges_with(["judged_kinds"]).keys() - suite.judges_with(()).keys() == by_name
    assert by_name <= left_out, "what the published number is by is said of each"
    titles = [suite.shown[f"judged_kinds/{kind}"] for kind in by_name]
    assert all(title.endswith(" (judged)") for title in titles)
    assert list(suite.shown) == [
        f"{suite.judges[kind]}/{kind}" for kind in published if kind in suite.judges
    ]


def test_only_rewards_are_asked_that_judge_a_prompt():
    assert prompts_of("vbench", ["temporal_flickering"]) == ["temporal_flickering"]
    kinds = ["scene", "background_consistency"], ["motion_smoothness", "subject_consistency"]
    assert prompts_of("vbench", *kinds) == ["subject_consistency", "consistency"]
    assert prompts_of("t2i-compbench", "non_spatial") == ["clipscore"]
    found = prompts_of("vbench", ["appearance_style"], auxiliary_info=STYLE)
    assert found == ["clipscore"]
    judge = {"named": ["judged_kinds"]}
    assert prompts_of("vbench", *kinds, **judge) == [
        "subject_consistency", "consistency", "judged_kinds",
    ]  # fmt: skip
    assert prompts_of("vbench", ["temporal_flickering"], **judge) == ["temporal_flickering"]
    assert prompts_of("t2i-compbench", "complex", "numeracy", **judge) == ["judged_kinds"]


@pytest.mark.parametrize(
    ("name", "kinds", "message"),
    [
        (
            "vbench",
            [["temporal_flickering"], ["color"], ["dynamic_degree", "new"]],
            "2 of 3 prompts are of a kind that the suite vbench does not judge, the first (line 1) "
            "having the dimension 'color' (which needs GRiT, or judged_kinds); keep those of "
            "subject_consistency, background_consistency, temporal_flickering, aesthetic_quality, "
            "appearance_style",
        ),
        (
            "vbench",
            [["dynamic_degree", "new"]],
            "the dimension 'dynamic_degree' (which needs RAFT), 'new'; keep those of",
        ),
        (
            "t2i-compbench",
            ["spatial"],
            "the category 'spatial' (which needs UniDet, or judged_kinds",
        ),
        ("t2i-compbench", ["complex"], "'complex' (which needs UniDet, as one of three scores"),
        ("t2i-compbench", [None], "the category None; keep those of color, shape, texture, non_"),
        (
            "vbench",
            [["appearance_style"]],
            "line 0 has nothing in 'auxiliary_info.appearance_style.appearance_style'; the text",
        ),
    ],
)
def test_kinds_that_a_suite_does_not_judge_are_named(name, kinds, message):
    with pytest.raises(ConfigError) as error:
        prompts_of(name, *kinds)
    assert message in str(error.value)


def test_a_style_that_is_no_text_is_told():
    broken = {"appearance_style": {"appearance_style": 3}}
    with pytest.raises(ConfigError, match=r"^line 0 cannot be judged: its 'aux.*' is 3; it must"):
        prompts_of("vbench", ["appearance_style"], auxiliary_info=broken)


@pytest.fixture
def run(tmp_path):
    """Return the folder of a run that was trained with rewards of other models than VBench's."""
    rewards = {
        "consistency": {"path": "other/clip", "revision": "a", "batch_size": 3},
        "mine": {"type": "aesthetic", "head": "other.safetensors"},
    }
    (tmp_path / "checkpoints" / "v0001").mkdir(parents=True)
    model = {"family": "wan", "path": "x", "num_frames": 5, "height": 32, "width": 48}
    config = RunConfig.model_validate({"model": model, "rewards": rewards})
    (tmp_path / CONFIG_OF_RUN).write_text(config.model_dump_json())
    return tmp_path


def judged(run, *dimensions, **settings):
    rows = [
        {"prompt_en": f"{n}", "dimension": own, "auxiliary_info": STYLE}
        for n, own in enumerate(dimensions)
    ]
    (run / "VBench_full_info.json").write_text(json.dumps(rows))
    place = str(run / "VBench_full_info.json")
    return judged_config(run, Judging(place, suite="vbench", settings=settings))


def test_models_of_a_run_s_rewards_are_not_taken_for_those_of_the_protocol(run):
    config = judged(run, ["background_consistency"], ["aesthetic_quality"], **{
        "rewards.aesthetic": {"head": "own.safetensors", "batch_size": 2},
        "rewards.consistency.batch_size": 4, "rewards.consistency.revision": "null",
    })  # fmt: skip
    assert list(config.rewards) == ["consistency", "aesthetic"]
    clip, aesthetic = config.rewards["consistency"], config.rewards["aesthetic"]
    assert (clip.path, clip.revision) == ("openai/clip-vit-base-patch32", None)
    assert (clip.batch_size, clip.antialias) == (4, False)
    assert (aesthetic.path, aesthetic.head) == ("openai/clip-vit-large-patch14", "own.safetensors")
    assert (aesthetic.batch_size, aesthetic.antialias, aesthetic.frame_stride) == (2, False, 1)
    assert config.evaluation.samples_per_prompt == 5
    assert config.prompts.metadata_columns == ("dimension", "auxiliary_info")
    other = judged(run, ["background_consistency"], **{"rewards.consistency.path": "models/b32"})
    assert other.rewards["consistency"].path == "models/b32"
    whole = judged(run, ["background_consistency"], rewards={"consistency": {"path": "models/x"}})
    assert whole.rewards["consistency"].path == "models/x"


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("consistency.pool", "judges", '"judges", but the suite vbench has null'),
        ("consistency.on_failure", "neutral", '"neutral", but the suite vbench has "fail"'),
        ("consistency.antialias", True, "true, but the suite vbench has false"),
        ("clipscore.weight", 2.0, "2.0, but the suite vbench has 1.0"),
    ],
)
def test_what_the_protocol_says_is_not_said_otherwise_in_vain(run, key, value, told):
    with pytest.raises(UserError) as error:
        judged(run, ["background_consistency"], **{f"rewards.{key}": value})
    assert f"rewards.{key} is {told} there; leave it out, or judge by" in str(error.value)
    same = judged(run, ["background_consistency"], **{"rewards.consistency.antialias": False})
    assert same.rewards["consistency"].antialias is False


def test_the_style_is_compared_as_published(run):
    (clip,) = judged(run, ["appearance_style"]).rewards.values()
    assert (clip.type, clip.counts, clip.antialias, clip.frame_stride) == (
        "clipscore", "cosine", True, 1,
    )  # fmt: skip
    assert clip.path == "openai/clip-vit-base-patch32"


def test_a_head_is_wanted_where_something_is_judged_by_it(run):
    assert list(judged(run, ["temporal_flickering"]).rewards) == ["temporal_flickering"]
    with pytest.raises(UserError, match=r"the suite vbench: rewards\.aesthetic\.head: a value is"):
        judged(run, ["aesthetic_quality", "overall_consistency"])
