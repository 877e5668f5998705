"""Loading: models on devices, rewards on pools, and what work costs where it is not known."""

from collections.abc import Iterable, Sequence

from digen_core.config.rewards import forms_of
from digen_core.control.protocol import Device, Role
from digen_core.data.prompts import SizedPrompt
from digen_core.planning.profile import Measured
from digen_core.planning.sizes import cost_of_default
from digen_core.preflight.reward_probe import NUM_SAMPLES
from flows.runtime.context import RunContext
from flows.runtime.fleet.folders import require_folder
from flows.runtime.fleet.task_set import Submitted, TaskSet
from flows.runtime.notify import notify
from flows.runtime.observers import count, say
from flows.runtime.workload import layout_of
from tasks.cluster.calls import WorkerLostError
from tasks.cluster.presence import Presence, present_workers
from tasks.cluster.spares import take_out
from tasks.gang.forming import form_gang, unfit_spares
from tasks.measure import measure
from tasks.receipts import Facts, FactsT_co, ProbedRewards
from tasks.rollout import encode
from tasks.score import Pool, load_rewards, make_up_latents, probe_rewards
from tasks.setup import load_model


def load_models(run: RunContext, task_set: TaskSet, devices: Iterable[Device]) -> None:
    """Load the model on the workers of some devices, save those that hold it already.

    Raises:
        UserError: a worker cannot load it, or does not see the folder into which it is to write.
    """
    loading: dict[Submitted[Facts], str] = {}
    for device in devices:
        if not run.fleet.holds_model(device):
            _form(run, device)
            require_folder(run, device)
            label, roles = f"load model on {device.name}", roles_of(run, device)
            body = run.workers.body(load_model)
            submitted = task_set.submit(body, label, device.name, run.config, device.name, roles)
            loading[submitted] = run.fleet.addresses[device.name]
    total = len(loading)
    while loading:
        count(total - len(loading), total)
        run.fleet.has_loaded(loading.pop(task_set.next()))


def _form(run: RunContext, device: Device) -> None:
    """Make the workers of a device a gang; if one is gone, the next look finds the device lost."""
    if device.size == 1:
        return
    address, silence = run.fleet.addresses[device.name], run.config.cluster.heartbeat_timeout
    leader = _with_fit_spares(run, address, silence)
    if leader is None or leader.lacks:
        lacks = ", ".join(leader.lacks) if leader else "its leader"
        return run.watch.broken(address, f"is a gang that lacks {lacks}")
    run.fleet.formed(device.name, leader.followers)
    for place, spare in leader.spares.items():
        notify(
            run,
            "spare-used",
            f"the spare {spare} ({leader.followers[place]}) has the place of {place} in the gang "
            f"{device.name}",
        )
    try:
        form_gang(run.client, address, list(leader.followers.values()), silence)
    except WorkerLostError as error:
        run.watch.broken(address, f"is a gang that could not be formed: {error}")


def _with_fit_spares(run: RunContext, address: str, silence: float) -> Presence | None:
    """Return the leader at an address, if it is there, with spares that can be members.

    Those that cannot are left out, and others that are there have their places.
    """
    while True:
        leader = present_workers(run.client).get(address)
        if leader is None or leader.lacks or not leader.spares:
            return leader
        members = [address, *leader.followers.values()]
        places = {leader.followers[place]: name for place, name in leader.spares.items()}
        unfit = unfit_spares(run.client, members, places, silence)
        if not unfit:
            return leader
        for spare, why in unfit.items():
            take_out(run.client, spare, leader.name)
            notify(
                run,
                "spare-unfit",
                f"the spare {places[spare]} is left out of the gang {leader.name} until it is "
                f"started again: {why}",
            )


def load_pools(run: RunContext, task_set: TaskSet) -> None:
    """Load what they score with on the workers of the pools.

    One that is lost meanwhile is not waited for: who takes its place loads before it scores.
    """
    loading = [
        task_set.submit(load_rewards, f"load rewards on {worker.name}", worker.address, pool)
        for pool, worker in _workers_of_pools(run)
    ]
    if task_set.num_pending:
        say("loading the rewards on their workers")
    task_set.wait(counted=True)
    _tell_of_lost(run, loading)


def probe_loaded_rewards(run: RunContext, task_set: TaskSet) -> None:
    """Call the rewards that only workers can make once on each of their workers.

    One of a pool that is lost meanwhile is not waited for.
    """
    config = run.config
    probing: list[Submitted[ProbedRewards]] = []
    places: list[tuple[str, str, Pool | None]] = [
        *((name, name, None) for name in run.fleet.rollout_devices()),
        *((worker.name, worker.address, pool) for pool, worker in _workers_of_pools(run)),
    ]
    asked = [
        (name, where, pool, run.workers.probed_rewards(pool.name if pool else None))
        for name, where, pool in places
    ]
    latents = None
    if any("latents" in forms_of(rewards) for *_, rewards in asked):
        maker = run.fleet.rollout_devices()[0]
        latents = task_set.submit(make_up_latents, f"make up latents on {maker}", maker).future
    for name, where, pool, rewards in asked:
        if rewards:
            submitted = task_set.submit(
                probe_rewards,
                f"probe rewards on {name}",
                where,
                model=config.model,
                rewards=rewards,
                pool=pool,
                prompts=run.prompts[:NUM_SAMPLES],
                latents=latents,
            )
            probing.append(submitted)
    task_set.wait()
    _tell_of_lost(run, probing)
    ended = [submitted for submitted in probing if submitted.receipt is not None]
    for note in (note for submitted in ended for note in submitted.facts.notes):
        notify(run, "reward-failed", note)


def _tell_of_lost(run: RunContext, submitted: Sequence[Submitted[FactsT_co]]) -> None:
    """Say of which workers of pools tasks are not waited for."""
    for task in submitted:
        if task.receipt is None:
            notify(
                run,
                "worker-lost",
                f"the worker ({task.where}) was lost that was told: {task.label}; the run goes on "
                "with who takes its place. See its log, and the memory of its machine",
            )


def _workers_of_pools(run: RunContext) -> list[tuple[Pool, Presence]]:
    """Return the workers of each pool that are there now; a pool without any is looked after."""
    pools = Pool.all_of(run.config)
    workers = present_workers(run.client).values() if pools else ()
    return [(pool, own) for pool in pools for own in workers if pool.name in own.resources]


def roles_of(run: RunContext, device: Device) -> list[Role]:
    """Return the roles whose work a device may do: those of others too, if it may help them.

    Plans have nobody help where there is no memory for both.
    """
    layout, schedule, roles = layout_of(run.config), run.config.schedule, set(device.roles)
    if layout.trainers_help and schedule.num_helpers != 0:
        roles.add("rollout")
    if layout.rollouts_train and schedule.num_assistants != 0:
        roles.add("trainer")
    return sorted(roles)


def measure_costs(
    run: RunContext, task_set: TaskSet, devices: Sequence[Device]
) -> dict[Device, Measured]:
    """Measure the work of devices, unless its costs are fixed, or nobody is left who encodes.

    Args:
        run: its context.
        task_set: of the flow run.
        devices: that hold the model. One that generates, or another of the run, encodes for all.
    """
    generating = [device.name for device in devices if "rollout" in roles_of(run, device)]
    encoders = [*generating, *run.fleet.rollout_devices()]
    if run.workers.fixed_costs is not None or not encoders:
        return {}
    compiling = "compiling the model and measuring it; compiling may take minutes"
    say(compiling if run.config.model.compile else "measuring what work costs")
    prompt = SizedPrompt(run.prompts[0], run.config.model.size)
    condition = task_set.submit(encode, "encode for measuring", encoders[0], [prompt.shown]).future
    measuring = {
        device: task_set.submit(
            measure,
            f"measure {device.name}",
            device.name,
            condition,
            prompt.key,
            roles_of(run, device),
        )
        for device in devices
    }
    task_set.wait(counted=True)
    cost = cost_of_default(run.config.model, len(run.prompts[0].images))
    return {
        device: submitted.facts.measured.of_mean_size(cost)
        for device, submitted in measuring.items()
    }
