"""What plans take of money and energy: by hand, against all fleets, and on two kinds of cards."""

from dataclasses import replace
from functools import cache
from math import inf

import numpy as np
import pytest

from deployments.overrides import config_of
from deployments.shipped import find_cluster
from digen_core.control.costs import Costs, DeviceCosts, Linear
from digen_core.control.protocol import Device
from digen_core.errors import UserError
from digen_core.planning.clusters.cluster import Cluster
from digen_core.planning.job import BOTH, Job
from digen_core.planning.planner import JobPlan, Leeway, plan_job
from digen_core.planning.search import Choice, Fixed, Plan
from digen_core.planning.spending.fleets import MAX_FLEETS, Fleets
from digen_core.planning.spending.frontier import frontier, undominated
from digen_core.planning.spending.rates import Rate, Spending, check_rates
from digen_core.sim.least_time import Group, Work, least_seconds
from digen_core.sim.report import SimulationReport
from support.planning import config

LAYOUTS = ("tsp", "elastic", "colocated-strong")
SLOW = {"step": {"fixed": 0.2, "per_item": 0.3}, "pack": {"fixed": 1.0, "per_item": 2.0}}
FAST = {"step": {"fixed": 0.2, "per_item": 0.25}, "pack": {"fixed": 0.2, "per_item": 0.3}}


def cluster(**tree) -> Cluster:
    """Return cheap cards, which train slowly, and dear ones."""
    groups = [
        {"kind": "cheap", "count": 4, "price_per_hour": 1.0, "watts": 400, "costs": SLOW},
        {"kind": "dear", "count": 2, "price_per_hour": 3.0, "watts": 700, "costs": FAST},
    ]
    return Cluster.model_validate({"devices": groups, "optimizer_step": 0.5, "push": 0.5} | tree)


def job_of(own: Cluster) -> Job:
    return Job.of(config(), own.fleet, own.costs())


def counts_of(plan: JobPlan) -> tuple[int, ...]:
    return tuple(sum(own.kind == kind for own in plan.job.fleet) for kind in ("cheap", "dear"))


@cache
def every_plan() -> dict[tuple[int, ...], list[JobPlan]]:
    """Return the plans of all fleets, each searched for in full."""
    job = job_of(cluster())
    fleets = Fleets.of(job, [job], Spending.of(cluster(), "money"))
    return {own: plan_job(fleets.job(own), Leeway(LAYOUTS)) for own in fleets.every()}


def report_of(seconds: float, busy: dict[str, float], crossed=None) -> SimulationReport:
    return SimulationReport(seconds, (), (0.0, seconds), busy, {}, 0, 0.0, crossed or {}, [])


LINKED = {
    "devices": [
        {"kind": "a", "count": 2, "site": "x", "price_per_hour": 3.6, "watts": 100},
        {"kind": "b", "count": 4, "gang": 2, "site": "y", "price_per_hour": 7.2, "watts": 300}
        | {"idle_watts": 90},
    ],
    "reward_devices": [
        {"kind": "c", "count": 2, "pool": "judges", "price_per_hour": 1.8, "watts": 50}
    ],
    "links": [{"between": ["x", "y"], "gbit_per_second": 1, "price_per_gb": 0.02}],
    "reference": FAST,
    "reward": 0.5,
}


def test_money_and_energy_by_hand():
    own = Cluster.model_validate(LINKED)
    job = Job.of(config(), own.of_devices({"a-0", "b-1"}).fleet, own.costs())
    report = report_of(20.0, {"a-0": 0.5, "b-1": 0.25}, {frozenset("xy"): 5e9})
    plan = JobPlan(job, Plan(Choice("tsp", 1), 20.0, report))
    # a-0 0.001 a second, both members of b-1 0.004, both judges 0.001; 5 GB cross.
    assert Spending.of(own, "money").of_plan(plan) == pytest.approx(20 * 0.006 + 0.1)
    # Half of 20 s at 100 W and half at 15 W; 2 x 300 W for a quarter, 2 x 90 W for the rest; 16
    # samples of 0.5 s on one server: 8 of 20 s at 100 W, the others at 15 W.
    joules = 10 * 115 + 5 * 600 + 15 * 180 + 8 * 100 + 12 * 15
    assert Spending.of(own, "energy").of_plan(plan) == pytest.approx(joules)


def test_devices_that_a_plan_leaves_out_take_nothing():
    own = Spending.of(cluster(), "money")
    part, whole = ({name: 1.0 for name in names} for names in (["cheap-0"], own.devices))
    job = job_of(cluster())
    assert own.of_report(job, report_of(3600.0, part)) == pytest.approx(1.0)
    assert own.of_report(job, report_of(3600.0, whole)) == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("spent", "change", "message"),
    [
        ("money", {"price_per_hour": None}, "does not say the price_per_hour of kind dear"),
        ("energy", {"watts": None}, "does not say the watts of kind dear"),
    ],
)
def test_what_devices_take_has_to_be_said(spent, change, message):
    first, second = cluster().model_dump(exclude_unset=True)["devices"]
    second = {key: value for key, value in second.items() if key not in change}
    with pytest.raises(UserError, match=message):
        check_rates(cluster(devices=[first, second]), spent)
    check_rates(cluster(), spent)


@pytest.mark.parametrize(("spent", "key"), [("money", "price_per_hour"), ("energy", "watts")])
def test_some_may_be_free_but_not_all(spent, key):
    first, second = cluster().model_dump(exclude_unset=True)["devices"]
    check_rates(cluster(devices=[first | {key: 0}, second]), spent)
    with pytest.raises(UserError, match=f"{key} 0, so all plans take the same {spent}"):
        check_rates(cluster(devices=[first | {key: 0}, second | {key: 0}]), spent)


@pytest.mark.parametrize("seed", range(20))
def test_the_floor_of_the_seconds_is_that_of_the_linear_program(seed):
    random = np.random.default_rng(seed)
    kinds = [f"k{number}" for number in range(1 + seed % 3)]
    costs = {
        kind: DeviceCosts(
            step=Linear(per_item=float(random.uniform(0.1, 1))),
            pack=Linear(per_item=float(random.uniform(0.1, 2))),
        )
        for kind in kinds
    }
    counts = [int(number) for number in random.integers(1, 5, len(kinds))]
    counts[0] += 1
    fleet = tuple(
        Device(f"{kind}-{n}", BOTH, kind)
        for kind, count in zip(kinds, counts, strict=True)
        for n in range(count)
    )
    job = Job.of(config(), fleet, Costs(kinds=costs))
    spending = Spending({own.name: Rate(1.0, 1.0) for own in fleet}, Rate(0.0, 0.0), {})
    floors = Fleets.of(job, [job], spending).floors([tuple(counts)])
    num_pairs = 16 * job.trained_steps
    groups = [
        Group(count, costs[kind].generation(job.workload), 0.0, costs[kind].pack.per_item)
        for kind, count in zip(kinds, counts, strict=True)
    ]
    expected = least_seconds(groups, Work(1.0, num_pairs, pack_size=job.workload.pack_size))
    assert floors[0] == pytest.approx([expected, expected * len(fleet)])


def test_a_fleet_that_lacks_a_role_has_no_floor():
    fleet = (Device("g", frozenset({"rollout"}), "x"), Device("t", frozenset({"trainer"}), "x"))
    job = Job.of(config(), fleet * 1, Costs(kinds={"x": DeviceCosts.model_validate(FAST)}))
    spending = Spending({"g": Rate(1.0, 1.0), "t": Rate(1.0, 1.0)}, Rate(0.0, 0.0), {})
    floors = Fleets.of(job, [job], spending).floors([(1, 1), (1, 0), (0, 1)])[:, 0]
    assert floors[0] < inf
    assert list(floors[1:]) == [inf, inf]


def test_a_fleet_of_free_devices_that_lacks_a_role_has_no_floor_either():
    first, second = cluster().model_dump(exclude_unset=True)["devices"]
    free = first | {"price_per_hour": 0, "roles": "rollout"}
    own = cluster(devices=[free, second | {"roles": "trainer"}])
    job = job_of(own)
    floors = Fleets.of(job, [job], Spending.of(own, "money")).floors([(2, 0), (1, 1)])
    assert list(np.isfinite(floors[:, 0])) == [False, True]
    assert floors[1, 1] == pytest.approx(floors[1, 0] * 3 / 3600)


def dealt(job: Job, **changes) -> Job:
    """Return a job whose samples of all groups are dealt to two updates."""
    changes = {"num_updates": 2, "dealt_by": "samples", **changes}
    return replace(job, workload=replace(job.workload, **changes))


def test_what_is_trained_after_all_is_generated_by_hand():
    fleet = (Device("g", frozenset({"rollout"}), "x"), Device("t", frozenset({"trainer"}), "x"))
    costs = Costs(kinds={"x": DeviceCosts(step=Linear(per_item=1.0), pack=Linear(per_item=1.0))})
    spending = Spending({"g": Rate(1.0, 1.0), "t": Rate(1.0, 1.0)}, Rate(0.0, 0.0), {})

    def floor(share=0.0, **changes):
        job = dealt(Job.of(config(), fleet, costs), trained_per_group=3, **changes)
        fleets = Fleets.of(job, [job], spending, share)
        parts = [
            replace(own, generation=20.0) if own.generation < inf else replace(own, training=10.0)
            for own in fleets.parts
        ]
        return replace(fleets, parts=parts).floors([(1, 1)])[0, 0]

    assert floor(num_updates=1) == floor(dealt_by="groups") == 20.0
    # The first update has a sample of 7 of 8 groups of three, and half of the pairs.
    assert floor() == pytest.approx(7 / 8 * 20 + 10 / 2)
    assert floor(advantages_need_all_groups=True) == 20.0 + 10.0
    assert floor(0.5, advantages_need_all_groups=True) == 20.0, "half of it was there before"


@pytest.mark.parametrize("counts", [(1, 1), (2, 1), (4, 2)])
def test_no_plan_is_below_its_floor_where_samples_are_dealt(counts):
    job, spending = dealt(job_of(cluster())), Spending.of(cluster(), "money")
    fleets = Fleets.of(job, [job], spending)
    (seconds, least), *_ = fleets.floors([counts])
    (before, _), *_ = replace(fleets, first=(0.0, 1.0)).floors([counts])
    assert seconds >= before
    for plan in plan_job(fleets.job(counts), Leeway(LAYOUTS)):
        assert plan.seconds >= seconds
        assert spending.of_plan(plan) >= 0.999 * least


@pytest.mark.ci
@pytest.mark.parametrize("spent", ["money", "energy"])
def test_no_plan_is_below_its_floor(spent):
    job, spending = job_of(cluster()), Spending.of(cluster(), spent)
    fleets = Fleets.of(job, [job], spending)
    for counts, plans in every_plan().items():
        (seconds, least), *_ = fleets.floors([counts])
        assert all(plan.seconds >= seconds for plan in plans)
        assert all(spending.of_plan(plan) >= 0.999 * least for plan in plans)


def test_fleets_by_hand():
    job = job_of(cluster())
    fleets = Fleets.of(job, [job], Spending.of(cluster(), "money"))
    every = {(a, b) for a in range(5) for b in range(3) if a + b > 1}
    assert set(fleets.every()) == every
    assert [own.name for own in fleets.job((2, 1)).fleet] == ["cheap-0", "cheap-1", "dear-0"]
    assert set(fleets.neighbours((1, 1))) == {(2, 1), (1, 2), (2, 0), (0, 2)}
    assert set(fleets.neighbours((4, 2))) == {(3, 2), (4, 1)}


def test_of_very_many_fleets_some_are_looked_at():
    first, second = cluster().model_dump(exclude_unset=True)["devices"]
    own = cluster(devices=[first | {"count": 300}, second | {"count": 200}])
    job = job_of(own)
    every = Fleets.of(job, [job], Spending.of(own, "money")).every()
    assert 100 < len(every) <= MAX_FLEETS
    assert {(300, 200), (300, 0), (0, 200)} <= set(every)


def test_undominated_by_hand():
    points = [(3.0, 1.0), (1.0, 5.0), (2.0, 5.0), (2.5, 2.0), (1.0, 6.0), (4.0, 1.0)]
    assert undominated(points) == [1, 3, 0]


@pytest.mark.ci_but_one
@pytest.mark.parametrize("spent", ["money", "energy"])
@pytest.mark.parametrize("within", [0.03, 0.25, inf])
def test_the_best_is_about_the_best_of_all_fleets(spent, within):
    job, spending, leeway = job_of(cluster()), Spending.of(cluster(), spent), Leeway(LAYOUTS)
    fastest = plan_job(job, leeway)
    limit = (1 + within) * fastest[0].seconds
    found = frontier(job, fastest, leeway, spending, limit)
    assert all(plan.seconds <= limit for plan in found)
    points = [(plan.seconds, spending.of_plan(plan)) for plan in found]
    assert [own[0] for own in points] == sorted(own[0] for own in points)
    assert [own[1] for own in points] == sorted((own[1] for own in points), reverse=True)
    least = min(
        spending.of_plan(plan)
        for plans in every_plan().values()
        for plan in plans
        if plan.seconds <= limit
    )
    assert points[-1][1] <= 1.08 * least


def test_who_costs_the_same_money_twice_is_left_out():
    """A dear card that is as fast as a cheap one is no part of the cheapest plan."""
    cards = {"count": 3, "watts": 400, "costs": FAST}
    own = cluster(
        devices=[
            {"kind": "cheap", "price_per_hour": 1.0} | cards,
            {"kind": "dear", "price_per_hour": 9.0} | cards,
        ]
    )
    job, spending = job_of(own), Spending.of(own, "money")
    best = frontier(job, plan_job(job, Leeway(LAYOUTS)), Leeway(LAYOUTS), spending)[-1]
    assert counts_of(best)[1] == 0


def test_free_devices_are_all_used_where_that_is_faster():
    first, second = cluster().model_dump(exclude_unset=True)["devices"]
    own = cluster(devices=[first | {"price_per_hour": 0}, second])
    job, spending = job_of(own), Spending.of(own, "money")
    found = frontier(job, plan_job(job, Leeway(LAYOUTS)), Leeway(LAYOUTS), spending)
    assert spending.of_plan(found[-1]) == 0.0
    assert counts_of(found[-1])[1] == 0
    assert counts_of(found[-1])[0] > 2


def test_of_two_devices_none_is_left_out():
    first, second = cluster().model_dump(exclude_unset=True)["devices"]
    own = cluster(devices=[first | {"count": 1}, second | {"count": 1}])
    job, spending = job_of(own), Spending.of(own, "money")
    fastest = plan_job(job, Leeway(LAYOUTS))
    found = frontier(job, fastest, Leeway(LAYOUTS), spending)
    assert {counts_of(plan) for plan in found} == {(1, 1)}
    assert found[-1].seconds == fastest[0].seconds


def test_what_is_fixed_stays_where_devices_are_left_out():
    job, spending = job_of(cluster()), Spending.of(cluster(), "money")
    leeway = Leeway(("elastic",), Fixed(helpers=0, assistants=2))
    found = frontier(job, plan_job(job, leeway), leeway, spending)
    assert {(own.plan.choice.helpers, own.plan.choice.assistants) for own in found} == {(0, 2)}


@pytest.mark.nightly
def test_two_kinds_of_cards_make_more_samples_for_the_money_than_one():
    """H20 that generate and H800 that train against the best that either does alone.

    Groups are dealt to updates: of samples of all groups most updates begin after generation. There
    are fewer than the recipe has, which would take a minute.
    """
    both = find_cluster("24x-h20-h800")
    settings = ["--train.dealt-by", "groups", "--rollout.prompts-per-iteration", "8"]
    recipe = config_of(["mix_grpo_flux", *settings], "the test")
    leeway = Leeway(LAYOUTS, search_sizes=True)
    least = {}
    for kinds in ({"h20", "h800"}, {"h20"}, {"h800"}):
        # Of few: what is the cheapest has few, and each of more is planned for, too.
        groups = tuple(
            group.model_copy(update={"count": 4 if group.kind == "h20" else 2})
            for group in both.devices
            if group.kind in kinds
        )
        own = both.model_copy(update={"devices": groups})
        job, spending = Job.of(recipe, own.fleet, own.costs()), Spending.of(own, "money")
        best = frontier(job, plan_job(job, leeway), leeway, spending)[-1]
        least["+".join(sorted(kinds))] = spending.of_plan(best)
        assert {device.kind for device in best.job.fleet} == kinds
    assert min(least["h20"], least["h800"]) >= 1.2 * least["h20+h800"]
