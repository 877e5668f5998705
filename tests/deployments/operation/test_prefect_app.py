"""Prefect's server as digen starts it."""

import subprocess
import sys

from deployments.operation.prefect_app import PAGE_BYTES, STATEMENTS
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
