"""The workers of a cluster file, beside others that are there."""

from contextlib import nullcontext

import pytest

from deployments.cli import run
from deployments.operation import up
from deployments.operation.state import Service, State
from deployments.operation.workers import workers_of
from digen_core.planning.clusters.cluster import Cluster
from support.up_options import OPTIONS

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


@pytest.fixture
def seen(tmp_path, monkeypatch):
    """What workers that are started see as CUDA_VISIBLE_DEVICES, by name; nothing starts."""
    found = {}

    def start(name, command, environment, gpus):
        found[name] = environment.get("CUDA_VISIBLE_DEVICES")
        return Service(name=name, pid=1, started=0.0, log="", gpus=gpus)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(up, "start", start)
    monkeypatch.setattr(up, "_client", lambda state: nullcontext())
    monkeypatch.setattr(up, "wait_until_ready", lambda service, ready: None)
    return found


@pytest.mark.parametrize(
    ("visible", "wanted"),
    [
        ("3,5,6,7", {"h100-0": "3", "h100-1": "5", "pair-0": "6,7", "core-0": None}),
        ("", {"h100-0": "", "h100-1": "", "pair-0": "", "core-0": None}),
    ],
)
def test_workers_see_gpus_of_those_that_digen_up_sees(visible, wanted, seen, monkeypatch):
    """Others may use the rest: as a user of a shared machine says, or SLURM."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    cluster = Cluster.model_validate({"devices": [GPUS, PAIR, {**CPUS, "count": 1}]})
    state = State(options=OPTIONS, addresses={}, environment={})
    here = up._here(workers_of(cluster), up._visible(cluster))
    up._Starter(state, lambda text: None).workers(here)
    assert seen == wanted


def test_more_gpus_than_there_are_are_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    (tmp_path / "mine.toml").write_text('[[devices]]\nkind = "h100"\ncount = 2\ncuda = true\n')
    assert run(["up", "mine.toml"]) == 2
    assert capsys.readouterr().err == (
        "digen: h100-1 is to have GPU 2 of this machine, but 1 GPU can be used; correct the "
        "cluster file, or let this command see more by CUDA_VISIBLE_DEVICES\n"
    )
    assert not (tmp_path / "runs").exists()


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
