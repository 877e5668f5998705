"""The process group of a gang: members that do not come are not waited for as long as for work."""

from datetime import timedelta

import pytest
import torch.distributed as dist

from tasks.gang import process_group
from tasks.gang.process_group import form_group, leave_group


def test_a_member_that_never_comes_is_said(tmp_path, monkeypatch):
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TORCH_CPP_LOG_LEVEL"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(process_group, "MEETING", timedelta(seconds=1))
    with pytest.raises(ConnectionError, match="the other members did not come"):
        form_group(tmp_path, 0, 2)
    assert not dist.is_initialized()


def test_one_that_is_alone_waits_for_nobody(tmp_path, monkeypatch):
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TORCH_CPP_LOG_LEVEL"):
        monkeypatch.setenv(name, "")
    form_group(tmp_path, 0, 1)
    group = dist.group.WORLD
    assert group._get_backend(process_group.torch.device("cpu")).options._timeout == (
        process_group.COLLECTIVE
    )
    leave_group(tmp_path, 0, 1)
    assert not tmp_path.exists()
