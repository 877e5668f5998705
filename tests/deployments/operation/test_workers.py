"""The workers of a cluster file, beside others that are there."""

import pytest

from deployments.cli import run
from deployments.operation.workers import workers_of
from digen_core.planning.clusters.cluster import Cluster

GPUS = {"kind": "h100", "count": 2, "cuda": True}
CPUS = {"kind": "core", "count": 2}
PAIR = {"kind": "pair", "count": 2, "gang": 2, "cuda": True}


def dealt(devices, **others):
    cluster = Cluster.model_validate({"devices": devices})
    return [(worker.name, worker.gpus) for worker in workers_of(cluster, **others)]


def test_names_and_gpus_are_counted_from_zero():
    assert dealt([GPUS, CPUS, PAIR]) == [
        ("h100-0", (0,)), ("h100-1", (1,)), ("core-0", ()), ("core-1", ()), ("pair-0", (2, 3)),
    ]  # fmt: skip


def test_those_that_others_have_are_left_out():
    taken = {"h100-0", "h100-2", "pair-0"}
    assert dealt([GPUS, CPUS, PAIR], taken=taken, gpus_taken=[0, 2]) == [
        ("h100-1", (1,)), ("h100-3", (3,)), ("core-0", ()), ("core-1", ()), ("pair-1", (4, 5)),
    ]  # fmt: skip


def test_gpus_of_other_hosts_are_their_own():
    there = {**GPUS, "hosts": ["node-1"]}
    assert dealt([there, CPUS], gpus_taken=[0, 1])[:2] == [("h100-0", (0,)), ("h100-1", (1,))]


def test_nothing_is_added_where_nothing_is_up(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["up", "2-cores", "--add"]) == 2
    text = "nothing is up in this folder to add workers to; start it by: digen up"
    assert capsys.readouterr().err == f"digen: {text}\n"


@pytest.mark.parametrize("more", [["--name", "a"], ["--name", "a", "--role", "rollout"]])
def test_nobody_leaves_a_cluster_that_is_not_there(more, capsys):
    assert run(["worker", "tcp://127.0.0.1:9", *more, "--leave"]) == 2
    assert capsys.readouterr().err == (
        "digen: the scheduler's address is tcp://127.0.0.1:9, but nothing answers there "
        "([Errno 111] Connection refused); start the scheduler, or correct the address\n"
    )
