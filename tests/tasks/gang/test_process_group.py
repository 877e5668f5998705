"""The process group of a gang: members that do not come are not waited for as long as for work."""

from datetime import timedelta
from socket import AF_INET

import psutil
import pytest
import torch.distributed as dist

from tasks.gang import process_group
from tasks.gang.messages import Join
from tasks.gang.process_group import form_group, interface_of, leave_group


def joined(folder, size: int) -> Join:
    return Join(rank=0, size=size, folder=folder, near=tuple(range(size)), store=None)


def test_a_member_that_never_comes_is_said(tmp_path, monkeypatch):
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TORCH_CPP_LOG_LEVEL"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(process_group, "MEETING", timedelta(seconds=1))
    with pytest.raises(ConnectionError, match="the other members did not come"):
        form_group(joined(tmp_path, 2), "lo")
    assert not dist.is_initialized()


def test_one_that_is_alone_waits_for_nobody(tmp_path, monkeypatch):
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TORCH_CPP_LOG_LEVEL"):
        monkeypatch.setenv(name, "")
    form_group(joined(tmp_path, 1), "lo")
    group = dist.group.WORLD
    assert group._get_backend(process_group.torch.device("cpu")).options._timeout == (
        process_group.COLLECTIVE
    )
    leave_group(joined(tmp_path, 1))
    assert not tmp_path.exists()


def test_the_interface_is_that_of_the_address_at_which_a_worker_is():
    loopback = interface_of("127.0.0.1")
    assert interface_of("127.0.0.2") == interface_of("localhost") == loopback
    for name, addresses in psutil.net_if_addrs().items():
        for found in addresses:
            if found.family == AF_INET and not found.address.startswith("127."):
                assert interface_of(found.address) == name
    with pytest.raises(ConnectionError, match=r"no network interface has the address 192\.0\.2\.1"):
        interface_of("192.0.2.1")
