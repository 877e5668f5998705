"""The process group of a gang: members that do not come are not waited for as long as for work."""

import gc
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from socket import AF_INET
from threading import Barrier, Event

import psutil
import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from digen_core.config.parallel import ParallelConfig
from digen_core.gang.meshes import COLLECTIVE, mesh_of
from digen_core.planning.fake_gang import fake_gang
from support.gang_processes import run_gang
from support.gpu import DEVICES, require_gpus
from support.split_groups import members_when_formed_again
from tasks.gang import process_group
from tasks.gang.messages import Join
from tasks.gang.process_group import (
    abort_group,
    form_group,
    form_unless,
    interface_of,
    leave_group,
)


def joined(folder, size: int) -> Join:
    return Join(rank=0, size=size, folder=folder, near=tuple(range(size)), store=None)


@pytest.fixture
def quiet(monkeypatch):
    """What forming a group sets is as before, afterwards."""
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TORCH_CPP_LOG_LEVEL"):
        monkeypatch.setenv(name, "")


def test_a_member_that_never_comes_is_said(tmp_path, monkeypatch, quiet):
    monkeypatch.setattr(process_group, "MEETING", timedelta(seconds=1))
    with pytest.raises(ConnectionError, match="its members do not reach each other"):
        form_group(joined(tmp_path, 2), "192.0.2.1")
    assert not dist.is_initialized()


def test_a_member_that_is_gone_is_not_waited_for(tmp_path, monkeypatch, quiet):
    """Who waits for it is left behind, and until it has given up, too, no group is formed."""
    gone, late = Event(), Event()

    def waiting(*_):
        assert late.wait(60)
        raise ConnectionError("its members do not reach each other: Wait timeout")

    with ThreadPoolExecutor() as pool, monkeypatch.context() as patch:
        patch.setattr(process_group, "form_group", waiting)
        forming = pool.submit(form_unless, gone.is_set, joined(tmp_path, 2), "192.0.2.1", None)
        with pytest.raises(TimeoutError):
            forming.result(0.5)
        gone.set()
        with pytest.raises(ConnectionError, match="a member is gone"):
            forming.result(30)
    with pytest.raises(ConnectionError, match="it has to be started again"):
        form_group(joined(tmp_path, 1), "192.0.2.1")
    late.set()
    process_group._given_up.join(60)
    assert not dist.is_initialized()
    group = form_unless(lambda: True, joined(tmp_path, 1), "192.0.2.1", None)
    assert group is dist.group.WORLD
    leave_group(joined(tmp_path, 1))


def test_a_group_that_is_formed_after_it_was_given_up_is_left(tmp_path, monkeypatch, quiet):
    given_up = Event()

    def late(*arguments):
        assert given_up.wait(60)
        return form_group(*arguments)

    monkeypatch.setattr(process_group, "form_group", late)
    with pytest.raises(ConnectionError, match="a member is gone"):
        form_unless(lambda: True, joined(tmp_path, 1), "192.0.2.1", None)
    thread = process_group._given_up
    monkeypatch.setattr(process_group, "_given_up", None)
    given_up.set()
    thread.join(60)
    assert not dist.is_initialized()


@pytest.mark.parametrize("device", DEVICES)
def test_one_that_is_alone_waits_for_nobody(tmp_path, quiet, device):
    """On a GPU its group is one of NCCL, too; it is formed again after it was aborted."""
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        form_group(joined(folder, 1), "192.0.2.1")
        mesh = mesh_of(torch.device(device), share=1, stage=1)
        for group in (dist.group.WORLD, mesh.get_group("stage")):
            options = group._get_backend(torch.device(device)).options
            assert options._timeout == COLLECTIVE
            dist.all_reduce(found := torch.ones(3, device=device), group=group)
            assert found.tolist() == [1.0, 1.0, 1.0]
        leave_group(joined(folder, 1))
        assert not dist.is_initialized()
        assert not folder.exists()


def test_the_store_is_there_for_who_still_has_it(tmp_path, quiet):
    """A mesh may outlast the gang. A store waits for a file that is gone, and ends its process."""
    folder = tmp_path / "gang"
    folder.mkdir()
    group = form_group(joined(folder, 1), "192.0.2.1")
    leave_group(joined(folder, 1))
    assert [path.name for path in tmp_path.iterdir()] == ["gang.store"]
    del group
    gc.collect()
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_a_process_makes_the_meshes_of_its_second_gang_too(tmp_path, device):
    """Where torch splits groups, as on GPUs, it ended a process whose gang was formed again."""
    require_gpus(device, 2)
    folder = tmp_path / "second"
    folder.mkdir()
    expected = {"share": (1.0, COLLECTIVE), "ring": (1.0, COLLECTIVE), "ulysses": (2.0, COLLECTIVE)}
    found = run_gang(2, tmp_path, members_when_formed_again, folder, device, device=device)
    assert found == [expected] * 2


def test_one_group_is_aborted_and_none_that_is_formed_later(tmp_path, quiet):
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    first = form_group(joined(folders[0], 1), "192.0.2.1")
    assert not abort_group(None)
    assert dist.is_initialized()
    assert abort_group(first)
    assert not dist.is_initialized()
    form_group(joined(folders[1], 1), "192.0.2.1")
    assert not abort_group(first)
    assert dist.is_initialized()
    leave_group(joined(folders[1], 1))


def test_groups_are_aborted_at_once(tmp_path, monkeypatch, quiet):
    """On a GPU each waits for what the others compute, which waits for members that are gone."""
    group = form_group(joined(tmp_path, 1), "192.0.2.1")
    dist.new_group([0])
    begun, abort, stopped = Barrier(2), dist.ProcessGroup.abort, []

    def waiting(own):
        if own not in stopped:
            stopped.append(own)
            begun.wait(20)
        abort(own)

    monkeypatch.setattr(dist.ProcessGroup, "abort", waiting)
    assert abort_group(group)
    assert len(stopped) == 2
    assert not dist.is_initialized()


def test_one_that_was_not_formed_leaves_its_name_to_the_next(tmp_path, monkeypatch, quiet):
    """A member that was in none before would meet the others by no other name."""
    monkeypatch.setattr(process_group, "MEETING", timedelta(seconds=1))
    with pytest.raises(ConnectionError):
        form_group(joined(tmp_path, 2), "192.0.2.1")
    folder = tmp_path / "next"
    folder.mkdir()
    assert form_group(joined(folder, 1), "192.0.2.1").group_name == "0"
    leave_group(joined(folder, 1))


def test_a_group_that_is_made_while_all_are_aborted_is_forgotten(tmp_path, monkeypatch, quiet):
    """A member failed while its leader waited for another one, to make a mesh with."""
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    first = form_group(joined(folders[0], 1), "192.0.2.1")

    class Late(distributed_c10d.ProcessGroupGloo):
        def __init__(self, *arguments, **settings):
            assert abort_group(first)
            super().__init__(*arguments, **settings)

    with monkeypatch.context() as patch, suppress(ValueError):  # there is no default group
        patch.setattr(distributed_c10d, "ProcessGroupGloo", Late)
        dist.new_group([0])
    assert not dist.is_initialized()
    assert distributed_c10d._world.pg_names, "it is forgotten anyway"
    leave_group(joined(folders[0], 1))
    form_group(joined(folders[1], 1), "192.0.2.1")
    dist.all_reduce(found := torch.ones(3), group=dist.new_group([0]))
    assert found.tolist() == [1.0, 1.0, 1.0]
    leave_group(joined(folders[1], 1))


def test_no_group_is_hidden_half_aborted(tmp_path, monkeypatch, quiet):
    """A follower fails just when its leader begins to count what a model needs."""
    begun, hidden = Event(), Event()
    abort = process_group._abort_process_group

    def slowly():
        begun.set()
        assert not hidden.wait(0.5)
        abort()

    def count():
        assert begun.wait(60)
        with fake_gang(ParallelConfig(), 2):
            hidden.set()

    monkeypatch.setattr(process_group, "_abort_process_group", slowly)
    group = form_group(joined(tmp_path, 1), "192.0.2.1")
    with ThreadPoolExecutor() as pool:
        counting = pool.submit(count)
        assert abort_group(group)
        counting.result(60)
    assert not dist.is_initialized()


def test_the_interface_is_that_of_the_address_at_which_a_worker_is():
    loopback = interface_of("127.0.0.1")
    assert interface_of("127.0.0.2") == interface_of("localhost") == loopback
    for name, addresses in psutil.net_if_addrs().items():
        for found in addresses:
            if found.family == AF_INET and not found.address.startswith("127."):
                assert interface_of(found.address) == name
    with pytest.raises(ConnectionError, match=r"no network interface has the address 192\.0\.2\.1"):
        interface_of("192.0.2.1")


def test_an_address_that_no_interface_has_matters_between_hosts_only(tmp_path, quiet):
    """As behind a NAT."""
    here = joined(tmp_path, 1)
    assert form_group(here, "192.0.2.1") is dist.group.WORLD
    leave_group(here)
    far = replace(here, store=("127.0.0.1", 1))
    with pytest.raises(ConnectionError, match="no network interface has the address"):
        form_group(far, "192.0.2.1")


def test_nccl_reads_once_which_interface_it_is_to_use(monkeypatch):
    monkeypatch.setattr(process_group, "_interface_of_nccl", "")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "")
    for _ in range(2):
        process_group._take_for_nccl("lo")
        assert os.environ["NCCL_SOCKET_IFNAME"] == "=lo"
    with pytest.raises(ConnectionError, match="NCCL uses lo in this process, and this gang eth0"):
        process_group._take_for_nccl("eth0")
