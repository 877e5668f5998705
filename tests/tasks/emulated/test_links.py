"""Links between emulated devices: queues by hand, and values that Dask's workers fetch."""

from time import time

import pytest
from dask.sizeof import sizeof
from distributed import Client, Future, Scheduler, SpecCluster, Worker, wait
from prefect.states import Completed

from digen_core.control.costs import Link
from tasks.cluster.listening import TaskWorker
from tasks.cluster.presence import addresses_of
from tasks.emulated.links import EmulatedLinks, EmulatedValue
from tasks.receipts import Received
from tasks.worker.transfers import sent_bytes

LINKS = (
    Link(between=("a", "b"), bytes_per_second=100.0, latency=0.25),
    Link(between=("b", "c"), bytes_per_second=10.0),
)
SITES = {"near": "a", "far": "b", "off": "b", "lone": "c", "alone": "d"}


@pytest.fixture
def links(tmp_path) -> EmulatedLinks:
    return EmulatedLinks(LINKS, SITES, tmp_path / "links")


def test_each_way_of_a_link_is_a_queue_for_all_processes(links, tmp_path, monkeypatch):
    monkeypatch.setattr("tasks.emulated.links.time", lambda: 1000.0)
    assert links.pull(["far"], "near", 100) == [Received("far", 100, 1000.0, 1001.25)]
    others = EmulatedLinks(LINKS, SITES, tmp_path / "links")
    assert others.pull(["off"], "near", 50) == [Received("off", 50, 1000.0, 1001.75)]
    (back,) = links.pull(["near"], "far", 50)
    assert back.ended == 1000.75, "the other way is free"
    (other,) = links.pull(["far"], "lone", 10)
    assert other.ended == 1001.0, "so is the other link"


def test_several_come_one_after_the_other_and_those_nearby_at_once(links):
    first, second = links.pull(["far", "off", "near"], "near", 50)
    assert second.ended - first.ended == pytest.approx(0.5)
    assert links.pull(["off"], "far", 50) == []
    assert links.pull(["near"], "alone", 50) == [], "where there is no link bytes take no time"


def test_a_value_counts_what_the_real_one_has():
    state = Completed(data={"a": EmulatedValue(5e6, "a")})
    assert 5e6 < sent_bytes(state) == sizeof(state) < 5.01e6


WORKERS = {"maker": "a", "copier": "a", "asker": "b", "other": "b", "scorer": ""}


@pytest.fixture
def crossed(monkeypatch):
    """The ways of links that something was put into the queue of."""
    found, arrival = [], EmulatedLinks._arrival

    def noted(links, way, num_bytes):
        found.append(way)
        return arrival(links, way, num_bytes)

    monkeypatch.setattr(EmulatedLinks, "_arrival", noted)
    return found


@pytest.fixture
def client(tmp_path):
    """A client of workers at two sites, and of one at none."""
    options = {"nthreads": 1, "memory_limit": 0}
    workers = {name: {"cls": TaskWorker, "options": options} for name in WORKERS}
    scheduler = {"dashboard": False, "host": "127.0.0.1", "port": 0}
    with (
        SpecCluster(workers, {"cls": Scheduler, "options": scheduler}) as cluster,
        Client(cluster) as client,
    ):
        addresses = addresses_of(client, WORKERS)
        sites = {addresses[name]: site for name, site in WORKERS.items() if site}
        links = EmulatedLinks(LINKS, sites, tmp_path / "links")

        def slow(dask_worker: Worker) -> None:
            links.slow_down(dask_worker)

        client.run(slow)
        yield client


def made(real_bytes: float, site: str) -> object:
    return Completed(data=EmulatedValue(real_bytes, site))


def seconds_to_fetch(client: Client, value: Future, worker: str) -> float:
    """Return how long a worker takes to have a value."""
    began = time()
    wait(client.submit(type, value, workers=[worker], pure=False), 20)
    return time() - began


def test_a_worker_elsewhere_waits_for_what_it_fetches(client, crossed):
    value = client.submit(made, 100, "a", workers=["maker"], pure=False)
    wait(value, 20)
    seconds_to_fetch(client, value, "copier")
    assert crossed == []
    assert seconds_to_fetch(client, value, "asker") >= 1.25
    seconds_to_fetch(client, value, "asker")
    assert crossed == [("a", "b")], "it has it"


def test_of_who_scores_it_takes_as_long_as_of_who_made_it(client, crossed):
    value = client.submit(made, 100, "a", workers=["scorer"], pure=False)
    wait(value, 20)
    seconds_to_fetch(client, value, "copier")
    assert crossed == []
    value = client.submit(made, 100, "a", workers=["scorer"], pure=False)
    wait(value, 20)
    assert seconds_to_fetch(client, value, "other") >= 1.25
    assert crossed == [("a", "b")]
