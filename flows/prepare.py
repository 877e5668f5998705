"""Make the workers ready: load the model everywhere, make version 0, and push it."""

from uuid import UUID

import dask
from prefect import flow

from digen_core.control.protocol import VersionLoaded
from flows.collect import receipts_of
from flows.executor import Executor
from flows.recorder import IterationRecorder
from flows.session import Round, Session, say, session_of
from tasks.completions import Completions
from tasks.setup import load_model
from tasks.train import start_state


@flow(name="prepare", flow_run_name="{run_id}-prepare", validate_parameters=False)
def prepare(run_id: str) -> None:
    """Load the model on every worker and give all of them version 0."""
    session = session_of(run_id)
    say("loading the model on the workers")
    with Completions() as completions:
        load_models(session, completions)
        trainer = session.trainer_devices()[0]
        with dask.annotate(workers=[trainer]):
            session.state = start_state.submit(run_id, "make version 0")
        labels = {session.state.task_run_id: ("make version 0", trainer)}
        (receipt,) = receipts_of(session, completions, labels).values()
        session.hashes[0] = receipt["hash"]
        round_ = Round(index=-1, prompts=[], trained_steps=range(0))
        executor = Executor(session, completions, IterationRecorder(session, round_), round_)
        executor.publish(trainer, 0)
        for instruction in session.controller.start():
            executor.submit(instruction)
        for _ in session.devices:
            event = executor.next_event()
            assert isinstance(event, VersionLoaded)
            session.controller.handle(event)


def load_models(session: Session, completions: Completions) -> None:
    """Load the model on every worker, and note how long a denoising step takes."""
    labels: dict[UUID, tuple[str, str]] = {}
    for device in session.devices:
        label = f"load model on {device.name}"
        with dask.annotate(workers=[device.name]):
            future = load_model.submit(
                session.run_id, label, session.config, device.name, sorted(device.roles)
            )
        labels[future.task_run_id] = (label, device.name)
    receipts = receipts_of(session, completions, labels)
    session.step_seconds = max(receipt["step_seconds"] for receipt in receipts.values())
