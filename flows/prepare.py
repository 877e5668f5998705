"""Make the workers ready: load the model everywhere, make the first version, and push it."""

from collections.abc import Iterable
from typing import Final

from prefect import flow

from digen_core.config.model import MAX_TOKENS
from digen_core.data.prompts import Prompt
from digen_core.rollout.steps import Steps
from flows.runtime.conductor import Conductor
from flows.runtime.fleet.batch import Batch
from flows.runtime.fleet.joining import await_roles
from flows.runtime.fleet.loading import load_models, load_pools, measure_costs, probe_loaded_rewards
from flows.runtime.fleet.losses import DevicesLostError, StateLostError
from flows.runtime.notify import tell
from flows.runtime.open_iteration import OpenIteration
from flows.runtime.recorder import IterationRecorder
from flows.runtime.scheduling import start_profile
from flows.runtime.session import Round, Session, say, session_of
from tasks.emulation import EmulatedConfig, body_of
from tasks.runner.completions import Completions
from tasks.setup import count_tokens, restore_state
from tasks.train import start_state

COUNTED_PROMPTS: Final = 1000
"""Prompts whose tokens are counted: the longest, by characters."""


@flow(name="prepare", flow_run_name="{run_id}-prepare", validate_parameters=False)
def prepare(run_id: str) -> Conductor:
    """Load the model on every worker and give all of them the version to begin with.

    Where workers are lost meanwhile, the others go on.
    """
    session = session_of(run_id)
    while True:
        await_roles(session)
        try:
            with Completions() as completions:
                _make_ready(session, Batch(session, completions))
            conductor = Conductor(session)
            with Completions(session.inbox):
                setup = Round(index=-1, prompts=[], steps=Steps((), ()), metadata=[])
                conductor.start(OpenIteration(setup, IterationRecorder(session, setup), 0))
            return conductor
        except (DevicesLostError, StateLostError):  # it was told; what is left is enough, or waits
            continue


def _make_ready(session: Session, batch: Batch) -> None:
    say("loading the model on the workers")
    load_models(session, batch, session.devices)
    load_pools(session, batch)
    probe_loaded_rewards(session, batch)
    tell_of_cut_prompts(session, batch, (*session.prompts, *session.evaluation_prompts))
    if session.profile is None:
        start_profile(session, measure_costs(session, batch, session.devices))
    make_first_version(session, batch)


def tell_of_cut_prompts(session: Session, batch: Batch, prompts: Iterable[Prompt]) -> None:
    """Say, once, if prompts are longer than the model is given; the longest are looked at."""
    if isinstance(session.config, EmulatedConfig) or "prompts-cut" in session.told:
        return
    session.told.add("prompts-cut")
    texts = sorted({prompt.text for prompt in prompts}, key=len, reverse=True)[:COUNTED_PROMPTS]
    future = batch.submit(count_tokens, "count tokens", session.rollout_devices()[0], texts)
    receipt = batch.receipts()[future.task_run_id]
    if receipt["num_cut"]:
        most, enough = receipt["most"], min(receipt["most"], MAX_TOKENS)
        what_stays = ", the most there is" if most > enough else ""
        tell(
            session,
            "prompts-cut",
            f"{receipt['num_cut']} of the {len(texts)} longest prompts take more tokens than "
            f"model.max_sequence_length ({session.config.model.max_sequence_length}) and are cut; "
            f"the longest takes {most}: set it to {enough}{what_stays}",
        )


def make_first_version(session: Session, batch: Batch) -> None:
    """Make the state that training starts from, or take up that of a checkpoint."""
    trainer = session.trainer_devices()[0]
    if session.checkpoint is not None:
        restore_version(session, batch, trainer)
        return
    body = body_of(session.config, start_state)
    session.state = batch.submit(body, "make version 0", trainer)
    receipt = batch.receipts()[session.state.task_run_id]
    session.hashes[0] = receipt["hash"]


def restore_version(session: Session, batch: Batch, device: str) -> None:
    """Read the session's checkpoint on a device."""
    assert session.checkpoint is not None
    label = f"restore {session.checkpoint.name}"
    session.state = batch.submit(restore_state, label, device, session.checkpoint.resolve())
    receipt = batch.receipts()[session.state.task_run_id]
    session.version = receipt["version"]
    session.hashes[session.version] = receipt["hash"]
