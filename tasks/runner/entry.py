"""The function behind every Dask task of the lean runner.

The Dask scheduler unpickles the functions of the tasks it schedules, so this module imports nothing
heavy: Prefect is imported only where a task runs.
"""

from typing import Any


def run_task(call: bytes, task: bytes, context: bytes, *upstream: Any) -> Any:
    """Run one Prefect task on this worker and return its final state.

    Args:
        call: What differs from task run to task run, see `LeanDaskTaskRunner.submit`.
        task: The Prefect task.
        context: The Prefect context of the flow run.
        upstream: Final states of the task runs this one depends on, in the order ``call`` numbers.
    """
    from tasks.runner.context import execute

    return execute(call, task, context, upstream)
