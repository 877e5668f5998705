"""Make the workers ready: load the model everywhere, make the first version, and push it."""

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Final

from prefect import flow

from digen_core.config.families import FAMILIES
from digen_core.data.prompts import Prompt
from flows.runtime.conductor import Conductor
from flows.runtime.context import RunContext, context_of
from flows.runtime.fleet.joining import await_roles
from flows.runtime.fleet.loading import load_models, load_pools, measure_costs, probe_loaded_rewards
from flows.runtime.fleet.losses import DevicesLostError, StateLostError
from flows.runtime.fleet.task_set import TaskSet
from flows.runtime.iterations.open_iteration import OpenIteration
from flows.runtime.iterations.recorder import IterationRecorder
from flows.runtime.iterations.round import Round
from flows.runtime.notify import notify
from flows.runtime.observers import say
from flows.runtime.scheduling import (
    add_kind,
    count_arithmetic,
    notify_of_prices,
    start_profile,
)
from tasks.body import ONCE
from tasks.runner.completions import Completions
from tasks.setup import count_tokens, restore_state
from tasks.versions import start_state

COUNTED_PROMPTS: Final = 1000
"""Prompts whose tokens are counted: the longest, by characters."""


@flow(**ONCE, name="prepare", flow_run_name="{run_id}-prepare", validate_parameters=False)
def prepare(run_id: str) -> Conductor:
    """Load the model on every worker and give all of them the version to begin with.

    Where workers are lost meanwhile, the others continue.
    """
    run = context_of(run_id)
    while True:
        await_roles(run)
        try:
            with Completions() as completions, TaskSet(run, completions) as task_set:
                _make_ready(run, task_set)
            return _started(run)
        except (
            DevicesLostError,
            StateLostError,
        ):  # reported already; what is left is enough, or waits
            continue


def _started(run: RunContext) -> Conductor:
    """Return a conductor whose devices all have the first version; one that fails has ended."""
    with ExitStack() as unless_started:
        conductor = unless_started.enter_context(Conductor(run))
        with Completions(run.inbox):
            setup = Round(index=-1, prompts=[])
            conductor.start(OpenIteration(setup, IterationRecorder(run, setup), 0))
        unless_started.pop_all()
        return conductor


def _make_ready(run: RunContext, task_set: TaskSet) -> None:
    say("loading the model on the workers")
    if run.progress.checkpoint is None and run.progress.num_resumed:
        # its model has the weights of what was trained, of which version 0 is not to be made
        run.fleet.loads_again(run.fleet.trainer_devices()[0])
    notify_of_prices(run)
    count_arithmetic(run)
    load_models(run, task_set, run.fleet.devices)
    load_pools(run, task_set)
    probe_loaded_rewards(run, task_set)
    notify_of_cut_prompts(run, task_set, (*run.prompts, *run.evaluation_prompts))
    complete_profile(run, task_set)
    make_first_version(run, task_set)


def complete_profile(run: RunContext, task_set: TaskSet) -> None:
    """Have a profile with the costs of all devices, of those too that came since it was begun."""
    profile, devices = run.progress.profile, run.fleet.devices
    if profile is None:
        start_profile(run, measure_costs(run, task_set, devices))
        return
    known = {(own.name, own.kind) for own in profile.devices}
    new = [own for own in devices if (own.name, own.kind) not in known]
    unlike = [own for own in new if own.kind not in profile.costs.kinds]
    measured = measure_costs(run, task_set, unlike) if unlike else {}
    for device in new:
        add_kind(run, device, measured)


def notify_of_cut_prompts(run: RunContext, task_set: TaskSet, prompts: Iterable[Prompt]) -> None:
    """Say, once, if prompts are longer than the model is given; the longest are looked at."""
    if not run.progress.once("prompts-cut"):
        return
    most_images: dict[str, int] = {}
    for prompt in prompts:
        most_images[prompt.text] = max(most_images.get(prompt.text, 0), len(prompt.images))
    texts = sorted(most_images, key=len, reverse=True)[:COUNTED_PROMPTS]
    counting = task_set.submit(
        run.workers.body(count_tokens),
        "count tokens",
        run.fleet.rollout_devices()[0],
        texts,
        [most_images[text] for text in texts],
    )
    task_set.wait()
    if counting.facts.num_cut:
        most = counting.facts.most
        enough = min(most, FAMILIES[run.config.model.family].most_tokens)
        what_stays = ", the most there is" if most > enough else ""
        notify(
            run,
            "prompts-cut",
            f"{counting.facts.num_cut} of the {len(texts)} longest prompts take more tokens than "
            f"model.max_sequence_length ({run.config.model.max_sequence_length}) and are cut; "
            f"the longest takes {most}: set it to {enough}{what_stays}",
        )


def make_first_version(run: RunContext, task_set: TaskSet) -> None:
    """Make the state that training starts from, or take up that of a checkpoint."""
    trainer = run.fleet.trainer_devices()[0]
    if run.progress.checkpoint is not None:
        restore_version(run, task_set, trainer)
    else:
        body = run.workers.body(start_state)
        state = task_set.submit(body, "make version 0", trainer)
        run.progress.first_state(state.future, trainer)
        task_set.wait()
        run.progress.first_version(0, state.facts.hash)
    with run.publishing:
        run.tracker.log_versions(dict(run.progress.hashes))


def restore_version(run: RunContext, task_set: TaskSet, device: str) -> None:
    """Read the run's checkpoint on a device."""
    checkpoint = run.progress.checkpoint
    assert checkpoint is not None
    label = f"restore {checkpoint.name}"
    state = task_set.submit(restore_state, label, device, checkpoint.absolute())
    run.progress.first_state(state.future, device)
    task_set.wait()
    run.progress.first_version(state.facts.version, state.facts.hash)
