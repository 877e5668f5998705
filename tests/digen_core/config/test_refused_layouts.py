"""Who cannot train a group before the others are scored is refused, without running anything."""

from itertools import cycle, product

import pytest
from pydantic import ValidationError

from deployments.overrides import config_of
from digen_core.algorithms import ALGORITHMS
from digen_core.config.combinations import ALONE, COLOCATED, WITH_BARRIER
from digen_core.config.run import RunConfig
from digen_core.control.layout import LAYOUTS
from digen_core.errors import ConfigError
from digen_core.planning.job import layouts_for

TYPES = tuple(ALGORITHMS)
SCALED = tuple(name for name in TYPES if name not in ("ddpo", "dpo"))
PIPELINED = tuple(name for name, layout in LAYOUTS.items() if layout.pipelined)
SCALES = ("batch", "max_group")
NEED_ALL_REWARDS = [
    *({"type": name, "advantage_scale": scale} for name, scale in product(SCALED, SCALES)),
    {"type": "ddpo"},
    {"type": "longcat"},  # its own scale is the largest group's
]


def each_with_each(algorithms, layouts):
    """Every algorithm once and every layout at least once, in place of all their pairs."""
    first = list(zip(algorithms, cycle(layouts), strict=False))
    seen = {layout for _, layout in first}
    return first + [(algorithms[0], layout) for layout in layouts if layout not in seen]


def config(layout, **algorithm):
    settings = {"window_size": 2} if algorithm.get("type") == "mix_grpo" else {}
    transition = "longcat_sde" if algorithm.get("type") == "longcat" else "flow_sde"
    return RunConfig.model_validate(
        {
            "algorithm": {**algorithm, **settings},
            "rollout": {"transition": transition},
            "schedule": {"layout": layout},
        }
    )


def test_the_table_of_layouts_is_whole():
    assert set(WITH_BARRIER) == set(LAYOUTS) - set(PIPELINED)
    assert set(COLOCATED) == {name for name, layout in LAYOUTS.items() if layout.colocated}
    assert set(ALONE) - set(COLOCATED) == {n for n, own in LAYOUTS.items() if own.rollouts_train}


@pytest.mark.parametrize("rollout_workers", [1, 3])
@pytest.mark.parametrize("layout", [*LAYOUTS, "auto"])
def test_no_workers_that_only_train_are_refused_where_some_have_to(layout, rollout_workers):
    tree = {
        "cluster": {"rollout_workers": rollout_workers, "trainer_workers": 0},
        "schedule": {"layout": layout},
    }
    if layout in (*COLOCATED, "auto") or (layout in ALONE and rollout_workers == 1):
        RunConfig.model_validate(tree)
        return
    with pytest.raises(ValidationError, match=r"cluster\.trainer_workers is 0") as error:
        RunConfig.model_validate(tree)
    for offered in COLOCATED if rollout_workers > 1 else ALONE:
        assert offered in str(error.value)


@pytest.mark.parametrize(("algorithm", "layout"), each_with_each(NEED_ALL_REWARDS, PIPELINED))
def test_layouts_that_train_groups_early_are_refused(algorithm, layout):
    with pytest.raises(ValidationError) as error:
        config(layout, **algorithm)
    (found,) = error.value.errors()
    message = str(found["msg"])
    assert f"schedule.layout {layout} trains groups before that" in message
    assert "layout colocated, colocated-strong or disaggregated." in message
    assert "\n" not in message
    what, remedy = "ddpo needs", "use layout"
    if algorithm["type"] != "ddpo":
        what = f"advantage_scale {algorithm.get('advantage_scale', 'max_group')!r} needs"
        remedy = "use advantage_scale 'group' or layout"
    assert what in message
    assert remedy in message


@pytest.mark.parametrize(("algorithm", "layout"), each_with_each(NEED_ALL_REWARDS, WITH_BARRIER))
def test_layouts_with_a_barrier_take_them(algorithm, layout):
    assert config(layout, **algorithm).algorithm.needs_all_rewards


def test_auto_chooses_among_layouts_with_a_barrier():
    for algorithm in NEED_ALL_REWARDS:
        assert layouts_for(config("auto", **algorithm)) == list(WITH_BARRIER), algorithm


@pytest.mark.parametrize(("name", "layout"), each_with_each(SCALED, list(LAYOUTS)))
@pytest.mark.parametrize("scale", ["group", "none"])
def test_every_layout_takes_the_others(name, scale, layout):
    found = config(layout, type=name, advantage_scale=scale)
    assert not found.algorithm.needs_all_rewards
    assert layout in layouts_for(found) or layout == "tcss"


def test_the_command_line_says_it_in_one_line():
    with pytest.raises(ConfigError) as error:
        config_of(["--algorithm.type", "ddpo", "--schedule.layout", "tsp"])
    assert str(error.value).endswith(
        "algorithm: ddpo needs all rewards of the iteration, but schedule.layout tsp trains groups "
        "before that; use layout colocated, colocated-strong or disaggregated"
    )
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("settings", [{"type": "ddpo"}, {"advantage_scale": "batch"}])
def test_auto_does_not_take_a_share_of_stale_groups_that_no_layout_can_have(settings):
    schedule = {"layout": "auto", "max_stale_share": 0.5}
    with pytest.raises(ValidationError, match=r"max_stale_share is 0\.5, but .* needs all rewards"):
        RunConfig.model_validate({"algorithm": settings, "schedule": schedule})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mix", "advantages"),
        ("advantage_scale", "none"),
        ("advantage_ddof", 1),
        ("trimmed_ratio", 0.5),
    ],
)
def test_ddpo_refuses_what_it_would_not_use(name, value):
    message = f"algorithm.{name} {value!r} is not for ddpo, which has statistics of its own"
    with pytest.raises(ValidationError, match=message):
        config("disaggregated", type="ddpo", **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mix", "advantages"),
        ("advantage_scale", "batch"),
        ("advantage_eps", 1e-8),
        ("advantage_ddof", 1),
        ("trimmed_ratio", 0.5),
        ("max_advantage", 3.0),
    ],
)
def test_dpo_refuses_what_it_would_not_use(name, value):
    message = f"algorithm.{name} {value!r} is not for dpo, which asks only who of a group"
    with pytest.raises(ValidationError, match=message):
        config("disaggregated", type="dpo", **{name: value})


@pytest.mark.parametrize(
    ("schedule", "algorithm", "message"),
    [
        ({"layout": "elastic"}, {}, r"no group may be stale; .* \(it is 0 in layout elastic\)"),
        ({"layout": "tsp"}, {}, r"no group may be stale"),
        ({"layout": "tcss", "max_stale_share": 0.0}, {}, r"no group may be stale"),
        ({"layout": "tcss"}, {"correction": "truncate"}, "takes stale samples for fresh ones"),
        ({"layout": "tcss"}, {"type": "awm"}, "awm has no ratio to the version that sampled"),
    ],
)
def test_a_bound_on_clipped_stale_pairs_needs_some(schedule, algorithm, message):
    tree = {"schedule": {**schedule, "max_stale_clipped": 0.3}, "algorithm": algorithm}
    with pytest.raises(ValidationError, match=rf"max_stale_clipped is 0\.3, but .*{message}"):
        RunConfig.model_validate(tree)


def test_adaptive_staleness_in_every_layout_that_may_be_stale():
    for layout in ("tcss", "elastic", "auto"):
        schedule = {"layout": layout, "max_stale_share": 0.5, "max_stale_clipped": 0.0}
        assert RunConfig.model_validate({"schedule": schedule}).schedule.max_stale_clipped == 0


def test_a_reference_policy_that_nobody_compares_with_is_not_asked():
    tree = {"schedule": {"reference": "generation"}, "algorithm": {"kl_coefficient": 0.0}}
    with pytest.raises(ValidationError, match=r"'generation', but algorithm.kl_coefficient is 0"):
        RunConfig.model_validate(tree)
    tree["algorithm"]["kl_coefficient"] = 0.1
    assert RunConfig.model_validate(tree).generates_reference
