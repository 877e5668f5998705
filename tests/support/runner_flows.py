"""Small tasks and helpers for the tests of the task runner."""

import asyncio
import os
import signal
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed import get_worker
from prefect import State, flow, get_client, task
from prefect.client.schemas.filters import FlowRunFilter
from prefect.context import FlowRunContext
from prefect.events.worker import EventsWorker

from tasks.body import body
from tasks.receipts import Denoised, Ran, Sampled, attach
from tasks.runner.running import SECONDS


def run(task_runner: Any, body: Any, *args: Any) -> Any:
    """Run ``body`` as a flow; what cannot be pickled by the stock runner stays out of it."""
    return flow(body, name=body.__name__, task_runner=task_runner)(*args)


def until(check: Any, seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < deadline, f"never came true: {check}"
        time.sleep(0.02)
    return found


def recorded(flow_run_id: Any, num_task_runs: int) -> dict[Any, Any]:
    """Wait until the server knows the end of that many task runs; it lags behind."""

    def read() -> dict[Any, Any] | None:
        flow_run_filter = FlowRunFilter(id={"any_": [flow_run_id]})
        runs = client.read_task_runs(flow_run_filter=flow_run_filter)
        ended = [r for r in runs if r.state and (r.state.is_final() or r.state.name == "NotReady")]
        return {r.id: r for r in ended} if len(ended) == num_task_runs else None

    with get_client(sync_client=True) as client:
        found: dict[Any, Any] = until(read)
        return found


def states_of(task_run_id: Any) -> list[State[Any]]:
    with get_client(sync_client=True) as client:
        return list(client.read_task_run_states(task_run_id))


def flow_run_id() -> Any:
    context = FlowRunContext.get()
    assert context is not None
    assert context.flow_run is not None
    return context.flow_run.id


@dataclass
class Box:
    content: Any


@task
def double(x: int) -> int:
    return 2 * x


@task(task_run_name="add-{x}-to-{y}", tags=["own"])
def add(x: int, y: int) -> int:
    return x + y


@task
def total(nested: dict[str, Any]) -> int:
    return int(nested["one"] + sum(nested["list"][0]) + sum(nested["tuple"]))


@task
def unbox(box: Box) -> Any:
    return box.content


@task
def fail(message: str) -> None:
    raise ValueError(message)


@task
def receive(value: Any) -> Any:
    return value


@task(retries=2)
def flaky(log: Path) -> int:
    with log.open("a") as file:
        file.write("x")
    if (attempts := len(log.read_text())) < 3:
        raise RuntimeError(f"attempt {attempts}")
    return attempts


@task
async def double_later(x: int) -> int:
    await asyncio.sleep(0)
    return 2 * x


@task
def where(_: int = 0) -> str:
    return get_worker().address


@task
def wait_for_file(path: Path) -> None:
    until(path.exists)


@task
def touch(path: Path) -> None:
    path.touch()


@task
def exists(path: Path) -> bool:
    return path.exists()


@body("report", Denoised)
def report(run_id: str, label: str, x: int) -> tuple[int, Denoised]:
    attach(Ran("here", 1.0, 2.0, num_bytes=x))
    return x, Denoised(x, 0.25, [Sampled({0: [0.5, x / 2]})])


class Big:
    pass


@task
def make_big() -> Any:
    big = Big()
    get_worker().weak_big = weakref.ref(big)  # type: ignore[attr-defined]
    return big


@task
def die() -> None:
    time.sleep(SECONDS + 1)  # else the server never hears of this run
    EventsWorker.instance().wait_until_empty()
    os.kill(os.getpid(), signal.SIGKILL)
