"""Adaptive staleness: the rule that chooses how many groups are stale, and who keeps to it."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from digen_core.control import protocol as p
from digen_core.control.controller import Controller
from digen_core.control.layout import LAYOUTS
from digen_core.control.schedule import Schedule, StaleGroups, adapted_limit
from support.random_cluster import (
    TRAINED,
    RandomCluster,
    make_costs,
    make_devices,
    make_workload,
)


@pytest.mark.parametrize(
    ("now", "began", "clipped", "expected"),
    [
        (8, 8, 0.1, 8),  # never more than may ever be
        (4, 4, 0.1, 5),  # all that were let began: one more
        (4, 3, 0.1, 4),  # devices had no time for more
        (4, 4, 0.3, 4 + 1),  # as many as are wanted, no more
        (8, 8, 0.31, 4),
        (8, 5, 0.31, 2),  # half of those that began
        (4, 8, 0.31, 4),  # of an iteration from before the last cut: it says the same again
        (1, 1, 0.31, 0),
        (0, 0, None, 1),  # none was stale: try one again
    ],
)
def test_one_more_or_half_as_many(now, began, clipped, expected):
    assert adapted(now, 8, began, clipped) == expected


def adapted(now: int, most: int, began: int, clipped: float | None, bound: float = 0.3) -> int:
    """How many groups may begin on the version before, where none may on an older one."""
    limits = (StaleGroups(number, 1) for number in (now, most, began))
    now, most, began = limits
    found = adapted_limit(now, most, began=began, clipped=clipped, max_clipped=bound)
    assert found.iterations == 1
    return found.number


@pytest.mark.parametrize(
    ("now", "began", "clipped", "expected"),
    [
        ((8, 3), (8, 3), 0.1, (8, 3)),  # never older than may ever be
        ((8, 2), (8, 2), 0.1, (8, 3)),  # all that were let began: by one iteration more
        ((8, 2), (8, 1), 0.1, (8, 2)),  # no version was so old
        ((7, 2), (7, 2), 0.1, (8, 2)),  # first one group more
        ((8, 2), (7, 2), 0.1, (8, 2)),  # devices had no time for more
        ((8, 3), (8, 3), 0.31, (8, 2)),
        ((8, 3), (5, 2), 0.31, (8, 1)),  # one less than the oldest was behind
        ((8, 1), (8, 3), 0.31, (8, 1)),  # from before the last cuts: it says the same again
        ((8, 1), (8, 1), 0.31, (4, 1)),  # the version before is the youngest that is stale
        ((0, 1), (0, 0), None, (1, 1)),
    ],
)
def test_the_oldest_versions_go_first_and_come_last(now, began, clipped, expected):
    now, began = StaleGroups(*now), StaleGroups(*began)
    found = adapted_limit(now, StaleGroups(8, 3), began=began, clipped=clipped, max_clipped=0.3)
    assert found == StaleGroups(*expected)


numbers = st.integers(0, 20)


@given(now=numbers, more=numbers, began=numbers, clipped=st.none() | st.floats(0, 1), bound=numbers)
def test_it_stays_between_none_and_all_and_is_cut_once(now, more, began, clipped, bound):
    def after(now: int) -> int:
        return adapted(now, most, began, clipped, bound / 20)

    most = now + more
    found = after(now)
    assert 0 <= found <= most
    assert found <= now + 1
    if clipped is not None and clipped > bound / 20:
        assert found <= max(now, 0)
        assert after(found) == found, "what two iterations say of one number counts twice"


def test_it_finds_what_the_clip_puts_up_with():
    """Where more than five stale groups are clipped too much, it stays between two and six."""
    now, seen = 16, []
    for _ in range(60):
        clipped = 0.5 if now > 5 else 0.1
        now = adapted(now, 16, now, clipped)
        seen.append(now)
    assert set(seen[10:]) == {3, 4, 5, 6}
    assert seen[0] == 8


class Adapted(RandomCluster):
    """Offers iterations of which any number of groups may be stale, by some iterations."""

    def _offer(self, index: int) -> p.IterationOffered:
        offer = super()._offer(index)
        most = self.random.randrange(self.workload.num_groups + 1)
        limit = StaleGroups(most, self.random.randint(1, self.schedule.max_staleness))
        made = p.IterationOffered(
            index, TRAINED, offer.group_costs, offer.mixing, offer.deal, (), limit
        )
        self.offers[index] = made
        return made


@pytest.mark.ci
def test_no_more_groups_are_stale_than_their_iteration_lets():
    seen, oldest = 0, [0, 0]
    for seed in range(60):
        random = Random(seed)
        workload = make_workload(num_groups=4)
        schedule = Schedule(LAYOUTS["tcss"], max_stale_share=0.25, max_staleness=1 + seed % 2)
        devices = make_devices("tcss", 3, 1)
        it = Controller(devices, workload, schedule, make_costs())
        cluster = Adapted(it, workload, schedule, devices, random=random)
        cluster.run(4, losses=seed % 3, joins=True)
        for index in range(4):
            versions = [cluster.version_of[index, group] for group in range(4)]
            stale = sum(version < index for version in versions)
            limit = cluster.offers[index].stale_limit
            assert stale <= limit.number
            assert index - min(versions) <= limit.iterations
            seen += stale > 1
            oldest[limit.iterations - 1] = max(oldest[limit.iterations - 1], index - min(versions))
    assert seen > 0, "no offer let more be stale than the schedule"
    assert oldest == [1, 2]
