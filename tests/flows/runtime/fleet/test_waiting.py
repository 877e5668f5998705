"""How long a run waits for workers."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock
from uuid import uuid4

import pytest
from httpx import ConnectError
from prefect.states import Cancelling, Paused, Running, State, Suspended

from digen_core.config.run import RunConfig
from flows.runtime.fleet import waiting
from flows.runtime.fleet.joining import Newcomer
from flows.runtime.fleet.waiting import Waiting
from support.contexts import run_context
from tasks.cluster.calls import WorkerLostError
from tasks.cluster.presence import Presence


@pytest.mark.parametrize("role", ["rollout", "trainer"])
def test_a_worker_that_loads_its_model_has_come(tmp_path, monkeypatch, role):
    monkeypatch.setattr(waiting, "show_state", lambda *of, **how: None)
    config = RunConfig.model_validate({"cluster": {"rejoin_timeout": 0.0}})
    run = run_context(tmp_path, config)
    run = replace(run, lineage=run.lineage.model_copy(update={"flow_run_ids": ("own",)}))
    coming = Presence("c", "at c", frozenset({role}), 0.0)
    run.fleet.making_ready(Newcomer(coming, coming.roles))
    it = Waiting(run)
    it.for_role(role)
    it.for_role(role)
    run.fleet.abandon("c")
    with pytest.raises(WorkerLostError, match="came back in 0 s"):
        it.for_role(role)


@pytest.mark.parametrize(
    ("before", "shown"),
    [
        (Running(), ["WaitingForWorkers", "Running"]),
        (Paused(), []),
        (Suspended(), []),
        (Cancelling(), []),
    ],
    ids=lambda of: of.name if isinstance(of, State) else "",
)
def test_a_run_that_waits_stays_paused_or_cancelled(tmp_path, monkeypatch, before, shown):
    """As where a paused run loses its worker, or one is started that it had waited for."""
    client = Mock()
    client.read_flow_run.return_value = SimpleNamespace(state=before)
    monkeypatch.setattr(waiting, "get_client", lambda **_: nullcontext(client))
    run = run_context(tmp_path)
    own = run.lineage.model_copy(update={"flow_run_ids": (str(uuid4()),)})
    with Waiting(replace(run, lineage=own)) as it:
        it.for_role("rollout")
    states = [call.args[1].name for call in client.set_flow_run_state.call_args_list]
    assert states == shown


@pytest.mark.parametrize("error", [ConnectError("refused"), ValueError("<html> is no answer")])
def test_a_state_that_cannot_be_shown_stays_as_it_is(monkeypatch, error):
    """Prefect's server is away, or a proxy answers for it."""
    client = Mock()
    client.set_flow_run_state.side_effect = error
    monkeypatch.setattr(waiting, "get_client", lambda **_: nullcontext(client))
    waiting.show_state(str(uuid4()), Running())
    assert client.set_flow_run_state.called
