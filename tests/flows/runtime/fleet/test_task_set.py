"""What a run is told of tasks that failed."""

from types import SimpleNamespace
from uuid import UUID

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.runtime.fleet.task_set import TaskFailedError, receipt_of
from tasks.runner.completions import Completion


def test_what_crashed_is_told_though_prefects_server_is_away():
    future = SimpleNamespace(task_run_id=UUID(int=1))
    crashed = Completion(future, "CRASHED", "Crashed", "KilledWorker: 4 workers died")
    with (
        temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}),
        pytest.raises(TaskFailedError, match="score g00 f0 on judge failed: KilledWorker"),
    ):
        receipt_of(crashed, None, "score g00 f0", "judge")
