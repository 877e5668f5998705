"""Open a run: its folder, cluster, trackers and session; and close them whatever happens."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from distributed import Client
from prefect import Flow, runtime
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

from digen_core.config import RunConfig
from digen_core.config_file import CONFIG_OF_RUN
from digen_core.control.protocol import Device
from digen_core.data import read_prompts
from digen_core.planning.profile import load_profile
from flows.scheduling import measured_costs, resolve_layout
from flows.session import Session, registered, say, watching
from flows.workload import layout_of
from tasks.artifacts import RunArtifacts
from tasks.cluster import addresses_of, devices_of, local_devices, run_cluster
from tasks.runner import LeanDaskTaskRunner, shared_client
from tasks.tracking import Tracker


@contextmanager
def open_run(config: RunConfig) -> Iterator[Session]:
    """Yield the session of a new run. What was logged and saved stays if the body fails."""
    is_auto, profile = config.schedule.layout == "auto", config.schedule.profile
    costs = load_profile(profile) if profile else None
    colocated = not is_auto and layout_of(config).colocated
    local = local_devices(config.cluster, colocated=is_auto or colocated)
    say(f"starting {len(local)} workers: {', '.join(device.name for device in local)}")
    with run_cluster(config.cluster, local) as address, shared_client(address) as client:
        devices = devices_of(client, colocated=colocated)  # before anything is written
        if is_auto:
            costs = costs or measured_costs(config, client, devices)
            config, devices = resolve_layout(config, devices, costs)
        run_dir = new_run_dir(config)
        with session_on(client, address, devices, config, run_dir, run_dir.name) as session:
            yield session


@contextmanager
def reopen_run(config: RunConfig, run_dir: Path) -> Iterator[Session]:
    """Yield a session on an old run's folder, for evaluation, with one worker of both roles."""
    local = [Device("worker-0", frozenset({"rollout", "trainer"}))]
    with run_cluster(config.cluster, local) as address, shared_client(address) as client:
        name = f"{run_dir.name}-evaluation"
        devices = devices_of(client)
        tracker = Tracker.reopen(config, run_dir, runtime.flow_run.id)
        with session_on(client, address, devices, config, run_dir, name, tracker) as session:
            yield session


@contextmanager
def session_on(
    client: Client,
    address: str,
    devices: list[Device],
    config: RunConfig,
    run_dir: Path,
    name: str,
    tracker: Tracker | None = None,
) -> Iterator[Session]:
    """Yield a registered session on some devices, tracked in MLflow under ``name``.

    An old run goes on with a tracker of its own.
    """
    tracker = tracker or Tracker.start(config, name, run_dir, runtime.flow_run.id)
    session = Session(
        run_id=name,
        config=config,
        run_dir=run_dir,
        prompts=read_prompts(config.prompts.train),
        evaluation_prompts=read_prompts(config.prompts.evaluation),
        address=address,
        client=client,
        devices=devices,
        addresses=addresses_of(client, devices),
        tracker=tracker,
    )
    links = {"MLflow": tracker.describe(), "Dask": client.dashboard_link}
    with (
        _ended_in(tracker),
        RunArtifacts(config, name, links) as artifacts,
        watching(artifacts),
        registered(session),
    ):
        yield session


@contextmanager
def _ended_in(tracker: Tracker) -> Iterator[None]:
    """Tell MLflow how the run ended."""
    try:
        yield
    except BaseException as error:
        tracker.finish("FAILED", f"{type(error).__name__}: {error}")
        raise
    tracker.finish("FINISHED")


def on_cluster(session: Session, subflow: Flow[Any, Any], *arguments: Any) -> Any:
    """Call a subflow whose tasks run on the session's workers.

    The run's own flow sends the heartbeats: the end of a flow waits up to a second for the thread
    that sends its own.
    """
    runner = LeanDaskTaskRunner(session.address)
    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        return subflow.with_options(task_runner=runner)(session.run_id, *arguments)


def new_run_dir(config: RunConfig) -> Path:
    """Create the folder of a run, named after it and the time, with the config in it."""
    stem = f"{config.name}-{datetime.now():%Y%m%d-%H%M%S}"
    runs_dir = Path(config.tracking.runs_dir)
    for suffix in ("", *(f"-{number}" for number in range(2, 100))):
        run_dir = runs_dir / (stem + suffix)
        try:
            run_dir.mkdir(parents=True)
        except FileExistsError:
            continue
        (run_dir / CONFIG_OF_RUN).write_text(config.model_dump_json(indent=2))
        return run_dir
    raise FileExistsError(f"{runs_dir / stem} and 98 more of its name exist already")
