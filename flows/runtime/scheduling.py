"""Costs of work and predicted seconds of an iteration: before the run, and after each iteration.

``layout = "auto"`` is resolved here, before the model is loaded: a worker keeps several versions
only in layouts with stale groups.
"""

import json
from collections.abc import Mapping, Sequence
from threading import Thread

from distributed import Client

from digen_core.config.run import RunConfig
from digen_core.control.costs import Costs, Sent
from digen_core.control.protocol import CostsUpdated, Device
from digen_core.control.schedule import Schedule, Workload
from digen_core.data.prompts import prompts_with_steps, train_prompts
from digen_core.errors import UserError
from digen_core.models.families import adapter_of
from digen_core.planning.job import Job, costs_for
from digen_core.planning.model_settings import settings_folder
from digen_core.planning.planner import JobPlan, Leeway, plan_job
from digen_core.planning.predict import fastest_mixing, predicted_seconds
from digen_core.planning.profile import Measured, Profile, costs_of, load_profile, with_kinds
from digen_core.planning.search import MIN_GAIN
from digen_core.planning.sizes import cost_of_default, of_samples, sent_of, sizes_of
from digen_core.records import Crossing, Span
from digen_core.trace.peaks import processor_in
from digen_core.trace.prediction import SCHEDULE_OF_RUN
from digen_core.trace.prices import price_of
from digen_core.trace.utilization import Arithmetic, peaks_of
from digen_core.transport.files import replace_text
from flows.runtime.context import RunContext
from flows.runtime.fleet.measuring import measure_devices
from flows.runtime.observers import say, warn
from flows.runtime.workload import next_workload, schedule_of


def measured_costs(config: RunConfig, client: Client, devices: Sequence[Device]) -> Costs:
    """Load the model on one device of each kind and measure it there, for lack of a profile.

    Raises:
        UserError: the model cannot be loaded.
        WorkerLostError: one of them is lost again and again, or did not come back in time.
    """
    firsts = list({device.kind: device for device in reversed(devices)}.values())
    how = (
        "compiling, which may take minutes, and measuring" if config.model.compile else "measuring"
    )
    say(f"{how} the model on {', '.join(d.name for d in firsts)} to choose the layout")
    prompt = train_prompts(config)[0].shown_in(config.model.size)
    found = measure_devices(client, config, firsts, prompt)
    cost = cost_of_default(config.model, len(prompt.images))
    measured = {device: own.of_mean_size(cost) for device, own in found.items()}
    return _as_measured(config, costs_of(measured))


def _as_measured(config: RunConfig, costs: Costs) -> Costs:
    """Return costs that say with whom those of asking the reference policy were measured."""
    return costs.model_copy(update={"reference": config.who_asks_reference})


def resolve_layout(
    config: RunConfig, devices: Sequence[Device], costs: Costs
) -> tuple[RunConfig, list[Device]]:
    """Return the config with the layout that is predicted to be the fastest, and devices' roles.

    Never one that is predicted to be slower than colocated-strong, where all devices may do both.

    Args:
        config: of the run; stale groups only up to its schedule.max_stale_share.
        devices: with the roles that they may have.
        costs: what work costs.

    Raises:
        UserError: the devices can do none of the layouts.
    """
    ways = [config]
    if config.reference_is_open:
        ways = [config.asking("training"), config.asking("generation")]
    job = tuple(devices), with_kinds(costs, devices), prompts_with_steps(config)
    plans = [(plan_job(Job.of(own, *job), Leeway.of(own))[0], own) for own in ways]
    best, config = min(plans, key=_worth)
    choice = best.plan.choice
    asks = "; the reference policy is asked in generation" if config.generates_reference else ""
    say(f"layout auto: {choice.layout}, predicted to take {best.seconds:.3g} s an iteration{asks}")
    resolved = {
        "layout": choice.layout,
        "helpers": choice.helpers,
        "assistants": choice.assistants,
        "max_stale_share": choice.stale_share,
        "max_stale_clipped": config.schedule.max_stale_clipped if choice.stale_share else None,
        "max_staleness": choice.max_staleness,
    }
    schedule = config.schedule.model_copy(update=resolved)
    chosen = config.model_copy(update={"schedule": schedule})
    return chosen, list(best.job.cluster(choice.num_rollout))


def _worth(planned: tuple[JobPlan, RunConfig]) -> float:
    """Return a plan's seconds, made longer by what another way to ask has to gain."""
    plan, config = planned
    return plan.seconds * (1 + MIN_GAIN * config.generates_reference)


def start_profile(run: RunContext, measured: dict[Device, Measured]) -> None:
    """Begin with the costs of the config's profile, or those that were measured."""
    config = run.config
    if run.workers.fixed_costs is not None:
        costs = run.workers.fixed_costs
    elif config.schedule.profile:
        costs = costs_for(config, load_profile(config.schedule.profile))
    else:
        costs = _as_measured(config, costs_of(measured))
    if run.workers.fixed_costs is None and len({own.site for own in run.fleet.devices}) > 1:
        costs = costs.model_copy(update={"sent": _sent(config).as_seen(costs.sent)})
    profile = Profile(with_kinds(costs, run.fleet.devices), list(run.fleet.devices))
    size = config.batch_size
    step_seconds = max(kind.step(size) for kind in profile.costs.kinds.values())
    run.progress.measured(profile, step_seconds)
    if _can_train(run):
        run.progress.mixes(fastest_mixing(*_job_of(run)))
    keep_prediction(run)


def notify_of_prices(run: RunContext) -> None:
    """Say, once, which devices have no price of their own, and which prices no device has."""
    prices = run.config.cluster.price_per_hour
    here = {processor_in(device.kind) for device in run.fleet.devices}
    if not prices or here == prices.keys() or not run.progress.once("prices"):
        return
    if unpriced := sorted(here - prices.keys()):
        warn(
            f"cluster.price_per_hour has no price of {', '.join(unpriced)}, which counts as "
            f"{price_of(prices, unpriced[0]):g} an hour, the most that is named"
        )
    if unused := sorted(prices.keys() - here):
        warn(f"cluster.price_per_hour names {', '.join(unused)}, which no device of the run is")


def arithmetic_of(config: RunConfig) -> Arithmetic:
    """Count the FLOPs of a model's work, of items of mean cost.

    Raises:
        UserError: its settings are not here, or do not fit the config; or steps of a sample differ.
        OSError: likewise.
    """
    model = config.model
    kind, scales = adapter_of(model.family), [*model.guidance_scales]
    scales += [] if model.guidance_scale_2 is None else [model.guidance_scale_2]
    if kind.uses_cfg and min(scales) <= kind.guides_above < max(scales):
        raise UserError("some steps have guidance, and take twice as much as others")
    sizes = of_samples(sizes_of(config, settings_folder(config.model.path)), config)
    return Arithmetic(sizes.step_flops, sizes.pair_flops, sizes.decode_flops)


def count_arithmetic(run: RunContext) -> None:
    """Count the FLOPs of the model's work beside what the run does, if they are of use.

    They are where the peaks of all devices are known. Of a large model it takes some 20 s.
    """
    if run.workers.fixed_costs is not None or peaks_of(run.fleet.devices) is None:
        return

    def count() -> None:
        try:
            run.progress.counted(arithmetic_of(run.config))
        except Exception as error:  # whatever it is, a run does without
            warn(f"what share of their peaks the devices reach is not told: {error}")

    if run.progress.once("arithmetic"):
        Thread(target=count, name="count arithmetic", daemon=True).start()


def _sent(config: RunConfig) -> Sent:
    """Count what devices send each other, which links between sites take time for.

    Of a model whose settings are not here a run can do without: its predictions leave links out.
    """
    try:
        return sent_of(config, sizes_of(config, settings_folder(config.model.path)))
    except (UserError, OSError) as error:
        say(f"what crosses links between sites is not predicted: {error}")
        return Sent()


def add_kind(run: RunContext, device: Device, measured: Mapping[Device, Measured]) -> Costs:
    """Return what work costs, with the kind of a device that joined."""
    assert run.progress.profile is not None
    with run.learning:
        return run.progress.profile.add(device, measured)


def learn_costs(run: RunContext, spans: Sequence[Span], crossings: Sequence[Crossing] = ()) -> None:
    """Learn from an iteration what work costs, notify the conductor, and predict the next one."""
    if run.progress.profile is None or run.workers.fixed_costs is not None:
        return
    with run.publishing:
        with run.learning:
            costs = run.progress.profile.learn(spans, crossings)
        run.progress.profile.save(run.run_dir)
        keep_prediction(run)
    run.inbox.put(CostsUpdated(costs))


def keep_prediction(run: RunContext) -> None:
    """Write what the schedule is, and how long an iteration is predicted to take with it."""
    config, schedule = run.config, schedule_of(run.config)
    if not _can_train(run):
        return
    mixing = run.progress.mixing
    seconds = predicted_seconds(*_job_of(run), mixing)
    split = [len(run.fleet.rollout_devices()), len(run.fleet.trainer_devices())]
    tree = {
        "layout": schedule.layout.name,
        "split": None if schedule.layout.colocated else split,
        "helpers": config.schedule.helpers,
        "assistants": config.schedule.assistants,
        "max_stale_share": schedule.max_stale_share,
        "group_order": mixing.order,
        "cuts_by_cost": mixing.cuts,
        "predicted_seconds": seconds,  # of the next iteration
    }
    replace_text(run.run_dir / SCHEDULE_OF_RUN, json.dumps(tree, indent=2))


def _can_train(run: RunContext) -> bool:
    """Say whether both roles are there; else the run waits for workers."""
    return bool(run.fleet.rollout_devices() and run.fleet.trainer_devices())


def _job_of(run: RunContext) -> tuple[Sequence[Device], Workload, Schedule, Costs, int]:
    """Return what an iteration of a run is predicted from."""
    return (
        run.fleet.devices,
        next_workload(run),
        schedule_of(run.config),
        run.progress.known_costs,
        run.config.num_trained_steps,
    )
