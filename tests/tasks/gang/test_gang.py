"""Gangs of real worker processes: order, failures, deaths, and forming again."""

import hashlib
import os
import random
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from distributed import Client, get_worker

from digen_core.checkpoints.manifest import DamagedError
from digen_core.config.schedule import ClusterConfig
from digen_core.control.protocol import Device
from digen_core.errors import UserError
from digen_core.gang.members import Gang
from digen_core.gang.rows import own_rows
from digen_core.transport.delta import packed
from support import gang_functions as together
from support.gpu import DEVICES, require_gpus
from support.pull_source import version_of
from support.waiting import comes_to
from tasks.cluster.calls import WorkerLostError
from tasks.cluster.cluster import devices_of, run_cluster
from tasks.cluster.presence import dismiss, present_workers, processor
from tasks.gang import together as follows
from tasks.gang.forming import form_gang, told_by
from tasks.gang.messages import GangBrokenError

pytestmark = pytest.mark.slow

BOTH = frozenset({"rollout", "trainer"})


class Gangs:
    """Two gangs of two workers."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def leader(self, name):
        there = present_workers(self.client)
        return next(worker for worker in there.values() if worker.name == name)

    def form(self, name):
        for _ in range(300):
            with suppress(StopIteration, WorkerLostError):  # one that ended is not missed yet
                if not (leader := self.leader(name)).lacks:
                    return form_gang(self.client, leader.address, list(leader.followers.values()))
            time.sleep(0.1)
        raise AssertionError(f"{name} is never whole")

    def submit(self, name, function, *arguments, priority=0, **parameters):
        where = [self.leader(name).address]
        return self.client.submit(
            function, *arguments, workers=where, pure=False, priority=priority, **parameters
        )

    def call(self, name, function, *arguments, seconds=60, **parameters):
        return self.submit(name, function, *arguments, **parameters).result(timeout=seconds)


@pytest.fixture(scope="module", params=DEVICES)
def cluster(request):
    """On GPUs, each gang has the same two."""
    require_gpus(request.param, 2)
    devices = [Device(name, BOTH, size=2, site="a") for name in ("g0", "g1")]
    with run_cluster(ClusterConfig(tls=False), devices) as address, Client(address) as client:
        yield Gangs(client)


@pytest.fixture
def gangs(cluster):
    for name in ("g0", "g1"):
        cluster.form(name)
    return cluster


def test_a_gang_is_one_device(gangs):
    found = devices_of(gangs.client, colocated=True)
    assert [(d.name, d.size, d.kind, d.followers) for d in found] == [
        ("g0", 2, f"{processor()} x2", ("g0.1",)),
        ("g1", 2, f"{processor()} x2", ("g1.1",)),
    ]


def test_tasks_of_two_gangs_in_any_order_with_late_inputs(gangs):
    """A task goes to the leader, and all members do the same in its order."""
    rng, expected, futures = random.Random(0), [], []
    late = {name: [gangs.submit(name, slow, 0.02 * i) for i in range(5)] for name in ("g0", "g1")}
    for number in range(200):
        name, other = rng.sample(["g0", "g1"], 2)
        futures.append(
            gangs.submit(
                name,
                summed_after,
                rng.choice(late[rng.choice([name, other])]),
                float(number),
                rng.choice([0.0, 0.0, 0.01]),
                priority=rng.randrange(10),
            )
        )
        expected.append(number * 3.0 * 2 * 2)
    assert gangs.client.gather(futures) == expected


def test_tasks_for_each_member_by_itself_would_give_wrong_sums(gangs):
    """What the delivery to leaders is for: with one late input the members' orders differ."""
    gangs.call("g0", together.summed, 1.0)
    (leader, follower) = gangs.leader("g0").address, gangs.leader("g0").followers["g0.1"]
    late = gangs.submit("g1", slow, 1.0)
    values = [
        gangs.client.submit(naive_after, after, value, workers=[where], pure=False)
        for where, after, value in (
            (leader, 0, 1.0),
            (follower, late, 1.0),
            (leader, 0, 10.0),
            (follower, 0, 10.0),
        )
    ]
    assert gangs.client.gather(values) != [12.0, 12.0, 120.0, 120.0]


@pytest.mark.parametrize("rank", [0, 1])
def test_the_failure_of_a_member_is_told_and_the_gang_can_be_formed_again(gangs, rank):
    expected = ValueError if rank == 0 else GangBrokenError
    with pytest.raises(expected, match="what went wrong"):
        gangs.call("g0", together.failing, "other", rank)
    with pytest.raises(GangBrokenError, match="broken before"):
        gangs.call("g0", together.summed, 1.0)
    gangs.form("g0")
    assert gangs.call("g0", together.summed, 1.0) == 12.0


@pytest.mark.parametrize("rank", [0, 1])
def test_what_a_user_has_to_change_is_told_whoever_finds_it(gangs, rank):
    with pytest.raises(UserError, match="too small"):
        gangs.call("g0", together.failing, "user", rank)


def test_what_a_user_has_to_change_is_told_by_the_leader_whatever_follows_it(gangs):
    with pytest.raises(UserError, match=r"^0 is too small$"):
        gangs.call("g0", together.failing_in_turn, ["user", "other"], [0.0, 1.0])


def test_what_a_user_has_to_change_is_known_while_the_leader_is_busy(gangs, tmp_path):
    """It may load for minutes, and the run misses the follower in seconds."""
    client, follower = gangs.client, gangs.leader("g0").followers["g0.1"]
    assert told_by(client, [follower]) is None
    failing = gangs.submit("g0", together.failing_beside_a_busy_leader, tmp_path / "loaded")
    expected = "1 is too small (on member 1 of the gang)"
    assert comes_to(lambda: told_by(client, [follower]))
    assert told_by(client, [follower]) == expected
    assert told_by(client, ["tcp://another:1"]) is None
    assert not failing.done()
    with pytest.raises(WorkerLostError):  # it is about to end, or has ended
        form_gang(client, gangs.leader("g0").address, [follower])
    assert told_by(client, [follower]) is None, "the next run would be told what is mended"
    (tmp_path / "loaded").touch()
    with pytest.raises(UserError, match=re.escape(expected)):
        failing.result(timeout=20)


def test_each_member_is_asked_whether_it_generates_as_the_run_does(gangs):
    """A gang may be of several kinds of cards, of which the leader's is not the oldest."""
    with pytest.raises(UserError, match=r"which this card does not have \(on member 1 of the gang"):
        gangs.call("g0", together.rollouts_beside_an_old_card)


def test_a_damaged_file_is_told_as_such_so_that_another_may_do(gangs):
    follower = gangs.leader("g0").followers["g0.1"]
    with pytest.raises(DamagedError, match="1 is damaged"):
        gangs.call("g0", together.failing_in_turn, ["", "damaged"], [0.0, 0.0])
    assert told_by(gangs.client, [follower]) is None, "the run goes back to an earlier one"


def test_a_failure_that_nobody_waits_for_is_told(gangs):
    with pytest.raises(GangBrokenError, match="member 1 failed: ValueError: what went wrong"):
        gangs.call("g0", together.failing, "early", 1)


def test_large_arguments_reach_all_members(gangs):
    array = np.random.default_rng(0).standard_normal(1_000_000)
    digest = hashlib.sha256(array.tobytes()).hexdigest()
    assert gangs.call("g0", together.digests, array) == [digest, digest]


def test_each_member_has_its_own_part(gangs):
    part = gangs.submit("g0", together.own_part)
    assert gangs.call("g0", together.sum_of_parts, part) == 11.0


@pytest.mark.parametrize("by_delta", [False, True], ids=["dense", "delta"])
def test_what_was_sent_to_all_members_is_on_the_receipt_of_their_leader(gangs, by_delta):
    rng = np.random.default_rng(0)
    before = {"a": rng.integers(0, 1 << 16, (101, 500), np.uint16), "b": np.arange(3.0)}
    after = {"a": before["a"] + rng.integers(0, 2, (101, 500), np.uint16), "b": np.arange(3.0)}
    gangs.call("g0", together.serve, [before, after])
    leader = gangs.leader("g0")
    source = [leader.address, leader.followers["g0.1"]]
    bases = [before] if by_delta else []
    ran = gangs.call("g1", together.receipt_of_pull, version_of(after), source, bases)
    expected = dict.fromkeys(source, 0)
    for rank, address in enumerate(source):  # of each member of the other gang's rows
        for name, value in after.items():
            rows, base = (own_rows(own, Gang(rank, 2)) for own in (value, before[name]))
            delta = packed(rows, base) if by_delta else None
            expected[address] += len(delta or rows.tobytes())
    assert {own["source"]: own["num_bytes"] for own in ran["received"]} == expected
    assert ran["num_bytes"] == sum(expected.values())
    assert (ran["num_bytes"] < 0.5 * (101 * 1000 + 24)) == by_delta
    again = gangs.call("g1", together.receipt_of_pull, version_of(after), source, bases)
    assert again["num_bytes"] == ran["num_bytes"], "of this task alone"


def test_a_follower_that_is_killed_breaks_its_gang_only(gangs):
    """On GPUs nothing but an abort of all groups gets its leader out of what it waits in."""
    gangs.call("g0", together.make_mesh)
    member = gangs.call("g0", together.process_ids)[1]
    running = gangs.submit("g0", together.summed, 1.0, 30.0, 300)
    time.sleep(1)
    started = time.monotonic()
    os.kill(member, signal.SIGKILL)
    with pytest.raises(GangBrokenError, match="member 1 is gone"):
        running.result(timeout=20)
    assert time.monotonic() - started < 10
    assert gangs.call("g1", together.summed, 1.0) == 12.0
    gangs.form("g0")  # its nanny has started it again
    assert gangs.call("g0", together.summed, 1.0) == 12.0


@pytest.mark.parametrize(
    ("what", "told"),
    [
        (together.die_where_the_group_is_formed, "^member 1 is gone$"),
        (together.fail_where_the_group_is_formed, "^member 1 failed: NCCL has no memory$"),
    ],
    ids=["dies", "fails"],
)
def test_who_is_gone_before_the_group_is_formed_is_told_at_once(gangs, what, told):
    """The others would wait two minutes for it; their processes end, as a run has them do."""
    leader = gangs.leader("g0")
    gangs.client.run(what, workers=list(leader.followers.values()))
    started = time.monotonic()
    with pytest.raises(GangBrokenError, match=told):
        gangs.call("g0", together.summed, 1.0)
    assert time.monotonic() - started < 30
    with pytest.raises(GangBrokenError, match="broken before"):
        gangs.call("g0", together.summed, 1.0)
    dismiss(gangs.client, leader.address)
    gangs.form("g0")
    assert gangs.call("g0", together.summed, 1.0) == 12.0


@pytest.mark.nightly
def test_a_gang_of_which_a_member_is_frozen_is_not_formed(gangs):
    """It is waited for as long as it may be silent, and not as long as a GPU may take to answer."""
    leader, frozen = gangs.leader("g0"), gangs.call("g0", together.process_ids)[1]
    os.kill(frozen, signal.SIGSTOP)
    started = time.monotonic()
    followers = list(leader.followers.values())
    with pytest.raises(WorkerLostError, match=f"the worker at {followers[0]} is silent"):
        form_gang(gangs.client, leader.address, followers, silence=5)
    assert 4 < time.monotonic() - started < 45
    os.kill(frozen, signal.SIGKILL)
    gangs.form("g0")
    assert gangs.call("g0", together.summed, 1.0) == 12.0


def test_a_gang_that_is_formed_while_it_works_ends_that_first(gangs):
    """As the next run on a cluster does when the last one was cancelled."""
    running = gangs.submit("g0", together.summed, 1.0, 3.0)
    time.sleep(0.5)
    gangs.form("g0")
    after = gangs.submit("g0", together.summed, 2.0)
    assert (running.result(timeout=30), after.result(timeout=30)) == (12.0, 24.0)


def test_a_task_of_the_last_run_does_not_command_the_gang_of_the_next(gangs, tmp_path):
    """The new followers do not know what it made, so they would end."""
    before = gangs.call("g0", together.process_ids)
    running = gangs.submit("g0", together.sum_of_parts_between, tmp_path / "made", tmp_path / "on")
    assert comes_to((tmp_path / "made").exists)
    gangs.form("g0")
    after = gangs.submit("g0", together.sum_of_parts_at_once)
    (tmp_path / "on").touch()
    with pytest.raises(GangBrokenError, match="the gang was formed anew"):
        running.result(timeout=30)
    assert after.result(timeout=30) == gangs.call("g0", together.sum_of_parts_at_once)
    assert gangs.call("g0", together.process_ids) == before


def test_a_follower_that_ends_before_it_was_called_leaves_nothing(gangs):
    """What it listens on is in its worker's folder, which Dask removes: processes may be killed."""
    follower = gangs.leader("g0").followers["g0.1"]
    path, folder = gangs.client.run(socket_and_folder, workers=[follower])[follower]
    assert Path(path).is_socket()
    assert Path(path).is_relative_to(folder)


def test_a_gang_can_be_formed_again_and_again(gangs):
    """Each time all members leave the group at once; none waits for what another has removed."""
    before = gangs.call("g0", gang_folders)  # with those of gangs that other tests have broken
    for number in range(60):
        gangs.form("g0")
        assert gangs.call("g0", together.summed, float(number), seconds=20) == number * 12.0
    gangs.form("g0")
    for _ in range(100):  # a follower that is slow to leave
        if len(folders := gangs.call("g0", gang_folders)) == len(before):
            break
        time.sleep(0.1)
    assert len(folders) == len(before), "one is of the gang that is, as before"


def slow(seconds):
    time.sleep(seconds)
    return 0


def socket_and_folder(dask_worker):
    """Return where a follower waits for its leader, and the folder of its worker."""
    return follows._following.address.removeprefix("unix://"), dask_worker.local_directory


def gang_folders():
    """Return the folders of the gangs; a store's file may stay, see `process_group._store`."""
    found = Path(get_worker().local_directory).glob("gang-*")
    return [path.name for path in found if path.is_dir()]


def summed_after(_, value, seconds):
    return together.summed(value, seconds, rounds=3)


def naive_after(_, value):
    return together.naive(value)
