"""Tell whoever watches a run in Prefect what went wrong: a line of its log, and an event."""

from prefect import get_run_logger
from prefect.events import emit_event

from flows.session import Session


def tell(session: Session, event: str, text: str) -> None:
    """Log a line on the run's own page, from any of its flows, and emit an event that says it.

    Args:
        session: of the run.
        event: what happened, such as "worker-lost"; the event is ``digen.<event>``.
        text: one sentence: what happened, where, and what to do.
    """
    flow_run_id = session.lineage.flow_run_ids[-1]
    get_run_logger().warning(text, extra={"flow_run_id": flow_run_id})
    emit_event(
        f"digen.{event}",
        resource={
            "prefect.resource.id": f"digen.run.{session.run_id}",
            "prefect.resource.name": session.run_id,
        },
        related=[
            {
                "prefect.resource.id": f"prefect.flow-run.{flow_run_id}",
                "prefect.resource.role": "flow-run",
            }
        ],
        payload={"message": text},
    )
