"""Adaptive staleness in a run: what each iteration makes of it, and what a resumed one has."""

import pytest

from digen_core.checkpoints.manifest import Manifest
from digen_core.config.run import RunConfig
from digen_core.control.protocol import Device
from flows.runtime.iterations.staleness import Staleness
from flows.runtime.progress import MOST_STALE
from flows.runtime.workload import schedule_of
from support.checkpoints import position_of
from support.contexts import run_context

BOUND = 0.3


class Recorded:
    """What an iteration tells of its stale groups."""

    def __init__(self, num_stale_groups=None, stale_clip_fraction=None):
        self.num_stale_groups, self.stale_clip_fraction = num_stale_groups, stale_clip_fraction


def run_with(tmp_path, bound):
    """Half of the eight groups may be stale."""
    tree = {
        "rollout": {"prompts_per_iteration": 8},
        "schedule": {"layout": "tcss", "max_stale_clipped": bound},
    }
    devices = [Device("a", frozenset({"rollout"})), Device("b", frozenset({"trainer"}))]
    return run_context(tmp_path, RunConfig.model_validate(tree), devices)


@pytest.fixture
def run(tmp_path):
    return run_with(tmp_path, BOUND)


def test_each_iteration_says_what_the_next_ones_may(run):
    staleness = Staleness(run, schedule_of(run.config))
    seen = [staleness.most_now]
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
        seen.append(staleness.most_now)
    assert seen == [4, 4, 4, 2, 2, 3, 3, 1]


def test_without_a_bound_it_is_left_to_the_schedule(tmp_path):
    run = run_with(tmp_path, None)
    staleness = Staleness(run, schedule_of(run.config))
    staleness.learn(Recorded(4, 1.0))
    assert staleness.most_now is None


@pytest.mark.parametrize(
    ("metrics", "most"), [({MOST_STALE: 1.0}, 1), ({}, 4), ({MOST_STALE: 9.0}, 4)]
)
def test_a_resumed_run_goes_on_with_that_of_its_checkpoint(run, tmp_path, metrics, most):
    position = position_of(3, run.config, **metrics)
    manifest = Manifest(**dict(position), version=3, weights_hash="0", hashes={"weights": "0"})
    run.progress.may_be_stale(0)
    run.progress.stand_at(tmp_path, manifest, 3, {})
    assert Staleness(run, schedule_of(run.config)).most_now == most
    run.progress.stand_at(None, None, 0, {})
    assert Staleness(run, schedule_of(run.config)).most_now == 4
