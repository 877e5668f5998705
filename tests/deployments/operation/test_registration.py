"""What Prefect is told: the queue of one run at a time, and runs whose process is gone."""

import asyncio
import os
import subprocess
import sys
from uuid import uuid4

import pytest
from prefect import get_client
from prefect.settings import get_current_settings
from prefect.states import Running

from deployments.operation import registration
from deployments.operation.registration import POOL, QUEUE


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


async def states(*runs):
    async with get_client() as client:
        return [(await client.read_flow_run(run)).state.type.value for run in runs]


def test_the_queue_takes_one_run_at_a_time(api):
    async def limit():
        async with get_client() as client:
            return (await client.read_work_queue_by_name(QUEUE, POOL)).concurrency_limit

    assert asyncio.run(limit()) == 1


def test_runs_whose_process_is_gone_are_marked_and_others_are_not(api):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    lost, alive = asyncio.run(run_of(gone.pid)), asyncio.run(run_of(os.getpid()))
    registration.crash_lost_runs(api)
    assert asyncio.run(states(lost, alive)) == ["CRASHED", "RUNNING"]
    registration.cancel_runs({gone.pid}, api)
    assert asyncio.run(states(lost, alive)) == ["CRASHED", "RUNNING"]
    registration.cancel_runs({os.getpid()}, api)
    assert asyncio.run(states(lost, alive)) == ["CRASHED", "CANCELLED"]
