"""What Prefect is told: the queue of one run at a time, and runs whose process is gone."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID, uuid4

import pytest
from prefect import get_client
from prefect.settings import get_current_settings
from prefect.states import Completed, Crashed, Paused, Running, Suspended

from deployments.operation import registration, up
from deployments.operation.prefect_server import set_state as set_state_of
from deployments.operation.registration import POOL, QUEUE
from deployments.operation.state import Service, State
from digen_core.errors import UserError
from support.paths import ROOT


@pytest.fixture
def api(prefect_backend) -> dict[str, str]:
    environment = {"PREFECT_API_URL": get_current_settings().api.url}
    for _ in range(2):  # a second time it finds both
        asyncio.run(registration._make_queue())
    return environment


async def run_of(pid: int):
    """Make a running flow run of the pool, as a Prefect worker would."""
    async with get_client() as client:
        flow = await client.create_flow_from_name(f"f-{uuid4()}")
        deployment = await client.create_deployment(flow, "x", work_pool_name=POOL)
        run = await client.create_flow_run_from_deployment(deployment)
        await client.update_flow_run(run.id, infrastructure_pid=str(pid))
        await client.set_flow_run_state(run.id, Running(), force=True)
        return run.id


async def set_state(run, state):
    async with get_client() as client:
        await client.set_flow_run_state(run, state, force=True)


async def set_process(run, pid: int):
    async with get_client() as client:
        await client.update_flow_run(run, infrastructure_pid=str(pid))


async def process_of(run) -> int:
    async with get_client() as client:
        return int((await client.read_flow_run(run)).infrastructure_pid)


async def states(*runs):
    async with get_client() as client:
        return [(await client.read_flow_run(run)).state.type.value for run in runs]


@pytest.mark.ci
def test_the_queue_takes_one_run_at_a_time(api):
    async def limit():
        async with get_client() as client:
            return (await client.read_work_queue_by_name(QUEUE, POOL)).concurrency_limit

    assert asyncio.run(limit()) == 1


@pytest.fixture
def gone() -> int:
    """The id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.fixture
def alive(api) -> Iterator[UUID]:
    """A run whose process a Prefect worker has started."""
    run = asyncio.run(run_of(0))
    with started(run) as process:
        asyncio.run(set_process(run, process.pid))
        yield run


@contextmanager
def started(run: UUID | None = None) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that goes on until it is not needed any more, of a run or of none."""
    own = {"PREFECT__FLOW_RUN_ID": str(run)} if run else {}
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=os.environ | own) as process:
        yield process
        process.kill()


def test_runs_whose_process_is_gone_are_marked_and_others_are_not(api, gone, alive):
    lost = asyncio.run(run_of(gone))
    registration.crash_lost_runs(api)
    assert asyncio.run(states(lost, alive)) == ["CRASHED", "RUNNING"]


def test_runs_of_ended_processes_are_cancelled_whatever_these_said_at_last(api, gone, alive):
    """Prefect's engine says of itself that it crashed, when it is ended."""
    completed = asyncio.run(run_of(gone))
    assert registration.runs_of({asyncio.run(process_of(alive))}, api) == [alive]
    asyncio.run(set_state(alive, Crashed(message="Execution was aborted by a signal.")))
    asyncio.run(set_state(completed, Completed()))
    registration.cancel_runs([alive, completed], api)
    assert asyncio.run(states(alive, completed)) == ["CANCELLED", "COMPLETED"]


def test_digen_down_cancels_runs_once_their_processes_have_ended(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    worker, server = (
        Service(name=name, pid=1, started=0.0, log="") for name in (up.PREFECT_WORKER, up.PREFECT)
    )
    done, run = [], uuid4()
    monkeypatch.setattr(up, "end", lambda own, seconds=None: done.append([*own]))
    monkeypatch.setattr(registration, "cancel_runs", lambda runs, environment: done.append(runs))
    up._remove(State.model_construct(environment={}), [server, worker], [run])
    assert done == [[worker], [run], [server]]


def test_a_run_that_waits_for_resume_needs_no_process(api, gone):
    """Its process ends at the pause; a `digen up` after it left nothing to resume."""
    suspended, held = asyncio.run(run_of(gone)), asyncio.run(run_of(gone))
    asyncio.run(set_state(suspended, Suspended(message="paused after iteration 3")))
    asyncio.run(set_state(held, Paused()))  # as by digen pause: its process was to go on with it
    registration.crash_lost_runs(api)
    assert asyncio.run(states(suspended, held)) == ["PAUSED", "CRASHED"]


def test_a_process_of_somebody_else_is_not_the_runs(api, alive):
    """Ids are given again, as after a restart of the machine or of a container."""
    with started() as other:
        lost = asyncio.run(run_of(other.pid))
        registration.crash_lost_runs(api)
    assert asyncio.run(states(lost, alive)) == ["CRASHED", "RUNNING"]


def test_a_suspended_run_that_is_resumed_is_started_by_a_worker(api, gone, tmp_path):
    """Without a process it would be taken for running, and hold up the queue for ever."""
    suspended = asyncio.run(run_of(gone))
    asyncio.run(set_state(suspended, Suspended()))
    set_state_of(tmp_path, str(suspended), Running(), "paused")  # as digen pause --off does
    assert asyncio.run(states(suspended)) == ["SCHEDULED"]


@pytest.mark.parametrize("path", ["tasks.py", "flows/__init__.py"])
def test_a_folder_with_packages_of_digens_names_is_refused(path, tmp_path, monkeypatch):
    """Prefect takes the folder that runs happen in for the first place to import from."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flows").mkdir()  # no package: nothing is imported from it
    registration.check_folder()
    (tmp_path / path).touch()
    with pytest.raises(UserError, match=rf"^{path} of this folder .*; call digen up in another"):
        registration.check_folder()
    monkeypatch.chdir(ROOT)
    registration.check_folder()
