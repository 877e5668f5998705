"""A run is paused, resumed and cancelled in Prefect, and says there what went wrong."""

import threading
import time

import pytest

from digen_core.config.run import RunConfig
from digen_core.eventlog.file import read_log
from digen_core.eventlog.replay import replay
from support.runs import Watch, merged, only_run, training_in_mlflow

pytestmark = pytest.mark.slow

HOLD_SECONDS = 4.0


class Asking(Watch):
    """Pauses the run after its second iteration, resumes it, and cancels it after two more."""

    def __init__(self):
        super().__init__()
        self.thread = threading.Thread(target=self._ask)
        self.num_held = []  # iterations that were finished when the run was held, and later

    def on_iteration(self, record):
        super().on_iteration(record)
        if record.iteration == 1:
            self.thread.start()

    def on_step(self, done, total):
        pass

    def on_phase(self, text):
        self.phase = text

    def _ask(self):
        from prefect.client.orchestration import get_client
        from prefect.client.schemas.filters import FlowRunFilter
        from prefect.states import Cancelling, Suspended

        with get_client(sync_client=True) as client:
            # Runs of other tests are on the server, too.
            tagged = FlowRunFilter(tags={"all_": ["digen"]}, state={"type": {"any_": ["RUNNING"]}})
            found = client.read_flow_runs(flow_run_filter=tagged)
            (run,) = [run for run in found if run.parent_task_run_id is None]
            state = Suspended(timeout_seconds=300)  # as the button of the UI does
            client.set_flow_run_state(run.id, state, force=True)
            self._until(lambda: self.phase.startswith("paused"))
            self.num_held.append(len(self.records))
            time.sleep(HOLD_SECONDS)
            self.num_held.append(len(self.records))
            client.resume_flow_run(run.id)
            self._until(lambda: len(self.records) >= self.num_held[0] + 2)
            client.set_flow_run_state(run.id, Cancelling(), force=True)

    def _until(self, reached):
        deadline = time.monotonic() + 100
        while not reached():
            assert time.monotonic() < deadline
            time.sleep(0.1)


@pytest.mark.ci
def test_a_run_is_paused_resumed_and_cancelled(tree, cluster_address, prefect_backend):
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, LogFilter
    from prefect.exceptions import CancelledRun

    from digen_core.checkpoints.manifest import CHECKPOINTS_OF_RUN, last_checkpoint
    from flows.post_train import post_train
    from flows.runtime.observers import watching

    changes = {
        "num_iterations": 500,
        "cluster.scheduler_address": cluster_address(1, 1),
        "rewards": {
            "smooth_rewards:slow": 1.0,
            "smooth_rewards:broken": {"weight": 0.1, "on_failure": "neutral", "max_attempts": 1},
        },
    }
    watch = Asking()
    with watching(watch), pytest.raises(CancelledRun, match="cancelled in Prefect after iteration"):
        post_train(RunConfig.model_validate(merged(tree, changes)))
    watch.thread.join()
    assert watch.num_held[0] == watch.num_held[1]

    run_dir = only_run(tree)
    log = read_log(run_dir)
    assert log.why == "the run was stopped: cancelled in Prefect"
    assert replay(log).difference is None
    checkpoint, damaged = last_checkpoint(run_dir / CHECKPOINTS_OF_RUN)
    assert not damaged
    assert int(checkpoint.name[1:]) >= watch.num_held[1] + 2
    with get_client(sync_client=True) as client:
        tagged = FlowRunFilter(tags={"all_": [run_dir.name]})
        flow_runs = client.read_flow_runs(flow_run_filter=tagged, limit=200)
        (main,) = [run for run in flow_runs if run.parent_task_run_id is None]
        assert main.name == run_dir.name
        assert main.state.is_cancelled()
        assert {run.state.name for run in flow_runs} == {"Cancelled", "Completed"}
        lines = [
            log.message for log in client.read_logs(LogFilter(flow_run_id={"any_": [main.id]}))
        ]
        failed = [line for line in lines if "raised OSError: the lamp is broken" in line]
        failed = [line for line in failed if "tried on two grey images" not in line]
        assert 1 <= len(failed) <= len(watch.records) + 1
        assert_all_tasks_end(client, [run.id for run in flow_runs])
    assert training_in_mlflow(run_dir.parent).info.status == "KILLED"


def assert_all_tasks_end(client, flow_run_ids):
    from prefect.client.schemas.filters import FlowRunFilter, TaskRunFilter

    ids, deadline = FlowRunFilter(id={"any_": flow_run_ids}), time.monotonic() + 30
    open_states = TaskRunFilter(state={"type": {"any_": ["RUNNING", "PENDING", "SCHEDULED"]}})
    while True:
        open_ones = client.read_task_runs(flow_run_filter=ids, task_run_filter=open_states)
        if not open_ones:
            return
        assert time.monotonic() < deadline, open_ones
        time.sleep(0.5)
