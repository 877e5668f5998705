"""Prefect's server goes away in the middle of a run and comes back: nothing may be missing."""

import os
import threading
import time
from collections import Counter

import pytest

from digen_core.config.run import RunConfig
from support.prefect_process import prefect_process
from support.runs import Watch, merged

pytestmark = pytest.mark.operation

# A minute takes too long for every day: OUTAGE_SECONDS=60 pytest tests/.../test_prefect_outage.py
OUTAGE_SECONDS = float(os.environ.get("OUTAGE_SECONDS", "3"))
NUM_ITERATIONS = int(12 + OUTAGE_SECONDS)


class Interrupting(Watch):
    """Stops the server after the second iteration, for a while."""

    def __init__(self, server):
        super().__init__()
        self._thread = threading.Thread(target=self._interrupt, args=(server,))
        self.away = threading.Event()
        self.num_meanwhile = 0

    def on_iteration(self, record):
        super().on_iteration(record)
        self.num_meanwhile += self.away.is_set()
        if record.iteration == 1:
            self._thread.start()

    def _interrupt(self, server):
        server.stop()
        self.away.set()
        time.sleep(OUTAGE_SECONDS)
        deadline = time.monotonic() + 90
        while self.num_meanwhile < 3 and time.monotonic() < deadline:
            time.sleep(0.2)
        self.away.clear()
        server.start()

    def join(self):
        self._thread.join()


def records_of(main_id):
    """Return states and names of all flow runs and task runs, and the run's artifacts."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter

    with get_client(sync_client=True) as client:
        flow_runs = client.read_flow_runs(limit=200)
        ids = {"any_": [flow_run.id for flow_run in flow_runs]}
        task_runs = []
        while page := client.read_task_runs(
            flow_run_filter=FlowRunFilter(id=ids), limit=200, offset=len(task_runs)
        ):
            task_runs += page
        artifacts = client.read_artifacts(limit=200)
    assert main_id in {flow_run.name for flow_run in flow_runs}
    return flow_runs, task_runs, artifacts


def test_training_goes_on_without_the_server_and_nothing_is_missing(tree, tmp_path, monkeypatch):
    from flows.post_train import post_train
    from flows.runtime.iterations import runs as iteration_runs
    from flows.runtime.observers import watching

    monkeypatch.setattr(iteration_runs, "OPENING_SECONDS", 1.0)
    changes = {"num_iterations": NUM_ITERATIONS, "rewards": {"smooth_rewards:slow": 1.0}}
    config = RunConfig.model_validate(merged(tree, changes))
    with prefect_process(tmp_path) as server:
        watch = Interrupting(server)
        with watching(watch):
            report = post_train(config)
        watch.join()
        assert report.version == NUM_ITERATIONS
        assert watch.num_meanwhile >= 3

        expected = Counter(span.task for record in watch.records for span in record.spans)
        deadline = time.monotonic() + 60  # the server lags behind
        while True:
            flow_runs, task_runs, artifacts = records_of(report.run_id)
            names = Counter(task_run.name for task_run in task_runs)
            missing = expected - names
            unended = [task_run.name for task_run in task_runs if not task_run.state.is_final()]
            if not missing and not unended:
                break
            assert time.monotonic() < deadline, (missing, unended)
            time.sleep(0.5)
    assert {task_run.state.name for task_run in task_runs} <= {"Completed", "Cancelled"}
    assert {flow_run.state.name for flow_run in flow_runs} <= {"Completed", "Cancelled"}
    pages = [artifact for artifact in artifacts if artifact.key == "digen-iteration"]
    assert len(pages) == NUM_ITERATIONS
    (progress,) = [artifact for artifact in artifacts if artifact.key == "digen-progress"]
    assert progress.data == 100.0


class Ending(Watch):
    """Stops the server for good after the second iteration."""

    def __init__(self, server):
        super().__init__()
        self._server = server

    def on_iteration(self, record):
        super().on_iteration(record)
        if record.iteration == 1:
            self._server.stop()


def test_a_run_ends_well_where_the_server_stays_away(tree, tmp_path, monkeypatch):
    from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

    from deployments.local import called
    from flows.post_train import post_train
    from flows.runtime import subflows
    from flows.runtime.iterations import runs as iteration_runs
    from flows.runtime.observers import watching
    from tasks.runner import prefect_api
    from tasks.views import artifacts

    never = {PREFECT_CLIENT_MAX_RETRIES: 0}
    monkeypatch.setattr(subflows, "PATIENT", never)
    monkeypatch.setattr(iteration_runs, "OPENING_SECONDS", 1.0)
    monkeypatch.setattr(prefect_api, "SILENT_SECONDS", 1.0)
    monkeypatch.setattr(artifacts, "LAST_WORD_SECONDS", 1.0)
    config = RunConfig.model_validate(merged(tree, {"num_iterations": 8}))
    with prefect_process(tmp_path) as server, temporary_settings(never):
        watch = Ending(server)
        with watching(watch):
            report = called(post_train, config)
    assert report.version == 8
    assert report.after is not None
    assert [record.iteration for record in watch.records] == list(range(8))
    away, untold = watch.warnings
    assert away.startswith(f"Prefect at {server.api_url.removesuffix('/api')} does not answer")
    assert untold.startswith("Prefect could not be told how the run ended")
