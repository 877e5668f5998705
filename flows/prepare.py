"""Make the workers ready: load the model everywhere, make version 0, and push it."""

from uuid import UUID

import dask
from prefect import flow

from flows.collect import receipts_of
from flows.conductor import Conductor
from flows.open_iteration import OpenIteration
from flows.recorder import IterationRecorder
from flows.session import Round, Session, say, session_of
from flows.workload import layout_of
from tasks.completions import Completions
from tasks.emulation import body_of
from tasks.setup import load_model
from tasks.train import start_state


@flow(name="prepare", flow_run_name="{run_id}-prepare", validate_parameters=False)
def prepare(run_id: str) -> Conductor:
    """Load the model on every worker and give all of them version 0."""
    session = session_of(run_id)
    say("loading the model on the workers")
    with Completions() as completions:
        load_models(session, completions)
        make_version_zero(session, completions)
    conductor = Conductor(session)
    with Completions(session.inbox):
        setup = Round(index=-1, prompts=[], trained_steps=range(0))
        conductor.start(OpenIteration(setup, IterationRecorder(session, setup), 0))
    return conductor


def load_models(session: Session, completions: Completions) -> None:
    """Load the model on every worker, and note how long a denoising step takes."""
    layout = layout_of(session.config)
    labels: dict[UUID, tuple[str, str]] = {}
    for device in session.devices:
        label = f"load model on {device.name}"
        # A trainer that helps needs everything that a rollout needs.
        roles = device.roles | {"rollout"} if layout.trainers_help else device.roles
        with dask.annotate(workers=[device.name]):
            future = body_of(session.config, load_model).submit(
                session.run_id, label, session.config, device.name, sorted(roles)
            )
        labels[future.task_run_id] = (label, device.name)
    receipts = receipts_of(session, completions, labels)
    session.step_seconds = max(receipt["step_seconds"] for receipt in receipts.values())


def make_version_zero(session: Session, completions: Completions) -> None:
    """Make the state that training starts from, on the first trainer."""
    trainer, label = session.trainer_devices()[0], "make version 0"
    with dask.annotate(workers=[trainer]):
        session.state = body_of(session.config, start_state).submit(session.run_id, label)
    labels = {session.state.task_run_id: (label, trainer)}
    (receipt,) = receipts_of(session, completions, labels).values()
    session.hashes[0] = receipt["hash"]
