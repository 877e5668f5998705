"""Who is sent deltas of versions, by the sites of devices and what the config asks for."""

import pytest

from digen_core.config.run import RunConfig
from digen_core.control.protocol import Device
from flows.runtime.versions import sends_deltas
from support.contexts import run_context

TRAINER, ROLLOUT = frozenset({"trainer"}), frozenset({"rollout"})
DEVICES = [
    Device("trainer-0", TRAINER, site="a"),
    Device("rollout-0", ROLLOUT, site="a"),
    Device("rollout-1", ROLLOUT, site="b"),
    Device("rollout-2", ROLLOUT, site="b"),
]


@pytest.mark.parametrize(
    ("push", "near", "far"),
    [("auto", False, True), ("dense", False, False), ("delta", True, True)],
)
def test_deltas_are_sent_from_site_to_site(tmp_path, push, near, far):
    config = RunConfig.model_validate({"schedule": {"push": push}})
    run = run_context(tmp_path, config, DEVICES)
    assert sends_deltas(run, ("trainer-0", "rollout-0")) == near
    assert sends_deltas(run, ("rollout-1", "rollout-2")) == near
    assert sends_deltas(run, ("trainer-0", "rollout-2")) == far
    assert sends_deltas(run, run.fleet.names) == far  # each keeps what they are of
    run.fleet.lose(["rollout-1", "rollout-2"])
    assert sends_deltas(run, run.fleet.names) == near
