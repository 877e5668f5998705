"""How a run makes its workers ready, again where it goes back to its last checkpoint."""

from digen_core.config.run import RunConfig
from digen_core.control.costs import Linear
from digen_core.control.protocol import Device
from digen_core.planning.profile import Measured
from digen_core.records import Span
from flows import prepare
from flows.prepare import complete_profile
from flows.runtime.scheduling import learn_costs
from support.contexts import run_context


def test_devices_that_came_before_a_run_goes_on_have_costs(tmp_path, monkeypatch):
    """Without them the first iteration that is published ends the run."""
    config = RunConfig.model_validate({"schedule": {"layout": "tsp"}})
    run = run_context(tmp_path, config)
    asked = []

    def measure_costs(run, task_set, devices):
        asked.append([device.name for device in devices])
        line = Linear(fixed=float(len(asked)))
        return {device: Measured(step=line, decode=line, pack=line) for device in devices}

    monkeypatch.setattr(prepare, "measure_costs", measure_costs)
    complete_profile(run, None)
    run.fleet.join(Device("rollout-1", frozenset({"rollout"})))
    run.fleet.join(Device("rollout-2", frozenset({"rollout"}), "another"))
    for _ in range(2):
        complete_profile(run, None)
        assert run.progress.profile.devices == run.fleet.devices
    assert asked == [["rollout-0", "trainer-0"], ["rollout-2"]]
    known = run.progress.known_costs
    assert [known.kinds[kind].step.fixed for kind in ("default", "another")] == [1.0, 2.0]
    span = Span(0, "score g00 f0", "score", "rollout-1", 0.0, 0.0, 2.0, group=0, num_items=2)
    learn_costs(run, [span])
    assert run.progress.known_costs.reward == known.reward, "it is of no pool"
