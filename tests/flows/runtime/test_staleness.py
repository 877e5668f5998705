"""Adaptive staleness in a run: what each iteration makes of it, and what a resumed one has."""

import pytest

from digen_core.checkpoints.manifest import Manifest
from digen_core.config.run import RunConfig
from digen_core.control.protocol import Device
from digen_core.control.schedule import StaleGroups
from flows.runtime.iterations.staleness import Staleness
from flows.runtime.progress import STALE_LIMIT
from flows.runtime.workload import schedule_of
from support.checkpoints import position_of
from support.contexts import run_context

BOUND = 0.3


class Recorded:
    """What an iteration tells of its stale groups."""

    def __init__(self, number=None, stale_clip_fraction=None, iterations=1):
        self.stale_groups = None if number is None else StaleGroups(number, iterations)
        self.stale_clip_fraction = stale_clip_fraction


def run_with(tmp_path, bound, **schedule):
    """Half of the eight groups may be stale."""
    tree = {
        "rollout": {"prompts_per_iteration": 8},
        "schedule": {"layout": "tcss", "max_stale_clipped": bound, **schedule},
    }
    devices = [Device("a", frozenset({"rollout"})), Device("b", frozenset({"trainer"}))]
    return run_context(tmp_path, RunConfig.model_validate(tree), devices)


@pytest.fixture
def run(tmp_path):
    return run_with(tmp_path, BOUND)


def test_each_iteration_says_what_the_next_ones_may(run):
    staleness = Staleness(run, schedule_of(run.config))
    seen = [staleness.limit]
    for recorded in [
        Recorded(),  # made no update
        Recorded(0),
        Recorded(4, 0.5),
        Recorded(4, 0.5),  # offered before that was known
        Recorded(2, 0.1),
        Recorded(2, 0.1),
        Recorded(3, 0.31),
    ]:
        staleness.learn(recorded)
        seen.append(staleness.limit)
    assert seen == [StaleGroups(number, 1) for number in (4, 4, 4, 2, 2, 3, 3, 1)]


def test_the_oldest_versions_are_given_up_first(tmp_path):
    run = run_with(tmp_path, BOUND, max_staleness=3)
    staleness, seen = Staleness(run, schedule_of(run.config)), []
    for recorded in [
        Recorded(4, 0.5, iterations=3),
        Recorded(4, 0.5, iterations=3),  # offered before that was known
        Recorded(4, 0.5, iterations=2),
        Recorded(4, 0.5, iterations=1),
        Recorded(2, 0.1, iterations=1),
        Recorded(3, 0.1, iterations=1),
        Recorded(4, 0.1, iterations=1),  # all that may be: by one iteration more
        Recorded(4, 0.1, iterations=1),  # none was so old
        Recorded(4, 0.1, iterations=2),
    ]:
        staleness.learn(recorded)
        seen.append(staleness.limit)
    limits = ((4, 2), (4, 2), (4, 1), (2, 1), (3, 1), (4, 1), (4, 2), (4, 2), (4, 3))
    assert seen == [StaleGroups(*limit) for limit in limits]


def test_without_a_bound_it_is_left_to_the_schedule(tmp_path):
    run = run_with(tmp_path, None)
    staleness = Staleness(run, schedule_of(run.config))
    staleness.learn(Recorded(4, 1.0))
    assert staleness.limit is None


@pytest.mark.parametrize(
    ("metrics", "most"),
    [
        ((1.0, 2.0), (1, 2)),
        ((), (4, 3)),
        ((9.0, 9.0), (4, 3)),
    ],
)
def test_a_resumed_run_goes_on_with_that_of_its_checkpoint(tmp_path, metrics, most):
    run = run_with(tmp_path, BOUND, max_staleness=3)
    position = position_of(3, run.config, **dict(zip(STALE_LIMIT, metrics, strict=False)))
    manifest = Manifest(**dict(position), version=3, weights_hash="0", hashes={"weights": "0"})
    run.progress.may_be_stale(StaleGroups(0, 1))
    run.progress.stand_at(tmp_path, manifest, 3, {})
    assert Staleness(run, schedule_of(run.config)).limit == StaleGroups(*most)
    run.progress.stand_at(None, None, 0, {})
    assert Staleness(run, schedule_of(run.config)).limit == StaleGroups(4, 3)
