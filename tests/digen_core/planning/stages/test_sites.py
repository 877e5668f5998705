"""What several sites can do that each hold a model in stages: in which cluster each way is best."""

from collections.abc import Sequence
from math import inf

import pytest

from digen_core.control.layout import LAYOUTS
from digen_core.planning.cluster_plan import ClusterPlan
from digen_core.planning.sizes import Sizes
from digen_core.planning.stages.candidates import staged_candidates
from digen_core.planning.stages.codecs import CODECS, NONE
from digen_core.planning.stages.gangs import Maker
from support.paths import ROOT
from support.staged import (
    CHAIN,
    CONTEXT,
    HEAVY,
    HERE,
    JOB,
    LIGHT,
    SIZES,
    THERE,
    WEAK,
    WHOLE_VERSIONS,
    cluster_of,
    cluster_with,
    memory_of,
    plans_of,
)

PAGE = ROOT / "docs" / "planning.md"
SLOW = {"kind": "wide", "count": 1, "tflops": 50, "capacity": 6 + CONTEXT}
FAST = {"kind": "quick", "count": 1, "tflops": 200, "capacity": 3 + CONTEXT}
PAIRS = [
    own | {"kind": f"{own['kind']}-{site}", "site": site}
    for site in ("here", "there")
    for own in (SLOW, FAST)
]


def sites_in(ranks: Sequence[str]) -> set[str]:
    return {name.partition("@")[2] for name in ranks}


def way_of(plan: ClusterPlan) -> str:
    """Say what the sites do."""
    choice = plan.own.plan.choice
    dealt = plan.own.job.cluster(choice.num_rollout)
    sites = {
        role: {own.site for own in dealt if role in own.roles} for role in ("rollout", "trainer")
    }
    if LAYOUTS[choice.layout].rollouts_train:
        sites["trainer"] |= sites["rollout"]
    if any(len(sites_in(plan.candidate.ranks[own.name])) > 1 for own in dealt):
        return "one gang over all"
    if len(sites["rollout"] | sites["trainer"]) == 1:
        return "one alone"
    return "one trains" if len(sites["trainer"]) == 1 else "replicas"


@pytest.mark.ci_but_one
@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "way", "gbit", "groups", "sizes"),
    [
        ("each trains", "replicas", 1.0, (HERE, THERE), LIGHT),
        ("one trains", "one trains", 1.0, (HERE, THERE), HEAVY),
        ("one alone", "one alone", 0.01, (HERE, THERE), WHOLE_VERSIONS),
        ("one gang over all", "one gang over all", 10.0, PAIRS, LIGHT),
        ("each in its own number", "replicas", 1.0, (HERE, WEAK), LIGHT),
    ],
)
def test_each_way_is_the_best_in_some_cluster(row, way, gbit, groups, sizes: Sizes):
    """As the page about planning says, with its seconds."""
    best, *others = plans_of(cluster_with(gbit, *groups), sizes)
    assert way_of(best) == way
    assert bool(best.candidate.config.parallel.stages_by_size) == row.startswith("each in its own")
    (line,) = (own for own in PAGE.read_text().splitlines() if own.startswith(f"| {row}"))
    assert line.split(" | ")[2] == f"{best.own.seconds:.1f}"
    stages = best.candidate.config.parallel
    others = [plan for plan in others if plan.candidate.config.parallel != stages] or others
    seconds = [plan.own.seconds for plan in others if way_of(plan) != way]
    if row == "each trains":  # with any number of stages: nothing else is among the best
        seconds = [plans_of(cluster_of(HERE, network=1.0), sizes)[0].own.seconds]
    assert best.own.seconds < 0.95 * min(seconds, default=inf)


def made(cluster, config=JOB, codecs=(NONE,)):
    return Maker(config, cluster, CHAIN, SIZES, codecs, 0).all()


def test_each_site_may_have_its_own_number_of_stages():
    """The large cards hold 5 blocks and want two stages, the weak ones one each and take eight."""
    cluster = cluster_with(1.0, HERE, WEAK)
    best, *others = made(cluster, codecs=CODECS)
    assert best.config.parallel.stages_by_size == ((4, 4), (1,) * 8)
    assert best.config.parallel.stages == 1
    assert best.config.model.cuts == (), "coded cuts would have to be those of both"
    gangs = {group.site: (group.num_devices, group.members) for group in best.devices.devices}
    assert gangs == {"here": (2, 2), "there": (1, 8)}
    assert best.left_out == {"weak": 1}
    assert best.ranks["8-stages-there-0"] == ("weak@there",) * 8
    alone = {own.devices.devices[0].site: own.speed for own in others[::-1] if own.left_out}
    assert best.speed == pytest.approx(alone["here"] + alone["there"], rel=0.01)
    assert all(own.config.parallel.stages_by_size == () for own in others)


def test_a_number_of_stages_that_a_config_says_is_that_of_all_sites():
    parallel = JOB.parallel.model_copy(update={"stages": 8})
    config = JOB.model_copy(update={"parallel": parallel})
    found = made(cluster_with(1.0, HERE, WEAK), config)
    assert {own.config.parallel.stages for own in found} == {8}


def test_one_gang_over_all_sites_is_among_what_is_made_where_each_holds_the_model():
    (across,) = (own for own in made(cluster_with(10.0, *PAIRS)) if own.crosses_sites)
    assert sorted(across.config.parallel.stage_blocks) == [1, 1, 3, 3], "the fast ones have three"
    assert sorted(across.ranks["4-stages-0"]) == [
        "quick-here@here", "quick-there@there", "wide-here@here", "wide-there@there",
    ]  # fmt: skip
    near = [own for own in made(cluster_with(0.001, *PAIRS)) if own.crosses_sites]
    assert near == [], "a link of 1 Mb/s is crossed by no cut where a site holds the model"


def test_candidates_have_the_gang_over_all_beside_those_with_the_most_pairs():
    cluster = cluster_with(0.5, HERE, THERE)
    found = staged_candidates(JOB, cluster, CHAIN, LIGHT, (NONE,), 0, memory_of)
    sites = [sites_in(next(iter(own.ranks.values()))) for own in found]
    every = made(cluster)
    assert sum(len(own) > 1 for own in sites) == sum(own.crosses_sites for own in every)
