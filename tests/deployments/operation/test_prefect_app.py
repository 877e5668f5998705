"""Prefect's server as digen starts it."""

import ctypes
import os
import subprocess
import sys

import pytest

from deployments.operation.prefect_app import ARENAS, PAGE_BYTES, STATEMENTS
from support.paths import ROOT

CONNECTING = """
import asyncio, sqlite3
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy import text
from deployments.operation.prefect_app import spare_memory

connect = sqlite3.connect
def noting(*arguments, **options):
    print(options.get("cached_statements"))
    return connect(*arguments, **options)

async def ask():
    async with create_async_engine("sqlite+aiosqlite://").connect() as connection:
        print((await connection.execute(text("PRAGMA soft_heap_limit"))).scalar())

spare_memory()
sqlite3.connect = noting
asyncio.run(ask())
"""


def test_sqlite_keeps_little():
    """Of statements and pages, in every connection that the server makes."""
    command = [sys.executable, "-c", CONNECTING]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(STATEMENTS), str(PAGE_BYTES)]


SERVING = """
import ctypes
from threading import Barrier, Thread
from deployments.operation import prefect_app

all_there = Barrier(4)
def allocate():
    all_there.wait()
    blocks = [bytes(10_000) for _ in range(100)]
    all_there.wait()

def serve(app, **options):
    threads = [Thread(target=allocate) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ctypes.CDLL(None).malloc_stats()

prefect_app.uvicorn.run = serve
prefect_app.main()
"""


@pytest.mark.operation
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="it is not glibc")
def test_threads_of_the_server_share_what_malloc_keeps(tmp_path):
    """Else each of Prefect's connections, which are threads, keeps what it freed to itself."""
    done = subprocess.run(
        [sys.executable, "-c", SERVING, "--host", "127.0.0.1", "--port", "1"],
        cwd=ROOT,
        env={**os.environ, "PREFECT_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stderr.splitlines()
    assert sum(line.startswith("Arena ") for line in lines) == ARENAS, done.stderr
