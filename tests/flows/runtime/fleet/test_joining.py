"""Which roles a worker gets that comes while a run works."""

import pytest

from digen_core.config.run import RunConfig
from digen_core.control.protocol import Device
from flows.runtime.fleet.joining import roles_for
from support.contexts import SPLIT, run_context
from tasks.cluster.presence import ROLES, Presence

BOTH = frozenset(ROLES)
COMING = Presence("w", "at w", BOTH, 0.0)


def run_of(folder, layout, devices):
    return run_context(folder, RunConfig.model_validate({"schedule": {"layout": layout}}), devices)


@pytest.mark.parametrize("before", [{"rollout"}, {"trainer"}])
def test_a_run_that_goes_on_in_a_colocated_layout_has_who_comes_do_both(tmp_path, before):
    run = run_of(tmp_path, "colocated", [Device("a", BOTH)])
    run.fleet.took_part([Device("w", frozenset(before))])
    assert roles_for(run, COMING) == BOTH
    assert [own.name for own in run.fleet.all_devices] == ["a", "w"]


def test_one_that_was_colocated_before_gives_one_role(tmp_path):
    run = run_of(tmp_path, "tsp", SPLIT)
    run.fleet.took_part([Device("w", BOTH)])
    assert roles_for(run, COMING) == {"rollout"}


def test_who_was_lost_since_the_run_goes_on_has_the_role_that_it_had(tmp_path):
    run = run_of(tmp_path, "tsp", [*SPLIT, Device("w", frozenset({"trainer"}))])
    run.fleet.addresses["w"] = "at w before"
    run.fleet.took_part([Device("w", BOTH)])
    run.fleet.lose(["w"])
    assert roles_for(run, COMING) == {"trainer"}
