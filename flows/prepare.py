"""Make the workers ready: load the model everywhere, make the first version, and push it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final
from uuid import UUID

import dask
from prefect import flow

from digen_core.control.protocol import Device, Role
from digen_core.data import Prompt
from digen_core.model_config import MAX_TOKENS
from digen_core.planning.profile import Measured
from digen_core.reward_probe import NUM_SAMPLES, probed_by_workers
from digen_core.rollout.steps import Steps
from flows.collect import receipts_of
from flows.conductor import Conductor
from flows.open_iteration import OpenIteration
from flows.recorder import IterationRecorder
from flows.scheduling import start_profile
from flows.session import Round, Session, say, session_of
from flows.telling import tell
from flows.workload import layout_of
from tasks.completions import Completions
from tasks.emulation import EmulatedConfig, body_of
from tasks.measure import measure
from tasks.rollout import encode
from tasks.score import Pool, load_rewards, probe_rewards
from tasks.setup import count_tokens, load_model, restore_state
from tasks.train import start_state

COUNTED_PROMPTS: Final = 1000
"""Prompts whose tokens are counted: the longest, by characters."""


@flow(name="prepare", flow_run_name="{run_id}-prepare", validate_parameters=False)
def prepare(run_id: str) -> Conductor:
    """Load the model on every worker and give all of them the version to begin with."""
    session = session_of(run_id)
    say("loading the model on the workers")
    with Completions() as completions:
        load_models(session, completions)
        load_pools(session, completions)
        probe_loaded_rewards(session, completions)
        prompts = (*session.prompts, *session.evaluation_prompts)
        tell_of_cut_prompts(session, completions, prompts)
        start_profile(session, measure_costs(session, completions))
        make_first_version(session, completions)
    conductor = Conductor(session)
    with Completions(session.inbox):
        setup = Round(index=-1, prompts=[], steps=Steps((), ()), metadata=[])
        conductor.start(OpenIteration(setup, IterationRecorder(session, setup), 0))
    return conductor


def load_models(session: Session, completions: Completions) -> None:
    """Load the model on every worker."""
    labels: dict[UUID, tuple[str, str]] = {}
    for device in session.devices:
        label = f"load model on {device.name}"
        with dask.annotate(workers=[device.name]):
            future = body_of(session.config, load_model).submit(
                session.run_id, label, session.config, device.name, roles_of(session, device)
            )
        labels[future.task_run_id] = (label, device.name)
    receipts_of(session, completions, labels)


def load_pools(session: Session, completions: Completions) -> None:
    """Load what they score with on the workers of the pools."""
    labels: dict[UUID, tuple[str, str]] = {}
    for pool in Pool.all_of(session.config):
        for worker in session.pools[pool.name]:
            label = f"load rewards on {worker}"
            with dask.annotate(workers=[worker]):
                future = load_rewards.submit(session.run_id, label, pool)
            labels[future.task_run_id] = (label, worker)
    receipts_of(session, completions, labels)


def probe_loaded_rewards(session: Session, completions: Completions) -> None:
    """Call the rewards that only workers can make once on each of their workers."""
    config, labels = session.config, dict[UUID, tuple[str, str]]()
    if isinstance(config, EmulatedConfig):
        return
    places = {worker: pool for pool in Pool.all_of(config) for worker in session.pools[pool.name]}
    for worker, pool in (*((name, None) for name in session.rollout_devices()), *places.items()):
        rewards = probed_by_workers(config, pool.name if pool else None)
        if not rewards:
            continue
        label, prompts = f"probe rewards on {worker}", session.prompts[:NUM_SAMPLES]
        with dask.annotate(workers=[worker]):
            future = probe_rewards.submit(
                session.run_id,
                label,
                model=config.model,
                rewards=rewards,
                pool=pool,
                prompts=prompts,
            )
        labels[future.task_run_id] = (label, worker)
    for receipt in receipts_of(session, completions, labels).values():
        for note in receipt["notes"]:
            tell(session, "reward-failed", note)


def tell_of_cut_prompts(
    session: Session, completions: Completions, prompts: Iterable[Prompt]
) -> None:
    """Say if prompts are longer than the model is given; the longest are looked at."""
    if isinstance(session.config, EmulatedConfig):
        return
    label, device = "count tokens", session.rollout_devices()[0]
    texts = sorted({prompt.text for prompt in prompts}, key=len, reverse=True)[:COUNTED_PROMPTS]
    with dask.annotate(workers=[device]):
        future = count_tokens.submit(session.run_id, label, texts)
    (receipt,) = receipts_of(session, completions, {future.task_run_id: (label, device)}).values()
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


def roles_of(session: Session, device: Device) -> list[Role]:
    """Return the roles whose work a device may do: with help, those of others too."""
    layout, roles = layout_of(session.config), set(device.roles)
    if layout.trainers_help:
        roles.add("rollout")
    if layout.rollouts_train:
        roles.add("trainer")
    return sorted(roles)


def measure_costs(session: Session, completions: Completions) -> dict[Device, Measured]:
    """Measure each device's work; an emulated one's is known."""
    if isinstance(session.config, EmulatedConfig):
        return {}
    if session.config.model.compile:
        say("compiling the model and measuring it; compiling may take minutes")
    prompt, labels = session.prompts[0].text, dict[UUID, tuple[str, str]]()
    with dask.annotate(workers=[session.rollout_devices()[0]]):
        condition = encode.submit(session.run_id, "encode for measuring", [prompt])
    labels[condition.task_run_id] = ("encode for measuring", session.rollout_devices()[0])
    devices: dict[UUID, Device] = {}
    for device in session.devices:
        label = f"measure {device.name}"
        with dask.annotate(workers=[device.name]):
            future = measure.submit(
                session.run_id, label, condition, prompt, roles_of(session, device)
            )
        labels[future.task_run_id] = (label, device.name)
        devices[future.task_run_id] = device
    receipts = receipts_of(session, completions, labels)
    return {
        device: Measured.model_validate(receipts[task_run_id]["measured"])
        for task_run_id, device in devices.items()
    }


def make_first_version(session: Session, completions: Completions) -> None:
    """Make the state that training starts from, or go on with that of a checkpoint."""
    if session.checkpoint is not None:
        restore_version(session, completions, session.trainer_devices()[0], session.checkpoint)
        return
    trainer, label = session.trainer_devices()[0], "make version 0"
    with dask.annotate(workers=[trainer]):
        session.state = body_of(session.config, start_state).submit(session.run_id, label)
    labels = {session.state.task_run_id: (label, trainer)}
    (receipt,) = receipts_of(session, completions, labels).values()
    session.hashes[0] = receipt["hash"]


def restore_version(
    session: Session, completions: Completions, device: str, checkpoint: Path
) -> None:
    """Read a checkpoint on a device."""
    label = f"restore {checkpoint.name}"
    with dask.annotate(workers=[device]):
        session.state = restore_state.submit(session.run_id, label, checkpoint.resolve())
    labels = {session.state.task_run_id: (label, device)}
    (receipt,) = receipts_of(session, completions, labels).values()
    session.version = receipt["version"]
    session.hashes[session.version] = receipt["hash"]
