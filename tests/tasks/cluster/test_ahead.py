"""What workers have before they need it, from where they have it, and which copies stay."""

from collections.abc import Iterator
from threading import Event

import pytest
from distributed import Client, Future, Scheduler, SpecCluster, Worker, wait

from support.waiting import comes_to
from tasks.cluster.ahead import PRELOAD
from tasks.cluster.listening import TaskWorker
from tasks.cluster.presence import SITE, addresses_of

WORKERS = ("a0", "b0", "b1", "b2")  # a letter for the site
go_on = Event()  # of this process, in which the workers are


@pytest.fixture
def client() -> Iterator[Client]:
    """A client of workers at two sites, whose scheduler is as those of runs."""
    scheduler = {
        "cls": Scheduler,
        "options": {"dashboard": False, "host": "127.0.0.1", "port": 0, "preload": [PRELOAD]},
    }
    workers = {
        name: {
            "cls": TaskWorker,
            "options": {"nthreads": 1, "resources": {SITE + name[0]: 1}, "memory_limit": 0},
        }
        for name in WORKERS
    }
    go_on.clear()
    with SpecCluster(workers, scheduler) as cluster, Client(cluster) as client:
        client.amm.stop()  # it runs when a test says so
        yield client
        go_on.set()


def holders(client: Client, key: str) -> set[str]:
    """Return the names of the workers that hold a value."""
    names = {address: name for name, address in addresses_of(client, WORKERS).items()}
    return {names[address] for address in client.who_has()[key]}


def sources(dask_worker: Worker) -> list[tuple[str, list[str]]]:
    log = dask_worker.transfer_incoming_log
    return [(entry["who"], [*entry["keys"]]) for entry in log]


def waited() -> bool:
    return go_on.wait(60)


def copied(client: Client, value: Future, *workers: str) -> None:
    """Have workers fetch a value."""
    for name in workers:
        wait(client.submit(len, value, workers=[name], pure=False), 20)


def test_what_is_there_comes_while_something_else_is_made(client):
    value = client.submit(bytes, 1000, key="value", workers=["a0"])
    wait(value, 20)
    before = client.submit(waited, key="before", workers=["b0"])
    after = client.submit(lambda _, own: len(own), before, value, key="after", workers=["b0"])
    assert comes_to(lambda: holders(client, "value") == {"a0", "b0"}, 20)
    assert not before.done()
    go_on.set()
    assert after.result(20) == 1000


def test_it_comes_from_nearby(client):
    addresses = addresses_of(client, WORKERS)
    for number in range(8):  # of two holders Dask takes either
        value = client.submit(bytes, 1000, key=f"value-{number}", workers=["a0"])
        copied(client, value, "b1", "b0")
    (found,) = client.run(sources, workers=[addresses["b0"]]).values()
    assert {who for who, _ in found} == {addresses["b1"]}
    assert sum(len(keys) for _, keys in found) == 8


def test_of_copies_that_nobody_waits_for_one_stays_at_each_site(client):
    value = client.submit(bytes, 1000, key="value", workers=["a0"])
    copied(client, value, "b0", "b1", "b2")
    assert holders(client, "value") == {*WORKERS}
    client.amm.run_once()
    assert comes_to(lambda: len(holders(client, "value")) == 2, 20)
    client.amm.run_once()
    assert sorted(name[0] for name in holders(client, "value")) == ["a", "b"]
