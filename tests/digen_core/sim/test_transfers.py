"""What crosses links between sites: arrivals worked out by hand, alone and in whole simulations."""

from dataclasses import replace

import pytest

from digen_core.control.costs import Costs, Link, Sent
from digen_core.control.protocol import (
    Device,
    Fragment,
    Generate,
    Pack,
    PairBlock,
    Reduce,
    Train,
)
from digen_core.planning.search import Choice, simulate_choice
from digen_core.records import Crossing
from digen_core.sim.clock import Clock
from digen_core.sim.links import busy_periods, link_metrics
from digen_core.sim.scenario import Scenario
from digen_core.sim.transfers import Transfers
from support.batches import alone

AB = frozenset("ab")
LINK = Link(between=("a", "b"), bytes_per_second=10.0, latency=0.25)
SENT = Sent(version=30.0, transition=1.0, condition=5.0, gradient_sum=20.0)
FRAGMENT = Fragment(0, 0, 0, 0, 2)


@pytest.fixture
def transfers():
    found = Transfers(Costs(kinds={}, links=(LINK,), sent=SENT), Clock())
    for name, site in {"here": "a", "too": "a", "far": "b", "off": "b"}.items():
        found.add_device(Device(name, frozenset({"trainer"}), site=site))
    return found


def train(device, *steps, fragment=FRAGMENT):
    return Train(Pack(0, 0, tuple(PairBlock(fragment, step, 0, 2) for step in steps)), 0, device)


def test_each_way_of_a_link_is_a_queue(transfers):
    assert transfers.version("here", "far") == 3.0 + 0.25
    assert transfers.version("too", "off") == 6.0 + 0.25  # after the first
    assert transfers.version("far", "here") == 3.0 + 0.25  # the other way
    assert transfers.version("here", "too") == 0.0


def test_a_version_crosses_as_it_was_seen_to():
    sent = SENT.model_copy(update={"delta": 3.0})
    found = Transfers(Costs(kinds={}, links=(LINK,), sent=sent), Clock())
    for site in "ab":
        found.add_device(Device(site, frozenset({"trainer"}), site=site))
    assert found.version("a", "b") == pytest.approx(0.3 + 0.25)


def test_work_waits_for_what_it_needs_once(transfers):
    transfers.encode(0, 1, ["far"])
    transfers.denoised(Generate(alone(FRAGMENT), 0, 3, 0, "far"), 3)
    # the condition, and the transitions of two samples at two steps
    assert transfers.inputs(train("here", 0, 2)) == pytest.approx(0.5 + 2 * 0.2 + 0.25)
    assert transfers.inputs(train("here", 2)) == pytest.approx(1.15)  # when they were asked for
    assert transfers.inputs(train("here", 1)) == pytest.approx(1.1 + 0.25)
    assert transfers.inputs(train("too", 1)) == pytest.approx(1.1 + 0.5 + 0.2 + 0.25)
    assert transfers.inputs(train("off", 0, 1, 2)) == 0.0
    other = replace(FRAGMENT, index=1)
    transfers.denoised(Generate(alone(other), 0, 3, 0, "far"), 3)  # of the same prompt
    assert transfers.inputs(train("here", 0, fragment=other)) == pytest.approx(1.8 + 0.2 + 0.25)


def test_prompts_are_embedded_some_together_and_cross_so(transfers):
    transfers.encode(0, 5, ["far", "off", "here"])  # groups 0 and 1, 2 and 3, 4

    def begin(group, device):
        return transfers.inputs(Generate(alone(replace(FRAGMENT, group=group)), 0, 3, 0, device))

    assert begin(1, "here") == pytest.approx(2 * 0.5 + 0.25)
    assert begin(0, "here") == pytest.approx(1.25), "it came with the other one"
    assert begin(4, "here") == begin(2, "far") == 0.0, "who embeds it is at this site"
    assert begin(4, "off") == pytest.approx(0.5 + 0.25), "alone, the other way"
    transfers.finish(0)
    assert begin(0, "here") == 0.0, "where nobody did whoever generates it does"


def test_a_fragment_goes_on_elsewhere_when_its_latents_are_there(transfers):
    transfers.encode(0, 1, ["far"])
    transfers.denoised(Generate(alone(FRAGMENT), 0, 3, 0, "far"), 1)
    assert transfers.inputs(Generate(alone(FRAGMENT), 1, 3, 0, "here")) == pytest.approx(0.7 + 0.25)
    transfers.denoised(Generate(alone(FRAGMENT), 1, 3, 0, "here"), 3)
    assert transfers.inputs(train("here", 1)) == pytest.approx(0.75)  # of the condition, the first


def test_the_sums_of_a_site_cross_as_one(transfers):
    assert transfers.sums(Reduce(0, ("here", "too"), "here"), 0.5) == 0.5
    assert transfers.sums(Reduce(0, ("far", "too"), "here"), 0.0) == 2.0 + 0.25
    # there they are one after 0.5 s, and then come after the one before, to two others
    three = Reduce(0, ("here", "far", "off", "too"), "here")
    assert transfers.sums(three, 0.5) == 2.0 + 2.0 + 0.25 + 2 * 0.5
    (_, crossing) = transfers.crossings
    assert crossing == Crossing(AB, 20.0, 2.0, 4.25)
    assert transfers.sums(Reduce(0, ("off",), "far"), 0.5) == 0.5, "from there to there"


def test_what_a_lost_device_had_fetched_is_fetched_again(transfers):
    transfers.encode(0, 1, ["far"])
    transfers.denoised(Generate(alone(FRAGMENT), 0, 3, 0, "far"), 3)
    first = transfers.inputs(train("here", 0))
    transfers.lose_device("here")
    assert transfers.inputs(train("here", 0)) == pytest.approx(first + 0.7)
    transfers.finish(0)
    transfers.encode(0, 1, ["far"])
    transfers.denoised(Generate(alone(FRAGMENT), 0, 3, 0, "off"), 3)
    assert transfers.inputs(train("here", 0)) == pytest.approx(first + 2 * 0.7)


def two_sites(scenario, **kinds) -> Scenario:
    """Return a scenario with its first kind at site b, the others at a."""
    sites = {
        name: {**kind, "site": "ba"[place > 0]} for place, (name, kind) in enumerate(kinds.items())
    }
    changes = {"kinds": sites, "links": [LINK.model_dump()], "sent": SENT.model_dump()}
    devices = sum(kind["count"] for kind in kinds.values())
    return Scenario.model_validate(scenario.model_dump() | changes | {"devices": devices})


def test_disaggregated_over_a_link_by_hand(scenario):
    own = two_sites(scenario, far={"count": 1}, here={"count": 1})
    report = simulate_choice(own, Choice("disaggregated", 1), num_iterations=3)
    # 4 fragments of 4 s, the last reward; the first pack waits for both conditions (1 s), a
    # transition (0.1 s) and the latency, the others' come meanwhile; 4 packs of one pair of 2 s;
    # step; the push takes 2 s and 3 s and the latency.
    assert report.seconds == pytest.approx(16 + 0.25 + 1.35 + 8 + 0.5 + 2 + 3.25)
    assert report.iteration_ends[0] == pytest.approx(3.25 + report.seconds)  # version 0
    assert report.crossed == {AB: pytest.approx(30 + 2 * 5 + 4 * 1)}


def crossing(num_bytes, started, ended, sites=AB):
    return Crossing(sites, num_bytes, started, ended)


def test_transfers_at_the_same_time_share_a_link():
    found = [crossing(10, 0.0, 2.0), crossing(30, 1.0, 4.0), crossing(5, 4.0, 5.0)]
    other = crossing(7, 1.0, 2.0, frozenset("ac"))
    assert sorted(busy_periods([*found, other]), key=lambda own: own.num_bytes) == [
        crossing(5, 4.0, 5.0),
        other,
        crossing(40, 0.0, 4.0),
    ]
    billions = [crossing(1e9 * own.num_bytes, own.started, own.ended) for own in found]
    assert link_metrics(billions) == {
        "links/a-b/gb": 45.0,
        "links/a-b/gbit_per_second": pytest.approx(8 * 45 / 5),
    }
    assert link_metrics([crossing(1e9, 1.0, 1.0)]) == {"links/a-b/gb": 1.0}
