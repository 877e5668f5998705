"""The process group of a gang, over which its members compute: the default one of each process."""

import os
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from ipaddress import IPv4Address, IPv6Address, ip_address
from socket import AF_INET, AF_INET6, getaddrinfo, socket
from threading import Thread
from typing import Final

import psutil
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    FileStore,
    Store,
    TCPStore,
    _unregister_all_process_groups,
)
from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import _abort_process_group

from digen_core.gang.meshes import wait_long_in
from digen_core.planning.fake_gang import REAL_GROUPS
from tasks.gang.messages import Join

MEETING: Final = timedelta(minutes=2)
"""How long members wait for each other to come: all of them are there when the leader calls."""

LOOK_SECONDS: Final = 0.2
"""Between two looks at whether members that are waited for can still come."""

_given_up: Thread | None = None  # which waits for members that do not come
_interface_of_nccl = ""  # which it reads once, when a process first has a group of it


def form_group(join: Join, host: str, listener: socket | None = None) -> dist.ProcessGroup:
    """Make the default group of this process the one of a gang's members, and return it.

    What members on several hosts compute with goes over their network as it is.

    Args:
        join: how this member does.
        host: by which this one is reached, as members on several hosts meet in its network.
        listener: of the leader, for the store of members on several hosts.

    Raises:
        OSError: the others did not come, or NCCL cannot connect them, or those of an earlier gang
            are still waited for; or members on several hosts cannot meet at this address.
    """
    if _given_up is not None and _given_up.is_alive():
        raise ConnectionError(
            "this process still waits for members of an earlier gang: it has to be started again"
        )
    interface = interface_of("127.0.0.1" if join.store is None else host)
    has_gpu = torch.cuda.is_available()
    if has_gpu:
        _take_for_nccl(interface)
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if not dist.is_initialized():
        _forget_groups()
    try:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if has_gpu else "gloo",
            store=_store(join, listener),
            rank=join.rank,
            world_size=join.size,
            timeout=MEETING,
            device_id=torch.device("cuda", torch.cuda.current_device()) if has_gpu else None,
        )
    except RuntimeError as error:
        raise ConnectionError(f"its members do not reach each other: {error}") from error
    group = dist.group.WORLD
    assert group is not None
    wait_long_in(group)
    _tell_ranks(group, join.size)
    return group


def _tell_ranks(group: dist.ProcessGroup, size: int) -> None:
    """Tell the backends of the default group its ranks.

    Of a default group torch keeps none: backends take the first one that a process has to be all
    ranks, and read past the end of an empty list where a later one is split, as for a mesh on GPUs
    (pytorch#192109).
    """
    for device in group._device_types:
        group._get_backend(device).options.global_ranks_in_group = list(range(size))


def _forget_groups() -> None:
    """Forget groups whose making outlasted the group that they were part of, and their number.

    By it members name their groups, so they must agree; one that was not formed has counted, too.
    """
    world = distributed_c10d._world
    world.group_count = 0
    for known in (
        world.pg_map,
        world.pg_names,
        world.pg_group_ranks,
        world.pg_backend_config,
        world.pg_to_tag,
        world.tags_to_pg,
        world.pg_coalesce_state,
    ):
        known.clear()
    _unregister_all_process_groups()


def form_unless(
    is_broken: Callable[[], bool], join: Join, host: str, listener: socket | None
) -> dist.ProcessGroup:
    """Make the default group of this process as `form_group` does, or give up.

    Nothing gets a thread out of it that waits for a member that is gone. So another one does it,
    which is left behind, and this process forms no group any more until that one has given up, too.

    Args:
        is_broken: says whether a member is known to be gone.
        join: how this member does.
        host: as for `form_group`.
        listener: likewise.

    Raises:
        OSError: a member is gone, or what `form_group` raises it for.
    """
    global _given_up
    formed: Future[dist.ProcessGroup] = Future()

    def form() -> None:
        try:
            group = form_group(join, host, listener)
        except BaseException as error:
            if formed.set_running_or_notify_cancel():
                formed.set_exception(error)
            return
        if formed.set_running_or_notify_cancel():
            formed.set_result(group)
        else:
            abort_group(group)

    thread = Thread(target=form, name="gang's group", daemon=True)
    thread.start()
    while True:
        try:
            return formed.result(LOOK_SECONDS)
        except TimeoutError:
            if is_broken() and formed.cancel():
                _given_up = thread
                raise ConnectionError("a member is gone") from None


def _take_for_nccl(interface: str) -> None:
    """Have NCCL use an interface, and none whose name only begins so.

    Raises:
        ConnectionError: it uses another one in this process, as its gang was on one host before.
    """
    global _interface_of_nccl
    if _interface_of_nccl not in ("", interface):
        raise ConnectionError(
            f"NCCL uses {_interface_of_nccl} in this process, and this gang {interface}: its "
            "workers have to be started again"
        )
    _interface_of_nccl = interface
    os.environ["NCCL_SOCKET_IFNAME"] = f"={interface}"


def _store(join: Join, listener: socket | None) -> Store:
    """Return where the members find each other.

    On one host it is a file, beside their folder, which goes with the last member that lets go of
    it, by torch: if another one removed it just then, who lets go would wait for it, and be ended.
    Two that let go at once may each take the other for the last: then Dask removes it, with the
    leader's folder.
    """
    if join.store is None:
        return FileStore(f"{join.folder}.store", join.size)
    host, port = join.store
    descriptor = None if listener is None else listener.detach()  # it would listen everywhere
    return TCPStore(
        host,
        port,
        join.size,
        is_master=listener is not None,
        timeout=MEETING,
        wait_for_workers=False,
        master_listen_fd=descriptor,
    )


def abort_group(group: dist.ProcessGroup | None) -> bool:
    """Abort the default group if it is this one, and say whether this thread sees that it is.

    Nothing that the group computes goes on, so that also gets another thread out of a collective of
    NCCL. To destroy the group would not do: that waits for the others, who may be gone.

    Args:
        group: what `form_group` returned; None: there is none yet.
    """
    with REAL_GROUPS:
        is_default = group is not None and dist.group.WORLD is group
        if is_default:
            _stop_all()
            _abort_process_group()
        return is_default


def _stop_all() -> None:
    """Stop what all groups compute, at once.

    To abort a group waits for the whole GPU, and so for what another one computes (pytorch#119797):
    one after the other they would wait for members that are gone. torch tells NCCL to abort them
    together, but in this thread, of which NCCL knows no more where another one aborts each.
    """
    groups = [*distributed_c10d._world.pg_names]
    with ThreadPoolExecutor(len(groups)) as pool:
        list(pool.map(lambda own: own.abort(), groups))


def leave_group(join: Join) -> None:
    """Leave the group, if this process is in one; over gloo members that wait for this one fail.

    The last member on the leader's host removes the folder. Where one was killed, Dask removes it
    with the leader.

    Args:
        join: how this member has joined.
    """
    abort_group(dist.group.WORLD)
    if join.rank not in join.near:
        return
    with suppress(FileNotFoundError):  # two were the last
        (join.folder / f"left-{join.rank}").touch()
        if len(list(join.folder.glob("left-*"))) == len(join.near):
            shutil.rmtree(join.folder, ignore_errors=True)


def interface_of(host: str) -> str:
    """Return the name of the network interface that has an address of this host.

    Raises:
        ConnectionError: none has it.
    """
    wanted = _ip(getaddrinfo(host, None)[0][4][0])
    for name, addresses in psutil.net_if_addrs().items():
        for found in addresses:
            if found.family not in (AF_INET, AF_INET6):
                continue
            own = _ip(found.address)
            if own == wanted or (own.is_loopback and wanted.is_loopback):
                return name
    raise ConnectionError(
        f"no network interface has the address {host}, at which the worker listens"
    )


def _ip(address: str | int) -> IPv4Address | IPv6Address:
    return ip_address(str(address).partition("%")[0])
