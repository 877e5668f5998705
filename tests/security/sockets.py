"""What processes listen on, as the kernel knows it; and an attack on a Dask worker."""

import asyncio
import os
import socket
from collections.abc import Iterable

import psutil
import pytest
from distributed import Security, rpc
from distributed.protocol.pickle import dumps

Address = tuple[str, int]


def listening(processes: Iterable[psutil.Process]) -> dict[Address, psutil.Process]:
    """Return the addresses at which processes and all that they started take connections."""
    found: dict[Address, psutil.Process] = {}
    for process in processes:
        for one in (process, *process.children(recursive=True)):
            for connection in one.net_connections(kind="inet"):
                is_udp = connection.type == socket.SOCK_DGRAM
                if connection.status == psutil.CONN_LISTEN or (is_udp and not connection.raddr):
                    found[connection.laddr.ip, connection.laddr.port] = one
    return found


def address_in_the_network() -> str:
    """Return an address by which other machines reach this one; without one the test is skipped."""
    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            if address.family == socket.AF_INET and not address.address.startswith("127."):
                return address.address
    pytest.skip("this machine has no network")


def run_code_at(address: str, security: Security | None = None) -> int:
    """Let a worker or a nanny run code, as whoever reaches one without TLS can; return its pid."""

    async def attack() -> int:
        arguments = (security or Security()).get_connection_args("client")
        async with rpc(address, connection_args=arguments, timeout=2) as worker:
            answer = await worker.run(function=dumps(os.getpid), wait=True)
        return answer["result"]

    return asyncio.run(attack())
