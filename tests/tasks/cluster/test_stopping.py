"""Stopping the tasks of a run."""

import logging
import time
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from uuid import uuid4

import httpx
import pytest
from distributed import Client, Scheduler
from prefect.exceptions import PrefectHTTPStatusError

from support.clusters import threads_cluster
from support.waiting import comes_to
from tasks.cluster import stopping
from tasks.cluster.stopping import executed, stop_tasks


@pytest.fixture
def client():
    """A client of one worker in this process."""
    with threads_cluster() as cluster, Client(cluster) as client:
        yield client


def address_of(client: Client) -> str:
    (address,) = client.scheduler_info()["workers"]
    return address


def all_known(dask_scheduler: Scheduler) -> bool:
    return len(dask_scheduler.tasks) == 3


def test_tasks_that_wait_for_one_that_was_let_go_of_are_dropped(client, caplog):
    """The scheduler keeps the connection, and says nothing."""
    first = client.submit(time.sleep, 0.5, key="first")
    between = client.submit(bool, first, key="between")
    last = client.submit(bool, between, key="last")
    assert comes_to(partial(client.run_on_scheduler, all_known))
    between.release()
    del between
    stop_tasks(client, [address_of(client)])
    assert first.cancelled()
    assert last.cancelled()
    assert client.submit(int, "3", key="after").result(20) == 3
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


def test_who_still_executes_a_task_is_told_and_the_task_is_marked(client, monkeypatch):
    marked, run = [], uuid4()
    monkeypatch.setattr(stopping, "_mark", marked.extend)
    monkeypatch.setattr(stopping, "TASK_SECONDS", 0.5)
    address, key = address_of(client), f"denoise-{run}"
    running = client.submit(time.sleep, 5, key=key)
    assert comes_to(lambda: client.run(executed) == {address: [key]})
    assert stop_tasks(client, [address]) == {address}
    assert marked == [run]
    assert running.cancelled()
    monkeypatch.setattr(stopping, "TASK_SECONDS", 30)
    assert stop_tasks(client, [address]) == set()


def test_a_run_ends_as_it_would_where_a_proxy_answers_for_prefects_server(
    client, monkeypatch, caplog
):
    def answer(task_run_ids):
        raise ValueError("<html> is no answer")

    monkeypatch.setattr(stopping, "_mark", answer)
    monkeypatch.setattr(stopping, "TASK_SECONDS", 0.5)
    address, key = address_of(client), f"denoise-{uuid4()}"
    running = client.submit(time.sleep, 5, key=key)
    assert comes_to(lambda: client.run(executed) == {address: [key]})
    assert stop_tasks(client, [address]) == {address}
    assert "Prefect was not told of 1 tasks" in caplog.text
    monkeypatch.setattr(stopping, "TASK_SECONDS", 30)
    assert stop_tasks(client, [address]) == set()
    assert running.cancelled()


def test_a_task_that_prefect_has_not_heard_of_hinders_the_mark_of_no_other(monkeypatch):
    marked, runs = [], [uuid4(), uuid4(), uuid4()]

    def set_task_run_state(task_run_id, state, force):
        if task_run_id == runs[0]:
            request = httpx.Request("POST", "http://prefect/api")
            answer = httpx.Response(404, request=request)
            raise PrefectHTTPStatusError("not found", request=request, response=answer)
        marked.append(task_run_id)

    client = SimpleNamespace(set_task_run_state=set_task_run_state)
    monkeypatch.setattr(stopping, "get_client", lambda **_: nullcontext(client))
    stopping._mark(runs)
    assert marked == runs[1:]
