"""Retention: of how many iterations Prefect keeps the pages.

Prefect's own vacuum takes whole runs that ended long ago. What a run leaves there while it goes on,
some kilobytes for each task, is bounded here.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterEndTime,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.sorting import FlowRunSort

ITERATION_FLOW: Final = "iteration"
"""Name of the flow whose runs are iterations."""

SETTLED_SECONDS: Final = 600.0
"""After that time nobody tells the server of a flow run that ended: calls are repeated for eight
minutes. A task run that is told of when its flow run is gone would take others with it, for the
server writes many at once."""

MOST_AT_ONCE: Final = 20


def drop_iterations(run_id: str, keep: int) -> int:
    """Have Prefect forget the iterations of a run that ended, but for the newest.

    Args:
        run_id: name of the run, a tag of its flow runs; those of earlier processes count, too.
        keep: how many stay at least.

    Returns:
        How many went, `MOST_AT_ONCE` at most; what is left goes at the next call.

    Raises:
        HTTPError, PrefectException: the server does not take it.
    """
    settled = datetime.now(UTC) - timedelta(seconds=SETTLED_SECONDS)
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(
            flow_filter=FlowFilter(name=FlowFilterName(any_=[ITERATION_FLOW])),
            flow_run_filter=FlowRunFilter(
                tags=FlowRunFilterTags(all_=[run_id]),
                end_time=FlowRunFilterEndTime(before_=settled),
            ),
            sort=FlowRunSort.END_TIME_DESC,
            limit=MOST_AT_ONCE,
            offset=keep,
        )
        for run in runs:
            _drop(client, run)
    return len(runs)


def _drop(client: SyncPrefectClient, run: FlowRun) -> None:
    """Delete a flow run; what hangs on it goes with it, but for these."""
    own = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run.id]))
    for artifact in client.read_artifacts(artifact_filter=own):
        client.delete_artifact(artifact.id)
    if run.parent_task_run_id is not None:  # its place on the page of the run
        client.delete_task_run(run.parent_task_run_id)
    client.delete_flow_run(run.id)
