"""How a run makes its workers ready, again where it goes back to its last checkpoint."""

from contextlib import nullcontext
from uuid import uuid4

import pytest

from digen_core.config.run import RunConfig
from digen_core.control.costs import Linear
from digen_core.control.protocol import Device
from digen_core.planning.profile import Measured
from digen_core.records import Span
from flows import evaluate, export, prepare
from flows.prepare import complete_profile
from flows.runtime.context import registered
from flows.runtime.fleet.joining import Newcomer, new_workers
from flows.runtime.fleet.losses import StateLostError
from flows.runtime.fleet.watch import MIN_WARNING
from flows.runtime.scheduling import learn_costs
from support.contexts import run_context
from tasks.cluster.presence import Presence


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


def test_who_comes_while_the_first_push_fails_is_taken_in(tmp_path, monkeypatch):
    """It was made ready for a conductor that was no more; a run that lacked its role waited on."""
    run = run_context(tmp_path, RunConfig.model_validate({"schedule": {"layout": "tsp"}}))
    coming, found = Presence("c", "at c", frozenset({"trainer"}), 0.0), []

    def start(conductor, setup):
        if len(found) == 1:
            run.fleet.making_ready(Newcomer(coming, coming.roles))
            raise StateLostError("the optimizer's state was lost with worker trainer-0")

    monkeypatch.setattr(
        prepare, "await_roles", lambda run: found.append(new_workers(run, {"at c": coming}))
    )
    monkeypatch.setattr(prepare, "Completions", nullcontext)
    monkeypatch.setattr(prepare, "_make_ready", lambda *of: None)
    monkeypatch.setattr(prepare.Conductor, "start", start)
    with registered(run):
        conductor = prepare.prepare.fn(run.run_id)
    assert found == [[coming], [coming]]
    assert not conductor._runs._is_closed


@pytest.mark.parametrize("flow", [evaluate.evaluate, export.export], ids=lambda flow: flow.name)
def test_what_is_given_up_with_a_lost_state_is_no_reason_to_stand_still(
    tmp_path, monkeypatch, flow
):
    """The run goes back to a checkpoint; its watch would wait for what was under way for hours."""
    run, task_run_id = run_context(tmp_path), uuid4()

    def lose(run, task_set, *_):
        task_set._pending[task_run_id] = None
        run.watch.begin(task_run_id, "evaluate v1 b00")
        raise StateLostError("the optimizer's state was lost")

    for module in (evaluate, export):
        monkeypatch.setattr(module, "Completions", nullcontext)
        monkeypatch.setattr(module, "say", lambda text: None)
    monkeypatch.setattr(evaluate, "_Evaluation", lose)
    monkeypatch.setattr(export, "_export", lose)
    with registered(run), pytest.raises(StateLostError):
        flow.fn(run.run_id, *(["after"] if flow is evaluate.evaluate else []))
    assert run.watch.patience == MIN_WARNING
