"""Launch: open a run's folder, cluster, trackers and context, and close them whatever happens."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from datetime import datetime
from pathlib import Path
from shlex import quote
from typing import Final

from distributed import Client
from prefect import runtime
from prefect.client.orchestration import get_client
from prefect.exceptions import Pause

from digen_core.checkpoints.manifest import LINEAGE_OF_RUN, Lineage
from digen_core.config.load import CONFIG_OF_RUN
from digen_core.config.run import RunConfig
from digen_core.control.protocol import Device
from digen_core.data.prompts import evaluation_prompts, prompts_hash, train_prompts
from digen_core.errors import UserError
from digen_core.gang.degrees import check_gangs_of
from digen_core.inputs.text import number_of
from digen_core.planning.profile import load_profile
from digen_core.transport.files import make_folder, replace_text, sync
from digen_core.transport.metrics import METRICS_OF_RUN
from flows.reopen import go_on, locked, resuming, tracker_of
from flows.runtime.context import RunContext, registered
from flows.runtime.disk import naming_full_disk, naming_lost_folder
from flows.runtime.fleet.fleet import Fleet
from flows.runtime.observers import count, forwarding, observers, say, warn, watching
from flows.runtime.requests import RunCancelledError, following, is_stop
from flows.runtime.scheduling import measured_costs, resolve_layout
from flows.runtime.workload import layout_of
from tasks.cluster.calls import SchedulerLostError
from tasks.cluster.cluster import (
    await_spares,
    devices_of,
    exclusive,
    in_one_role,
    local_devices,
    run_cluster,
)
from tasks.cluster.gpus import sharing, visible_gpus
from tasks.cluster.presence import addresses_of, dismiss, require_pools, workers_of_pools
from tasks.cluster.stopping import stop_tasks
from tasks.runner.prefect_api import one_async_client
from tasks.runner.task_runner import shared_client
from tasks.tracking.also.places import check_places
from tasks.tracking.spool import Spool
from tasks.tracking.tracker import Tracker
from tasks.unanswered import UNANSWERED
from tasks.views.artifacts import RunArtifacts
from tasks.workers import RealWorkers, Workers

GONE: Final = "gone"
"""In place of the address of a worker that was lost since it was listed: a look finds it lost."""


@contextmanager
def open_run(config: RunConfig, folder: Path | None = None) -> Iterator[RunContext]:
    """Yield the context of a new run, or of one that is resumed.

    What was logged and saved stays if the body fails.

    Args:
        config: of the run.
        folder: of the run to resume; None: a new one begins.

    Raises:
        UserError: the config cannot be used, or not to resume that run; or nobody is logged in to a
            place beside MLflow.
    """
    check_places(config)
    with ExitStack() as stack:
        stack.enter_context(naming_full_disk(folder or Path(config.tracking.runs_dir)))
        stack.enter_context(one_async_client())
        resumption = stack.enter_context(resuming(config, folder)) if folder else None
        client, address, devices, config = stack.enter_context(_devices(config))
        run_dir = resumption.run_dir if resumption else stack.enter_context(_new_run(config))
        stack.enter_context(naming_lost_folder(run_dir))
        lineage = resumption.lineage if resumption else None
        run = stack.enter_context(
            run_on(
                client,
                address,
                devices,
                config,
                run_dir,
                run_dir.name,
                RealWorkers(config),
                lineage,
            )
        )
        stack.enter_context(_saying_how_to_resume(run))
        _label_flow_run(run)
        if resumption:
            go_on(run, resumption)
        replace_text(run_dir / LINEAGE_OF_RUN, run.lineage.model_dump_json(indent=2))
        for observer in observers():
            observer.on_open(run_dir)
        yield run


def _label_flow_run(run: RunContext) -> None:
    """Give the run's flow run its name, and tags by which to find it among others."""
    config, before = run.config, runtime.flow_run.tags
    labels = {"digen", run.run_id, config.model.family, config.algorithm.type}
    try:
        with get_client(sync_client=True) as client:
            client.update_flow_run(
                runtime.flow_run.id, name=run.run_id, tags=sorted(labels.union(before))
            )
    except UNANSWERED as error:
        warn(f"Prefect does not show the run by its name: {' '.join(str(error).split())}")


@contextmanager
def _devices(config: RunConfig) -> Iterator[tuple[Client, str, list[Device], RunConfig]]:
    """Yield a client of the cluster, its address, its devices, and the config for them."""
    is_auto, profile = config.schedule.layout == "auto", config.schedule.profile
    costs = load_profile(profile) if profile else None
    colocated = not is_auto and layout_of(config).colocated
    local = local_devices(config.cluster, colocated=is_auto or colocated)
    if config.cluster.address is None:
        names = ", ".join(device.name for device in local)
        say(f"starting {number_of(len(local), 'worker')}: {names}")
        gpus = [] if config.model.device == "cpu" else visible_gpus()
        if shared := sharing(local, gpus):
            say(shared)
    with connected(config, local) as (address, client):
        await_spares(client, say)
        devices = devices_of(client, colocated=colocated)  # before anything is written
        check_gangs_of(config, [device.size for device in devices])
        require_pools(client, config.pools)
        if is_auto:
            costs = costs or measured_costs(config, client, devices)
            config, devices = resolve_layout(config, devices, costs)
        elif not colocated:
            devices = in_one_role(devices, config.cluster, layout_of(config))
        yield client, address, devices, config


@contextmanager
def reopen_run(config: RunConfig, run_dir: Path) -> Iterator[RunContext]:
    """Yield a context on an old run's folder, for evaluation, with one worker of both roles."""
    size = max(config.cluster.rollout_gang, config.cluster.trainer_gang)
    local = [Device("worker-0", frozenset({"rollout", "trainer"}), size=size)]
    if config.cluster.address is None:
        say("starting a worker: worker-0")
    with connected(config, local) as (address, client):
        await_spares(client, say)
        name = f"{run_dir.name}-evaluation"
        devices = devices_of(client)
        with forwarding("tasks.tracking"):
            tracker = Tracker.reopen(config, run_dir, runtime.flow_run.id)
        with run_on(
            client, address, devices, config, run_dir, name, RealWorkers(config), tracker=tracker
        ) as run:
            yield run


@contextmanager
def connected(config: RunConfig, local: list[Device]) -> Iterator[tuple[str, Client]]:
    """Yield address and client of the running cluster, alone on it, or of new local workers.

    What a task made stays on its worker from then on. Dask's memory manager would drop it there if
    another one has fetched it, and with that one the state of the optimizer would be lost.
    """
    cluster = config.cluster

    def on_wait() -> None:
        say(f"waiting: another run uses the cluster at {cluster.address}")

    with (
        run_cluster(cluster, local, count) as address,
        shared_client(address) as client,
        nullcontext() if cluster.address is None else exclusive(client, on_wait),
    ):
        client.amm.stop()
        try:
            yield address, client
        finally:
            if cluster.address is None:  # flow runs whose ends Prefect does not take yet share it
                client.close()


@contextmanager
def run_on(
    client: Client,
    address: str,
    devices: list[Device],
    config: RunConfig,
    run_dir: Path,
    name: str,
    workers: Workers,
    lineage: Lineage | None = None,
    tracker: Tracker | None = None,
    pages: bool = True,
) -> Iterator[RunContext]:
    """Yield the registered context of a run on some devices, tracked in MLflow under ``name``.

    Args:
        client: of the cluster.
        address: of its scheduler.
        devices: to use.
        config: of the run.
        run_dir: folder of the run.
        name: of the run.
        workers: that do its work.
        lineage: of a run that is resumed: MLflow continues it.
        tracker: of a run that is over.
        pages: whether Prefect's pages show the run.
    """
    flow_run_id = runtime.flow_run.id
    if tracker is None:
        tracker = tracker_of(config, name, run_dir, lineage)
    earlier = lineage.flow_run_ids if lineage else ()
    names = [device.name for device in devices]
    with _ended_in(tracker):
        train, evaluation = train_prompts(config), evaluation_prompts(config)
        run = RunContext(
            run_id=name,
            config=config,
            run_dir=run_dir,
            prompts=train,
            evaluation_prompts=evaluation,
            lineage=Lineage(
                run_id=name,
                mlflow_run_id=tracker.mlflow_run_id,
                flow_run_ids=(*earlier, *([flow_run_id] if flow_run_id else [])),
                prompts_hash=prompts_hash(train),
                evaluation_prompts_hash=prompts_hash(evaluation),
            ),
            address=address,
            client=client,
            fleet=Fleet(
                devices=devices,
                addresses=dict.fromkeys(names, GONE) | addresses_of(client, names),
                pools=workers_of_pools(client, config.pools),
            ),
            workers=workers,
            tracker=tracker,
        )
        links = {
            "MLflow": tracker.describe(),
            "Dask": client.dashboard_link,
            "what the devices waited for": f"digen report {quote(str(run_dir))}",
        }
        with (
            _on_pages(config, name, links) if pages else nullcontext(),
            registered(run),
            _stopped_on_errors(run),
            following(run.control, runtime.flow_run.id),
        ):
            yield run


@contextmanager
def _on_pages(config: RunConfig, name: str, links: dict[str, str]) -> Iterator[None]:
    """Show the run on Prefect's pages."""
    with RunArtifacts(config, name, links) as artifacts, watching(artifacts):
        try:
            yield
        except BaseException as error:
            if is_stop(error):
                artifacts.hurry()
            raise


@contextmanager
def _stopped_on_errors(run: RunContext) -> Iterator[None]:
    """Leave no task running when the body fails or is stopped."""
    try:
        yield
    except BaseException:
        names = {device.name for device in run.fleet.devices}.union(*run.fleet.pools.values())
        with suppress(SchedulerLostError):
            present = addresses_of(run.client, names)
            busy = stop_tasks(run.client, list(present.values()))
            leaders = {at for name, at in present.items() if run.fleet.followers.get(name)}
            if run.config.cluster.address is not None:  # else they end with the run
                for address in busy & leaders:  # it may wait half an hour for a member that failed
                    dismiss(run.client, address)
        raise


@contextmanager
def _saying_how_to_resume(run: RunContext) -> Iterator[None]:
    """Say which command resumes a run whose body fails or is stopped, and from where."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, Pause | UserError):  # it continues; or nothing stays of it
            raise
        after = f"after iteration {run.progress.num_kept}"
        how = f"resume it with: digen train --resume {quote(str(run.run_dir))}"
        if isinstance(error, KeyboardInterrupt | RunCancelledError):
            why = f"{str(error) or 'stopped by Ctrl-C or digen cancel'} {after}"
            raise RunCancelledError(f"{why}; {how}") from None
        if isinstance(error, Exception):
            error.add_note(f"{after}; {how}")
        else:
            text = f"terminated {after}; {how}"
            error.add_note(text)
            warn(text)
        raise


@contextmanager
def _ended_in(tracker: Tracker) -> Iterator[None]:
    """Tell MLflow how the run ended, and the observers what MLflow does not take."""
    with forwarding("tasks.tracking"):
        try:
            yield
        except BaseException as error:
            notes = getattr(error, "__notes__", [])  # of a signal they say all
            said = [] if is_stop(error) and notes else [f"{type(error).__name__}: {error}"]
            tracker.finish("KILLED" if is_stop(error) else "FAILED", "; ".join([*said, *notes]))
            raise
        tracker.finish("FINISHED")


@contextmanager
def _new_run(config: RunConfig) -> Iterator[Path]:
    """Yield the folder of a new run; if the config turns out to be wrong, nothing stays of it."""
    run_dir = new_run_dir(config)
    try:
        with locked(run_dir):
            yield run_dir
    except UserError:
        spool = Spool.open(run_dir)
        is_told = spool is None or not spool.num_unsent  # else MLflow still lacks how it ended
        if is_told and not (run_dir / METRICS_OF_RUN).exists():
            shutil.rmtree(run_dir, ignore_errors=True)
        raise


def new_run_dir(config: RunConfig) -> Path:
    """Create the folder of a run, named after it and the time, with the config in it."""
    stem = f"{config.name}-{datetime.now():%Y%m%d-%H%M%S}"
    runs_dir = Path(config.tracking.runs_dir)
    make_folder(runs_dir)
    for suffix in ("", *(f"-{number}" for number in range(2, 100))):
        run_dir = runs_dir / (stem + suffix)
        try:
            run_dir.mkdir()
        except FileExistsError:
            continue
        sync(runs_dir)
        replace_text(run_dir / CONFIG_OF_RUN, config.model_dump_json(indent=2))
        return run_dir
    raise FileExistsError(f"{runs_dir / stem} and 98 more of its name exist already")
