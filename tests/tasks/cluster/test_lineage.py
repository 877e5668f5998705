"""What Dask's scheduler keeps of a run does not grow with it."""

from functools import partial

import pytest
from dask.utils import key_split
from distributed import Client, Future, Scheduler, Worker, wait

from support.clusters import threads_cluster
from support.waiting import comes_to
from tasks.cluster.lineage import PRELOAD, forget_lineage
from tasks.cluster.listening import TaskWorker

NUM = 20


@pytest.fixture
def client():
    """A client of two workers in this process, whose scheduler is as those of runs."""
    with (
        threads_cluster(
            2, scheduler_kwargs={"preload": [PRELOAD]}, worker_class=TaskWorker
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def known(dask_scheduler: Scheduler) -> set[str]:
    return set(dask_scheduler.tasks)


def kept(dask_scheduler: Scheduler) -> tuple[int, int, int]:
    spans = dask_scheduler.extensions["spans"]
    groups = sum(len(group.dependencies) for group in dask_scheduler.task_groups.values())
    return len(spans.spans) + len(spans.root_spans), key_split.cache_info().currsize, groups


def knows(client: Client, *keys: str) -> bool:
    return comes_to(lambda: client.run_on_scheduler(known) == set(keys))


def stepped(client: Client) -> Future:
    """Make states from gradients, each from the one before; return the last."""
    state = client.submit(int, "0", key="state-0")
    for number in range(1, NUM + 1):
        gradient = client.submit(int, "2", key=f"gradient-{number}")
        state = client.submit(int.__add__, state, gradient, key=f"state-{number}")
        wait(state, 20)
        del gradient
        forget_lineage(client, state)
    return state


def test_a_state_that_is_made_from_the_one_before_keeps_no_other(client):
    state = stepped(client)
    assert state.result(20) == 2 * NUM
    assert knows(client, f"state-{NUM}")
    num_spans, num_cached, num_groups = client.run_on_scheduler(kept)
    assert (num_spans, num_groups) == (0, 0)
    assert num_cached < NUM


def test_what_others_want_stays(client):
    gradient = client.submit(int, "2", key="gradient")
    state = client.submit(int.__add__, gradient, 1, key="state")
    published = client.submit(int.__add__, state, 1, key="published")
    assert published.result(20) == 4
    forget_lineage(client, state)
    assert knows(client, "gradient", "state", "published")
    del gradient
    assert knows(client, "state", "published")
    assert client.submit(int.__add__, state, published, key="both").result(20) == 7


def test_it_is_lost_with_its_worker(client):
    state = client.submit(int.__add__, client.submit(int, "2"), 1, key="state")
    assert state.result(20) == 3
    forget_lineage(client, state)
    assert knows(client, "state")
    (address,) = client.who_has()["state"]
    client.run_on_scheduler(partial(lose, address=address))
    assert comes_to(state.cancelled)
    assert client.submit(int, "3", key="after").result(20) == 3


async def lose(dask_scheduler: Scheduler, address: str) -> None:
    await dask_scheduler.remove_worker(address, stimulus_id="lost", expected=False)


def test_what_is_gone_already_is_no_matter(client):
    state = client.submit(int, "2", key="state")
    state.result(20)
    forget_lineage(client, state)
    state.release()
    forget_lineage(client, state)
    assert knows(client)


def known_by(dask_worker: Worker) -> set[str]:
    return set(dask_worker.state.tasks)


def test_a_worker_forgets_too(client):
    state = stepped(client)
    assert state.result(20) == 2 * NUM
    newest = {f"state-{NUM}"}
    assert comes_to(lambda: set().union(*client.run(known_by).values()) == newest)
