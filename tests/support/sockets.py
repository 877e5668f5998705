"""What processes listen on, as the kernel knows it; and an attack on a Dask worker."""

import asyncio
import os
import socket
from collections.abc import Iterable
from itertools import takewhile
from urllib.parse import urlsplit

import psutil
import pytest
from distributed import Client, Security, rpc
from distributed.protocol.pickle import dumps

from support.paths import ROOT

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
        return int(answer["result"])

    return asyncio.run(attack())


def documented(command: str) -> dict[str, str]:
    """Return what docs/security.md says that a command opens: part -> what it listens on."""
    lines = (ROOT / "docs" / "security.md").read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("| part |"))
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in takewhile(lambda line: line.startswith("|"), lines[start:])
    ]
    part, started_by, listens_on = (
        rows[0].index(head) for head in ("part", "started by", "listens on")
    )
    table = rows[2:]
    return {row[part]: row[listens_on] for row in table if f"`{command}`" in row[started_by]}


def parts_of_dask(client: Client) -> dict[Address, str]:
    """Return what the scheduler knows to listen: address -> part of the table."""
    identity = client.sync(client.scheduler.identity, n_workers=-1)  # type: ignore[union-attr]
    parts = {identity["address"]: "Dask scheduler"}
    parts |= dict.fromkeys(identity["workers"], "worker")
    parts |= {worker["nanny"]: "nanny" for worker in identity["workers"].values()}
    found = {address_of(address): part for address, part in parts.items()}
    host = address_of(identity["address"])[0]
    return found | {(host, identity["services"]["dashboard"]): "Dask dashboard"}


def address_of(url: str) -> Address:
    parts = urlsplit(url)
    return str(parts.hostname), int(parts.port or 0)


def assert_documented(command: str, sockets: Iterable[Address], parts: dict[Address, str]) -> None:
    """Check that each socket is of a part that the table has, listens where it says, and all do."""
    table = documented(command)
    found = {parts.get(address, f"unknown at {address}"): address[0] for address in sockets}
    assert found == table, f"{found}, but the table has {table}"
