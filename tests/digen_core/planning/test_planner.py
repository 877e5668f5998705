"""Plans: against all choices of a small job, and never slower than colocated-strong."""

from dataclasses import replace
from itertools import product
from random import Random

import pytest

from deployments.shipped import SCENARIOS
from digen_core.control.costs import Costs, DeviceCosts, Linear, Link, Sent
from digen_core.control.layout import LAYOUTS
from digen_core.control.protocol import Device
from digen_core.control.schedule import Workload
from digen_core.errors import UserError
from digen_core.planning import planner
from digen_core.planning import search as search_module
from digen_core.planning.job import BOTH, Job, layouts_for
from digen_core.planning.planner import Leeway, plan_job, sizes, with_sizes
from digen_core.planning.search import Choice, Fixed, simulate_choice
from digen_core.sim.closed_forms import Terms
from digen_core.sim.scenario import load_scenario
from support.planning import FAST, config, free_devices, job

pytestmark = pytest.mark.slow

ON_POLICY = [name for name, layout in LAYOUTS.items() if not layout.stale]
SHIPPED = sorted(SCENARIOS.glob("*.toml"))


def job_of(scenario) -> Job:
    """Return a job of the scenario's recipe on equal devices that may all do both."""
    costs = scenario.costs(None).model_copy(
        update={
            "switch_to_rollout": scenario.helper_in,
            "switch_to_trainer": scenario.helper_out,
        }
    )
    return Job(scenario.workload, scenario.trained_steps, scenario.cluster(None), costs)


def choices(own: Job):
    yield Choice("colocated", None)
    yield Choice("colocated-strong", None)
    for split in own.splits:
        for layout in ("disaggregated", "gap", "tsp"):
            yield Choice(layout, split)
        for helpers, assistants in product(range(own.devices - split + 1), range(split + 1)):
            if not assistants:
                yield Choice("tag", split, helpers)
            yield Choice("elastic", split, helpers, assistants)


@pytest.mark.ci
@pytest.mark.parametrize("switch", [pytest.param(0.0, marks=pytest.mark.nightly), 1.0])
def test_the_plan_is_the_best_of_all_choices(switch):
    own = job(switch_to_rollout=switch, switch_to_trainer=switch)
    tried = {
        (size, choice): simulate_choice(with_sizes(own, *size), choice, num_iterations=2).seconds
        for size in sizes(own)
        for choice in choices(own)
    }
    best = plan_job(own, Leeway(ON_POLICY, search_sizes=True))[0]
    assert best.seconds <= 1.02 * min(tried.values())


def test_batches_count_in_the_ranking():
    """What is fixed of a step comes once for a batch."""
    own = job()
    batched = replace(
        own, workload=replace(own.workload, batch_size=4 * own.workload.fragment_size)
    )
    for layout in ("tsp", "elastic"):
        assert planner.estimate(batched, layout, 0.0)[0] < planner.estimate(own, layout, 0.0)[0]
    few = replace(own, workload=replace(own.workload, batch_size=2))
    assert max(planner.fragment_sizes(few, own.workload.group_size)) == 2, "a batch holds one"


@pytest.mark.parametrize(
    ("switch", "trained_steps", "pack_size", "share"), [(0.0, 1, 2, 0.5), (0.2, 2, 1, 1.0)]
)
def test_stale_groups_are_searched_though_they_seem_slower(
    switch, trained_steps, pack_size, share, monkeypatch
):
    """They are judged without help: a plan was up to a tenth slower than one with them."""
    own = job(switch_to_trainer=switch)
    work = replace(own.workload, pack_size=pack_size)
    own, leeway = replace(own, trained_steps=trained_steps, workload=work), Leeway(list(LAYOUTS))
    stale = replace(leeway, max_stale_share=share)
    best = plan_job(own, stale)[0]
    monkeypatch.setattr(planner, "NUM_SEARCHED", len(LAYOUTS))
    assert best.layout == "tcss"
    assert best.seconds == plan_job(own, stale)[0].seconds < plan_job(own, leeway)[0].seconds


NIGHTLY = ("A2", "B", "B2", "C", "E", "G", "H")  # each change plans for three of them


@pytest.mark.ci_but_one
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.nightly] * (path.stem in NIGHTLY))
        for path in SHIPPED
    ],
)
def test_no_plan_is_slower_than_colocated_strong(path):
    own = job_of(load_scenario(path))
    strong = simulate_choice(own, Choice("colocated-strong", None), num_iterations=4).seconds
    plans = plan_job(own, Leeway(ON_POLICY))
    assert plans[0].seconds <= strong
    assert "colocated-strong" in {plan.layout for plan in plans}
    assert [plan.seconds for plan in plans] == sorted(plan.seconds for plan in plans)


@pytest.mark.parametrize("dealt_by", ["groups", "samples"])
def test_plans_know_how_many_updates_an_iteration_makes(dealt_by):
    """A step of the optimizer takes 4 s: two of them cost a plan as much as a simulation."""
    known = Costs(kinds={"default": FAST}, optimizer_step=4.0, push=0.5)
    once, twice = (
        Job.of(
            config(train={"updates_per_iteration": number, "dealt_by": dealt_by, "pack_size": 4}),
            free_devices(4),
            known,
        )
        for number in (1, 2)
    )
    leeway = Leeway(("disaggregated", "gap", "elastic"))
    plans = {own.layout: own for own in plan_job(twice, leeway)}
    before = {own.layout: own.seconds for own in plan_job(once, leeway)}
    for layout, own in plans.items():
        assert own.seconds > before[layout] + 2.9
        simulated = simulate_choice(own.job, own.plan.choice, num_iterations=4).seconds
        assert own.seconds == pytest.approx(simulated)
    barrier = min(
        simulate_choice(twice, Choice("disaggregated", split), num_iterations=4).seconds
        for split in twice.splits
    )
    assert [own.layout for own in plans.values()] == ["elastic", "gap"], "the two most promising"
    assert plans["elastic"].seconds < plans["gap"].seconds < barrier


def drawn_jobs(number: int):
    """Yield small jobs whose devices, costs and sizes are drawn, and what their plans may have."""
    for seed in range(number):
        draw = Random(seed)
        costs = DeviceCosts(
            step=Linear(fixed=draw.choice((0.0, 0.1)), per_item=draw.uniform(0.05, 0.3)),
            decode=Linear(per_item=0.1),
            pack=Linear(fixed=draw.choice((0.0, 0.5)), per_item=draw.uniform(0.1, 0.5)),
        )
        own = job(draw.randint(2, 5), costs, switch_to_rollout=draw.choice((0.0, 1.0)))
        share = draw.choice((0.0, 0.5))
        layouts = list(LAYOUTS) if share else ON_POLICY
        yield own, Leeway(layouts, max_stale_share=share, max_staleness=2, search_sizes=True)


@pytest.mark.ci
def test_nothing_is_simulated_twice_and_plans_are_those_of_simulating_all(monkeypatch):
    simulate, asked = search_module.simulate_choice, list[str]()

    def noted(*problem_and_choice, **settings):
        asked.append(repr((*problem_and_choice, settings)))
        return simulate(*problem_and_choice, **settings)

    monkeypatch.setattr(search_module, "simulate_choice", noted)
    monkeypatch.setattr(planner, "simulate_choice", noted)
    found, num_asked = [], 0
    for own, leeway in drawn_jobs(4):
        asked.clear()
        found.append(plan_job(own, leeway))
        assert len(asked) == len({*asked})
        num_asked += len(asked)
    asked.clear()
    monkeypatch.setattr(search_module, "_known", lambda *of: None)
    assert [plan_job(own, leeway) for own, leeway in drawn_jobs(4)] == found
    assert len(asked) > num_asked


def test_colocated_strong_wins_where_nothing_overlaps():
    # One group: nothing to train before all of it is generated, and switches are free.
    one = replace(job(2), workload=Workload(1, 2, 1, 4, 4, 2))
    leeway = Leeway(["tsp", "gap", "colocated-strong"])
    assert plan_job(one, leeway)[0].layout == "colocated-strong"


def test_what_is_fixed_stays():
    plans = plan_job(job(), Leeway(["elastic", "tag"], Fixed(2, helpers=1, assistants=2)))
    assert {plan.plan.choice for plan in plans} == {
        Choice("elastic", 2, 1, 2),
        Choice("tag", 2, 1),
    }


def test_sizes_by_hand():
    assert list(sizes(replace(job(), workload=Workload(2, 6, 3, 4, 5, 6)))) == [
        (fragment, pack) for fragment in (1, 2, 3, 6) for pack in (1, 2, 4, 5)
    ]


def test_stale_layouts_need_leave():
    assert "tcss" not in layouts_for(config())
    stale = {"layout": "elastic", "max_stale_share": 0.5}
    assert "tcss" in layouts_for(config(schedule=stale))
    assert layouts_for(config(algorithm={"advantage_scale": "batch"})) == [
        "colocated",
        "colocated-strong",
        "disaggregated",
    ]


def test_roles_limit_the_splits():
    fleet = (
        Device("g0", frozenset({"rollout"})),
        Device("t0", frozenset({"trainer"})),
        Device("b0", BOTH),
        Device("b1", BOTH),
    )
    mixed = replace(job(), fleet=fleet)
    assert list(mixed.splits) == [1, 2, 3]
    assert not mixed.can_colocate
    assert [device.name for device in mixed.cluster(2)] == ["g0", "b0", "b1", "t0"]
    assert [sorted(device.roles) for device in mixed.cluster(2)] == [
        ["rollout"], ["rollout"], ["trainer"], ["trainer"],
    ]  # fmt: skip
    assert {plan.layout for plan in plan_job(mixed, Leeway(["colocated", "tsp"]))} == {"tsp"}


def test_devices_do_what_they_are_better_at():
    slow_step = DeviceCosts(step=Linear(per_item=0.8), decode=FAST.decode, pack=FAST.pack)
    fleet = (Device("t0", BOTH, "trains"), Device("g0", BOTH, "default"))
    costs = Costs(kinds={"default": FAST, "trains": slow_step})
    both = Job.of(config(), fleet, costs)
    assert [device.name for device in both.cluster(1)] == ["g0", "t0"]


@pytest.mark.parametrize(
    ("operation", "line", "message"),
    [
        ("step", Linear(), "on kind fast a denoising step takes 0 seconds, which no plan can be"),
        ("pack", Linear(), "on kind fast a pack takes 0 seconds"),
        ("pack", Linear(per_item=1e300), r"on kind fast a pack takes 1e\+300 seconds"),
        ("decode", Linear(fixed=1e300), r"on kind fast decoding takes 1e\+300 seconds"),
    ],
)
def test_costs_that_no_plan_can_be_made_of_are_refused(operation, line, message):
    fleet = tuple(Device(f"d{n}", BOTH, "fast") for n in range(2))
    costs = Costs(kinds={"fast": FAST.model_copy(update={operation: line})})
    with pytest.raises(UserError, match=message):
        Job.of(config(), fleet, costs)


def test_nothing_is_possible():
    fleet = (Device("g0", frozenset({"rollout"})), Device("t0", frozenset({"trainer"})))
    with pytest.raises(ValueError, match="2 devices with these roles can do none of"):
        plan_job(replace(job(), fleet=fleet), Leeway(["colocated"]))
    assert free_devices(2)[0].roles == BOTH


def two_sites(name: str, version: float, links: bool = True) -> Job:
    """Return a scenario's job on 8 devices at each of two sites, with 100 Mb/s between them."""
    scenario = load_scenario(SCENARIOS / f"{name}.toml")
    link = Link(between=("a", "b"), bytes_per_second=12.5e6, latency=0.02)
    sent = Sent(version=version, transition=262e3, condition=2e6, gradient_sum=version)
    between = {"links": (link,), "sent": sent} if links else {}
    fleet = tuple(Device(f"d{n}", BOTH, site="ab"[n > 7]) for n in range(16))
    costs = scenario.costs(1).model_copy(update=between)
    return Job(scenario.workload, scenario.trained_steps, fleet, costs)


@pytest.mark.nightly
def test_two_sites_generate_and_one_trains():
    """Of a video model with adapters of 62 MB: about as fast as on one site with all devices."""
    leeway = Leeway(
        ["tcss"], max_stale_share=1.0, max_staleness=4, search_sizes=True, may_leave_out=True
    )
    apart, together = (plan_job(two_sites("F", 62e6, links), leeway)[0] for links in (True, False))
    assert apart.seconds <= 1.05 * together.seconds
    devices = apart.job.cluster(apart.plan.choice.num_rollout)
    assert {own.site for own in devices if "rollout" in own.roles} == {"a", "b"}
    assert len({own.site for own in devices if "trainer" in own.roles}) == 1


@pytest.mark.ci
def test_a_link_that_is_too_slow_leaves_a_site_out():
    own = two_sites("B", 50e9)  # all weights of an image model
    alone = replace(own, fleet=own.fleet[:8])
    layouts = ["tsp", "colocated-strong"]
    best = plan_job(own, Leeway(layouts, may_leave_out=True))[0]
    assert {device.site for device in best.job.fleet} == {"a"}
    assert best.seconds == plan_job(alone, Leeway(layouts))[0].seconds
    assert plan_job(own, Leeway(layouts))[0].seconds > 2 * best.seconds


def test_a_push_that_takes_longer_than_an_iteration_is_hidden_by_more_versions():
    own = two_sites("D", 1e9)  # 80 s over the link
    terms = Terms.of(replace(own, home="a"), 12, 1.0)
    assert [terms.staleness(most) for most in (1, 2, 9)] == [1, 2, 3]
