"""Registration with Prefect: the work pool, the queue of one run at a time, the deployments."""

import asyncio
import os
import subprocess
from collections.abc import Collection, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import UUID

import psutil
from httpx import HTTPError
from prefect import get_client
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import FlowRunFilter, WorkPoolFilter
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectAlreadyExists
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
from prefect.states import Cancelled, Crashed, State
from prefect.workers.process import ProcessWorker

from deployments.operation.state import FOLDER
from digen_core import PYTHON
from digen_core.errors import UserError

POOL, QUEUE = "digen", "cluster"
PACKAGES: Final = ("deployments", "digen_core", "flows", "tasks")
UNDER_WAY = {"state": {"type": {"any_": ["RUNNING", "PENDING", "PAUSED", "CANCELLING"]}}}
DEPLOY_SECONDS = 300.0
OWN_RUN = "PREFECT__FLOW_RUN_ID"  # variable by which a Prefect worker tells a process its run
CANCEL_SECONDS = 2.0  # for Prefect to be asked which runs end, and notified that they did

T = TypeVar("T")


def check_folder() -> None:
    """Check that this folder has no packages with names of digen's: Prefect looks in it first.

    Raises:
        UserError: it has one, and is not the folder of digen itself.
    """
    for name in PACKAGES:
        own = Path(str(import_module(name).__file__))
        for path in (Path(name, "__init__.py"), Path(f"{name}.py")):
            if path.exists() and path.resolve() != own.resolve():
                raise UserError(
                    f"{path} of this folder has the name of a package of digen, and Prefect would "
                    "import it in place of that; call digen up in another folder"
                )


def register(deployments: str, environment: Mapping[str, str]) -> None:
    """Make the work pool and its queue, and register the deployments of a file.

    Args:
        deployments: path of a file like deployments/prefect.yaml.
        environment: by which Prefect's server is reached.

    Raises:
        UserError: Prefect refuses the file; the message names the log.
    """
    with _at(environment):
        asyncio.run(_make_queue())
    log = FOLDER / "prefect-deploy.log"
    command = [*PYTHON, "-m", "prefect", "--no-prompt", "deploy"]
    with log.open("wb") as file:
        made = subprocess.run(
            [*command, "--prefect-file", deployments, "--all"],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            # Runs happen in PWD (prefect.yaml), which only shells keep up to date.
            env={**os.environ, **environment, "PWD": os.getcwd()},
            timeout=DEPLOY_SECONDS,
        )
    if made.returncode:
        raise UserError(f"Prefect did not take the deployments of {deployments}; see {log}")


async def _make_queue() -> None:
    template = ProcessWorker.get_default_base_job_template()
    pool = WorkPoolCreate(name=POOL, type="process", base_job_template=template)
    async with get_client() as client:
        with suppress(ObjectAlreadyExists):
            await client.create_work_pool(pool)
        try:
            await client.create_work_queue(QUEUE, work_pool_name=POOL, concurrency_limit=1)
        except ObjectAlreadyExists:
            queue = await client.read_work_queue_by_name(QUEUE, work_pool_name=POOL)
            await client.update_work_queue(queue.id, concurrency_limit=1)


def crash_lost_runs(environment: Mapping[str, str]) -> None:
    """Mark runs whose process is gone: they would block the queue for ever.

    One that was suspended has no process, by design: a Prefect worker starts it again.
    """
    state: State[Any] = Crashed(message="The process of this run is gone.")

    def is_lost(run: FlowRun, pid: int) -> bool:
        is_suspended = run.state is not None and bool(run.state.state_details.pause_reschedule)
        return not (is_suspended or _is_of(pid, run))

    async def crash() -> None:
        async with get_client() as client:
            lost = [run.id for run, pid in await _with_process(client) if is_lost(run, pid)]
            await _end(client, lost, state)

    with _at(environment):
        asyncio.run(crash())


def _is_of(pid: int, run: FlowRun) -> bool:
    """Say whether a process is that of a run: after a restart another one may have its id."""
    try:
        return psutil.Process(pid).environ().get(OWN_RUN) == str(run.id)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:  # of another user: nobody knows
        return True


def runs_of(processes: Collection[int], environment: Mapping[str, str]) -> list[UUID] | None:
    """Return the runs of some processes; None: Prefect did not answer in time."""

    async def read() -> list[UUID]:
        async with get_client() as client:
            return [run.id for run, pid in await _with_process(client) if pid in processes]

    return _in_time(read(), environment)


def cancel_runs(runs: Collection[UUID], environment: Mapping[str, str]) -> None:
    """Mark runs as cancelled whose processes were ended, as far as Prefect answers in time.

    Afterwards, as a process that is ended says of its run that it crashed.
    """
    state: State[Any] = Cancelled(message="digen down ended the process of this run.")
    ended = {"type": {"any_": [*UNDER_WAY["state"]["type"]["any_"], "CRASHED"]}}
    meant = {"id": {"any_": [*runs]}, "state": ended}

    async def cancel() -> None:
        async with get_client() as client:
            found = FlowRunFilter.model_validate(meant)
            incomplete = await client.read_flow_runs(flow_run_filter=found)
            await _end(client, [run.id for run in incomplete], state)

    _in_time(cancel(), environment)


def _in_time(asking: Coroutine[Any, Any, T], environment: Mapping[str, str]) -> T | None:
    """Return what Prefect answers; None: it takes too long, or cannot be reached."""
    with _at(environment):
        try:
            return asyncio.run(asyncio.wait_for(asking, CANCEL_SECONDS))
        except (TimeoutError, HTTPError):
            return None


async def _with_process(client: PrefectClient) -> list[tuple[FlowRun, int]]:
    """Return the runs of our pool that are under way and have a process, with its id."""
    runs = await client.read_flow_runs(
        flow_run_filter=FlowRunFilter.model_validate(UNDER_WAY),
        work_pool_filter=WorkPoolFilter.model_validate({"name": {"any_": [POOL]}}),
    )
    pids = [(run, run.infrastructure_pid or "") for run in runs]
    return [(run, int(pid)) for run, pid in pids if pid.isdecimal()]


async def _end(client: PrefectClient, runs: list[UUID], state: State[None]) -> None:
    """Set the state of runs, and of what is under way inside of them."""
    if not runs:
        return
    inner = FlowRunFilter.model_validate(UNDER_WAY | {"parent_flow_run_id": {"any_": runs}})
    inside = [run.id for run in await client.read_flow_runs(flow_run_filter=inner)]
    for run in [*runs, *inside]:
        await client.set_flow_run_state(run, state, force=True)


@contextmanager
def _at(environment: Mapping[str, str]) -> Iterator[None]:
    """Talk to the Prefect server that the environment names."""
    settings = {
        PREFECT_API_URL: environment["PREFECT_API_URL"],
        PREFECT_API_AUTH_STRING: environment.get("PREFECT_API_AUTH_STRING"),
    }
    with temporary_settings(settings):
        yield
