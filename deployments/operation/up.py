"""Start and end everything that runs on one machine need, keeping what runs already."""

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from uuid import UUID

from distributed import Client

from deployments.operation import registration
from deployments.operation.access import dask_security, make_access
from deployments.operation.prefect_server import check_home
from deployments.operation.services import (
    DASK,
    MLFLOW,
    PREFECT,
    commands_of,
    environment_of,
    is_ready,
    new_addresses,
    reused_addresses,
    wait_until_ready,
)
from deployments.operation.state import (
    ENVIRONMENT,
    STATE,
    Options,
    Service,
    State,
    end,
    load_state,
    locked,
    start,
    write_privately,
)
from deployments.operation.workers import Worker, named_gpus, workers_of
from deployments.shipped import find_cluster
from digen_core import PYTHON
from digen_core.errors import UserError
from digen_core.planning.clusters.cluster import Cluster
from digen_core.preflight.network import check_database_beside
from tasks.cluster.gpus import visible_gpus
from tasks.cluster.presence import present_workers

PREFECT_TOML = Path("prefect.toml")
PREFECT_WORKER = "prefect-worker"
OURS = "# Made by 'digen up'; 'digen down' removes it.\n"
TRAINING_SECONDS = 4.0  # to end in order: tasks are dropped, MLflow hears of it

_Dealt = tuple[Worker, tuple[str, ...]]  # a worker, and its GPUs as CUDA names them


def up(options: Options, say: Callable[[str], None]) -> State:
    """Start what does not run yet, register the deployments, and return what there is.

    If a part fails, all parts that this call started are ended again.

    Raises:
        UserError: a part does not start, or other options are in force.
    """
    if not Path(options.deployments).is_file():
        raise UserError(
            f"there is no {options.deployments} here; call digen up in the folder of the project, "
            "or name another file by --deployments"
        )
    registration.check_folder()
    cluster = find_cluster(options.cluster)
    here = _here(workers_of(cluster), _visible(cluster)) if options.workers else []
    with locked():
        state = _current(options)
        with _rolled_back(state, say) as starter:
            starter.servers()
            starter.workers(here)
            say(f"registering the deployments of {options.deployments}")
            if PREFECT in {service.name for service in starter.state.services}:
                registration.crash_lost_runs(starter.state.environment)
            registration.register(options.deployments, starter.state.environment)
            starter.prefect_worker()
        return starter.state


def add(cluster: str, say: Callable[[str], None]) -> State:
    """Start more workers beside what is up, those of a cluster file for this machine.

    If one fails, all that this call started are ended again.

    Raises:
        UserError: nothing is up, the file has no worker for this machine, or one does not start.
    """
    with locked():
        state = load_state()
        if state is None or not any(service.process for service in state.services):
            raise UserError("nothing is up in this folder to add workers to; start it by: digen up")
        with _client(state) as client:
            taken = _names(client) | {service.name for service in state.services}
        found = find_cluster(cluster)
        names = {gpu for own in state.services if own.process for gpu in own.gpus}
        visible = _visible(found)
        used = [place for place, gpu in enumerate(visible) if gpu in names]
        here = _here(workers_of(found, taken, used), visible)
        if not here:
            raise UserError(
                f"all workers of {cluster} have hosts; this starts those: "
                f"digen cluster show {cluster} --for ssh"
            )
        with _rolled_back(state, say) as starter:
            starter.workers(here)
        return starter.state


def _visible(cluster: Cluster) -> list[str]:
    """Return the GPUs that this process sees, if a cluster has any: torch takes seconds to tell."""
    return visible_gpus() if any(group.cuda for group in cluster.groups) else []


def _here(workers: Sequence[Worker], visible: Sequence[str]) -> list[_Dealt]:
    """Return the workers of this machine, each with its GPUs of those that are visible."""
    return [(own, named_gpus(own, visible)) for own in workers if own.host is None]


def down(say: Callable[[str], None]) -> int:
    """End what ``up`` started, and nothing else; return the number of processes.

    Raises:
        UserError: the state is damaged, or another command is at work.
    """
    with locked():
        state = load_state()
        if state is None:
            return 0
        running = [service for service in state.services if service.process]
        runs = _runs(state, running)
        if runs is None:
            say("Prefect does not answer; its runs are ended without its knowledge")
        say(f"ending {', '.join(service.name for service in running) or 'nothing: all has ended'}")
        _remove(state, running, runs or ())
        return len(running)


def _current(options: Options) -> State:
    """Return the state to continue from: that of an earlier call, if its parts still run.

    Raises:
        UserError: they run with other options, or MLflow's file cannot be in this folder.
    """
    state, own_toml = load_state(), _is_our_toml()
    if state is not None and any(service.process for service in state.services):
        if state.options != options:
            asked, own = options.model_dump(), state.options.model_dump()
            key = next(key for key in own if own[key] != asked[key])
            raise UserError(
                f"digen is up with {key} {own[key]}, not {asked[key]}; run 'digen down' first"
            )
        return state
    if state is not None:
        _remove(state, [])
    reused = reused_addresses(own_toml=own_toml)
    if MLFLOW not in reused:
        check_database_beside("the folder of the runs is runs", Path("runs"))
    if PREFECT not in reused:
        check_home()
    addresses = new_addresses(options, reused)
    access = make_access(
        options, is_prefect_ours=PREFECT not in reused, is_mlflow_ours=MLFLOW not in reused
    )
    environment = environment_of(addresses, access)
    return State(
        options=options, addresses=addresses, reused=tuple(reused), environment=environment
    )


class _Starter:
    """Starts parts that do not run, and keeps count of them in the state file."""

    def __init__(self, state: State, say: Callable[[str], None]) -> None:
        self.state = state
        self.started: list[Service] = []
        self._say = say
        self._running = {service.name: service for service in state.services if service.process}

    def servers(self) -> None:
        """Start the Prefect server, MLflow and the Dask scheduler, and wait for all of them."""
        state = self.state
        ours = [name for name in (PREFECT, MLFLOW, DASK) if name not in state.reused]
        commands = commands_of(state.options, state.addresses, state.environment)
        self._say_starting(ours)
        for name in ours:
            self._start(name, *commands[name])
        for name in ours:
            wait_until_ready(self._running[name], partial(is_ready, name, state))

    def workers(self, workers: Sequence[_Dealt]) -> None:
        """Start the Dask workers, each with its GPUs, and wait until the scheduler has them."""
        if not workers:
            return
        self._say_starting([worker.name for worker, _ in workers])
        for worker, gpus in workers:
            arguments = worker.arguments(self.state.options.tls)
            # Prefect lets the processes of runs import from this folder, and so are workers to.
            command = [sys.executable, "-m", "tasks.worker.process", *arguments]
            environment = {**self.state.environment, **worker.environment}
            if worker.gpus:
                environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
            self._start(worker.name, command, environment, gpus)
        names = {name for worker, _ in workers for name in worker.names}
        with _client(self.state) as client:
            for worker, _ in workers:
                wait_until_ready(self._running[worker.name], lambda: names <= _names(client))

    def prefect_worker(self) -> None:
        """Start what runs the deployments."""
        self._say_starting([PREFECT_WORKER])
        command = [*PYTHON, "-m", "prefect", "worker", "start"]
        command += ["--pool", registration.POOL, "--type", "process"]
        logging = {"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "INFO"}
        self._start(PREFECT_WORKER, command, {**self.state.environment, **logging})

    def _say_starting(self, names: Sequence[str]) -> None:
        if missing := [name for name in names if name not in self._running]:
            self._say(f"starting {', '.join(missing)}")

    def _start(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        gpus: tuple[str, ...] = (),
    ) -> None:
        if name in self._running:
            return
        service = start(name, command, environment, gpus)
        self.started.append(service)
        self._running[name] = service
        self.state = self.state.with_service(service)
        self.state.save()


def _client(state: State) -> Client:
    security = dask_security(state.options)
    return Client(state.addresses[DASK], security=security, set_as_default=False)


def _names(client: Client) -> set[str]:
    return {worker.name for worker in present_workers(client).values()}


@contextmanager
def _rolled_back(state: State, say: Callable[[str], None]) -> Iterator[_Starter]:
    """Yield what starts parts; whatever it started is ended again if the body fails."""
    starter = _Starter(state, say)
    try:
        yield starter
        _write_prefect_toml(state.environment)
    except BaseException:
        if state.services:
            end(starter.started)
            state.save()  # what ran before still does
        else:
            _remove(state, starter.started)
        raise


def _runs(state: State, running: Sequence[Service]) -> list[UUID] | None:
    """Return the runs of our worker, if Prefect is ours; None: Prefect does not answer."""
    services = {service.name: service for service in running}
    if not {PREFECT, PREFECT_WORKER} <= services.keys():
        return []
    worker = services[PREFECT_WORKER].process
    if worker is None:
        return []
    return registration.runs_of({c.pid for c in worker.children()}, state.environment)


def _remove(state: State, running: Sequence[Service], runs: Collection[UUID] = ()) -> None:
    """End services, tell Prefect that runs of theirs are cancelled, and forget the state."""
    trainings = [service for service in running if service.name == PREFECT_WORKER]
    end(trainings, TRAINING_SECONDS)  # while what they write to is still there
    if runs:
        registration.cancel_runs(runs, state.environment)
    end([service for service in running if service not in trainings])
    for path in (STATE, ENVIRONMENT):
        path.unlink(missing_ok=True)
    if _is_our_toml():
        PREFECT_TOML.unlink()


def _write_prefect_toml(environment: Mapping[str, str]) -> None:
    """Let ``prefect`` and ``digen``, called in this folder, find the server."""
    if PREFECT_TOML.exists() and not _is_our_toml():
        return
    lines = [f'url = "{environment["PREFECT_API_URL"]}"\n']
    if auth := environment.get("PREFECT_API_AUTH_STRING"):
        lines.append(f'auth_string = "{auth}"\n')
    write_privately(PREFECT_TOML, OURS + "[api]\n" + "".join(lines))


def _is_our_toml() -> bool:
    return PREFECT_TOML.exists() and PREFECT_TOML.read_text().startswith(OURS)
